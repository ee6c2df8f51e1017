"""Figures of a training: one panel per site, one line per head."""

import pytest

from headwise.plots.training import head_values, training_figures

RECORDS = [
    {
        "update": update,
        "alpha": {
            "encoder_self": [[1.1, 1.9, 1.5], [], [1.0, 2.0, None]],
            "cross": [[1.2, 1.3, 1.4], [1.5, 1.6, 1.7 + update / 1000]],
        },
        "diversity": {"cross": [[0.2], [0.4 + update / 1000]]},
        "p of/ours": {"cross": [[0.5, None]]},
    }
    for update in (0, 50, 100)
] + [{"update": 100, "density": {"cross": [[0.5]]}}]


CURVES = {"loss": "loss per target token", "bits": "bits per byte"}


def drawn_lines(figure):
    """Title of a panel -> points of its lines, without lines of legends and references."""
    return {
        axes.get_title(): [
            (list(line.get_xdata()), list(line.get_ydata()))
            for line in axes.lines
            if len(line.get_xdata()) and list(line.get_xdata()) != [0, 1]
        ]
        for axes in figure.axes
    }


def test_records_give_one_row_per_value_with_head_numbers():
    heads = {"cross": [[2, 3, 8], [1, 4, 7]]}  # after pruning
    table = head_values(RECORDS[:1], heads)
    cross = table[(table["statistic"] == "alpha") & (table["site"] == "cross")]
    rows = list(zip(cross["layer"], cross["head"], cross["value"], strict=True))
    assert rows == [
        (1, 2, 1.2), (1, 3, 1.3), (1, 8, 1.4), (2, 1, 1.5), (2, 4, 1.6), (2, 7, 1.7)
    ]  # fmt: skip
    assert len(table[table["site"] == "encoder_self"]) == 5  # missing values have no row
    assert len(table[table["statistic"] == "diversity"]) == 2  # of layers: no head was pruned


def test_one_panel_per_site_and_one_line_per_head():
    figure = training_figures(RECORDS, [], {})["alpha"]
    lines = drawn_lines(figure)
    assert list(lines) == ["encoder self-attention", "cross-attention"]
    assert len(lines["encoder self-attention"]) == 5
    assert ([0, 50, 100], pytest.approx([1.7, 1.75, 1.8])) in lines["cross-attention"]
    for axes in figure.axes:
        low, high = axes.get_ylim()
        assert low < 1 < 2 < high  # softmax and sparsemax are in the range
    assert figure.axes[-1].get_legend().get_title().get_text() == "layer"


def test_every_recorded_measure_has_a_figure():
    figures = training_figures(RECORDS, [], {}, "softmax, a corpus")
    assert list(figures) == ["alpha", "diversity", "heads-p-of-ours"]
    assert drawn_lines(figures["diversity"])["cross-attention"] == [
        ([0, 50, 100], [0.2] * 3),
        ([0, 50, 100], pytest.approx([0.4, 0.45, 0.5])),
    ]
    for figure in figures.values():
        title = " ".join(figure.get_suptitle().split())  # long ones are wrapped
        assert title.endswith(" (softmax, a corpus)")
    assert training_figures([{"update": 2, "alpha": {}}], [{"update": 1}], CURVES) == {}


@pytest.mark.parametrize(("n_heads", "n_drawn"), [(1, 50), (4, 25), (1000, 2)])
def test_lines_of_many_heads_have_fewer_points(n_heads, n_drawn, monkeypatch):
    monkeypatch.setattr("headwise.plots.training.MAX_POINTS", 100)
    records = [{"update": update, "alpha": {"cross": [[1.5] * n_heads]}} for update in range(50)]
    (lines,) = drawn_lines(training_figures(records, [], {})["alpha"]).values()
    updates, _ = lines[0]
    assert (len(lines), len(updates)) == (n_heads, n_drawn)
    assert (updates[0], updates[-1]) == (0, 49)


def test_curves_show_the_requested_metrics():
    records = [
        {"update": 50, "train/loss": 5.0, "train/lr": 0.1},
        {"update": 100, "train/loss": 4.0},
        {"update": 100, "valid/loss": 4.5, "valid/bits": 3.0, "valid/nll": 2.0},
        {"update": 150, "nonfinite": ["train/loss"]},
    ]
    figure = training_figures([], records, CURVES)["curves"]
    title = " ".join(figure.get_suptitle().split())
    assert title == "Loss per target token and bits per byte over training"
    lines = drawn_lines(figure)
    assert lines == {
        "loss per target token": [([50, 100], [5.0, 4.0]), ([100], [4.5])],
        "bits per byte": [([100], [3.0])],
    }
    assert len(training_figures([], records[:2], CURVES)["curves"].axes) == 1
