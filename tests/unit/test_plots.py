"""Figures: what they show, readable without colours, sized for print, reproducible bytes."""

import itertools
import logging
import textwrap

import numpy as np
import pandas as pd
import pytest
from matplotlib import pyplot, rc_context
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text

from figures_drawn import (
    FIGURES,
    HEADS,
    attention,
    axes_record,
    cells,
    figure_record,
    points,
    score_rows,
    shown_text,
    table,
)
from golden_files import assert_golden_record, rounded
from headwise.plots import runs as plots
from headwise.plots.attention_maps import COLOURS, LayerMaps, attention_maps
from headwise.plots.style import (
    RULES,
    TWO_COLUMNS,
    display_name,
    drawable,
    figure_bytes,
    save,
    series_style,
)
from headwise.plots.training import head_values, training_figures
from headwise.tasks.classification.metrics import confusion_matrix
from slow_marks import slow_but

# -- what the figures show ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", slow_but(FIGURES, "alpha", "diversity", "heads-p-of-ours", "curves", "attention_small")
)
def test_figures_show_their_tables(name):
    assert_golden_record(f"figures/{name}", figure_record(FIGURES[name]()))


def of_alphas(draw, start, end):
    return draw(pd.DataFrame({"site": "cross", "layer": 1, "run": "a", "start": start, "end": end}))


def rows(columns, values, **others):
    return pd.DataFrame(values, columns=columns.split()).assign(**others)


STARTS, ENDS = [1.2, 1.8, 1.5], [1.1, 1.9, 1.4]
QUERIES = [(0.0, 0.1, 45, "a"), (1.0, 1.0, 5, "a"), (1.0, 1.0, 50, "b")]
SCORES = [("s1", 100, 10.0), ("s1", 200, 20.0), ("s2", 100, 14.0), ("s2", 200, 18.0)]
SCORES += [("s2", 300, 30.0)]  # not of all runs: left out
COUNTS = [(seed, n, n + seed) for n in (1, 2, 16) for seed in (1, 3)]
PLACE = {"site": "cross", "layer": 1, "head": 1, "name": "softmax"}
BY_HAND = {
    "a histogram counts every head of every run once": (
        lambda: of_alphas(plots.alpha_histograms, 1.5, [1.01, 1.05, 1.55, 1.04, 1.999, 2.35]),
        {"bars": [[1.0, 3], [1.5, 1], [1.9, 1], [2.3, 1]], "title": "median 1.30, 6 heads"},
    ),
    "start and end are of the same head": (
        lambda: of_alphas(plots.alpha_start_end, STARTS, ENDS),
        {
            "areas": [[[1.2, 1.1], [1.8, 1.9], [1.5, 1.4]]],
            "title": f"r = {np.corrcoef(STARTS, ENDS)[0, 1]:.2f}, 3 heads",
        },
    ),
    "a correlation that is not defined is not shown": (
        lambda: of_alphas(plots.alpha_start_end, [1.5] * 3, ENDS), {"title": "3 heads"}
    ),
    "violins pool heads and runs by their queries": (
        lambda: plots.density_violins(rows("low high n_queries run", QUERIES, **PLACE)),
        {"texts": ["55 %"]},
    ),
    "curves are means over seeds": (
        lambda: plots.score_curves(
            rows("run update score", SCORES, name="softmax", corpus="c", metric="bits")
        ),
        {"lines": [[[100, 12.0], [200, 19.0]]], "areas": [[[100, 10.0], [200, 20.0]]]},
    ),
    "lines of head counts are means over seeds": (
        lambda: plots.head_counts(rows("run n_heads value", COUNTS, name="a", measure="accuracy")),
        {"lines": [[[1, 3], [2, 4], [16, 18]]], "ticks": ["1", "2", "16"]},
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", BY_HAND)
def test_values_are_those_by_hand(name):
    draw, expected = BY_HAND[name]
    shown = axes_record(draw().axes[0])
    shown["title"] = shown["title"].split("\n")[-1]
    assert rounded({part: shown[part] for part in expected}) == expected


def test_the_band_of_a_curve_is_the_range_of_seeds():
    (axes,) = BY_HAND["curves are means over seeds"][0]().axes
    corners = {(x, y) for x, y in axes.collections[0].get_paths()[0].vertices}
    assert corners == {(100, 10.0), (100, 14.0), (200, 18.0), (200, 20.0)}


def test_exact_zeros_are_empty_and_the_smallest_weight_is_not():
    weights = np.array([[[1.0, 0.0, 0.0], [0.5, -0.5, 0.0], [1e-30, 0.0, 1.0]]])
    allowed = np.tril(np.ones((1, 3, 3), dtype=bool))
    names = ["<s>", "▁a", "▁b"]
    figure = attention_maps(
        "decoder_self", [LayerMaps(2, [3], weights, allowed, [1.834])], names, names, ""
    )
    axes = figure.axes[0]
    masked, drawn = cells(axes)
    assert (masked == ~allowed[0]).all()
    assert (np.isnan(drawn) == (weights[0] == 0)).all()
    assert axes.get_title() == "layer 2 head 3, α 1.83"
    assert axes.yaxis_inverted()
    assert figure.axes[-1].get_ylim() == (-1.0, 1.0)  # one weight is negative
    paper, least, below, full = (sum(COLOURS(at)[:3]) for at in (np.nan, 0.5 + 1e-3, 0.5 - 1e-3, 1))
    assert paper == 0  # transparent
    assert full < least < 2.7
    assert below < 2.7
    assert list(COLOURS(0.5 + 1e-3)) != list(COLOURS(0.5 - 1e-3))


@pytest.mark.parametrize(
    "layers", [[], [LayerMaps(1, [], np.zeros((0, 2, 2)), np.ones((0, 2, 2), dtype=bool), [])]]
)
def test_site_without_heads_has_no_map(layers):
    assert attention_maps("cross", layers, ["a", "b"], ["a", "b"], "") is None


@pytest.mark.parametrize(("n_layers", "n_tokens"), [(2, 300), (200, 3), (1, 61)])
def test_maps_of_long_texts_and_deep_models_are_bounded(n_layers, n_tokens, monkeypatch):
    monkeypatch.setattr("headwise.plots.attention_maps.MAX_MAPS", 4)
    figure = attention("encoder_self", n_layers, 2, n_tokens, "text")
    maps = [axes for axes in figure.axes if axes.images]
    assert len(maps) == 2 * min(n_layers, 2)
    assert maps[0].images[1].get_array().shape == (min(n_tokens, 60),) * 2
    assert maps[-1].get_title().startswith(f"layer {n_layers} head 2")
    note = shown_text(figure.get_supxlabel())
    assert ("the first 60 are drawn" in note) == (n_tokens > 60)
    assert ("Of 200 layers" in note) == (n_layers == 200)


# -- training -------------------------------------------------------------------------------------


def test_records_give_one_row_per_value_with_head_numbers():
    alphas = {"encoder_self": [[1.1, None], []], "cross": [[1.2, 1.3], [1.5, 1.6]]}
    record = {"update": 0, "alpha": alphas, "diversity": {"cross": [[0.2], [0.4]]}}
    values = head_values([record], {"cross": [[2, 8], [4, 7]], "encoder_self": [[1, 2], []]})
    assert values.values.tolist() == [
        [0, "alpha", "encoder_self", 1, 1, 1.1],  # missing values have no row
        [0, "alpha", "cross", 1, 2, 1.2], [0, "alpha", "cross", 1, 8, 1.3],
        [0, "alpha", "cross", 2, 4, 1.5], [0, "alpha", "cross", 2, 7, 1.6],
        [0, "diversity", "cross", 1, 1, 0.2],  # of layers: no head was pruned
        [0, "diversity", "cross", 2, 1, 0.4],
    ]  # fmt: skip


def test_every_reported_measure_has_a_figure():
    assert list(training_figures(HEADS, [], {})) == ["alpha", "diversity", "heads-p-of-ours"]
    assert training_figures([{"update": 2, "alpha": {}}], [{"update": 1}], {"loss": "loss"}) == {}
    curves = training_figures([], [{"update": 1, "train/loss": 5.0}], {"loss": "a", "bits": "b"})
    assert len(curves["curves"].axes) == 1


@pytest.mark.parametrize(("n_heads", "n_drawn"), [(1, 50), (4, 25), (60, 2)])
def test_lines_of_many_heads_have_fewer_points(n_heads, n_drawn, monkeypatch):
    monkeypatch.setattr("headwise.plots.training.MAX_POINTS", 100)
    records = [{"update": update, "alpha": {"cross": [[1.5] * n_heads]}} for update in range(50)]
    (axes,) = training_figures(records, [], {})["alpha"].axes
    *lines, _, _, _ = points(axes)  # the last are those of softmax, 1.5-entmax and sparsemax
    assert (len(lines), len(lines[0])) == (n_heads, n_drawn)
    assert (lines[0][0], lines[0][-1]) == ([0, 1.5], [49, 1.5])


# -- style ----------------------------------------------------------------------------------------


def test_styles_are_the_same_in_every_figure_and_distinct():
    names = ["softmax", *(f"row {number}" for number in range(20))]
    style = series_style(names)
    parts = [style[part] for part in ("palette", "markers", "dashes")]
    assert len({tuple(part[name] for part in parts) for name in names}) == 21
    other = series_style(["x", "softmax", "alpha_entmax"])
    assert all(other[part]["softmax"] == style[part]["softmax"] for part in ("palette", "markers"))
    for one, two in itertools.combinations([*RULES, "x"], 2):  # also without any colour
        few = series_style([*RULES, "x"])
        assert few["markers"][one] != few["markers"][two]
        assert few["dashes"][one] != few["dashes"][two]


def test_names_are_those_of_the_papers():
    assert display_name("alpha_entmax") == "α-entmax"
    assert display_name("entmax15, pattern fixed") == "1.5-entmax, pattern fixed"
    assert display_name("softmax (cross entmax15)") == "softmax (cross 1.5-entmax)"
    assert display_name("loss_entmax15 entmax15b") == "loss_entmax15 entmax15b"


@pytest.mark.slow
def test_figures_are_reproducible(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    first = save(FIGURES["attention_small"](), tmp_path / "a" / "maps.png")
    assert [path.name for path in first] == ["maps.png", "maps.svg", "maps.pdf"]
    second = save(FIGURES["attention_small"](), tmp_path / "b" / "maps")
    for one, other in zip(first, second, strict=True):
        assert one.read_bytes() == other.read_bytes()
        assert one.stat().st_size > 2000
    assert b"CreationDate" not in first[2].read_bytes()
    assert len(list((tmp_path / "a").iterdir())) == 3, "temporary files remain"
    assert not caplog.records, "only commands log this"


def test_figures_named_by_numbers_do_not_replace_each_other(tmp_path):
    names = [
        save(FIGURES["attention_small"](), tmp_path / name, ["svg"])[0].name
        for name in ("alpha_init_1.05", "alpha_init_1.5", "maps.png")
    ]
    assert names == ["alpha_init_1.05.svg", "alpha_init_1.5.svg", "maps.svg"]


def test_failed_figure_is_a_warning_and_keeps_the_old_file(tmp_path, caplog):
    (tmp_path / "f.png").write_text("before")
    figure = Figure(figsize=(1, 1))
    figure.text(0, 0, "$\\nonsense$", parse_math=True)
    assert save(figure, tmp_path / "f.png", ["png"]) == []
    assert [path.name for path in tmp_path.iterdir()] == ["f.png"]
    assert (tmp_path / "f.png").read_text() == "before"
    (record,) = caplog.records
    assert record.getMessage().startswith("the figure f.png is left out (ValueError: ")


def drawn_texts(figure):
    figure_bytes(figure, "svg")
    return {text.get_text() for text in figure.findobj(Text)}


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        *((name, name) for name in ("a $\\frac$ b $5 and $6", "a_b^c \\alpha %שלום 😀", "")),
        ("x" * 400, f"{'x' * 79}…{'x' * 40}"),
    ],
    ids=["mathematics", "right to left", "empty", "long"],
)
def test_names_are_drawn_as_text(name, shown):
    """Whatever they contain; a warning of a layout without space would be an error here."""
    counts = pd.DataFrame([[1, 2], [3, 4]], [name, "b"], [name, "b"])
    assert drawable(name, 24) in drawn_texts(confusion_matrix(counts, name))
    of_names = table(score_rows, [f"softmax {name}", "b"], 1).assign(corpus=name)
    legend = drawn_texts(plots.score_curves(of_names))
    assert textwrap.fill(display_name(f"softmax {name}"), 40) in legend
    title = shown_text(attention("cross", 1, 2, 3, name).get_suptitle())
    assert title.startswith(f"cross-attention: {shown[:20]}".strip(": "))
    assert display_name(name) == shown


def test_figures_do_not_have_the_style_of_the_user():
    with rc_context({"text.usetex": True, "figure.facecolor": "red"}):  # LaTeX may be missing
        figure = attention("cross", 1, 1, 2, "text")
        assert figure_bytes(figure, "png")
    assert figure.get_facecolor() == (1, 1, 1, 1)


def test_characters_without_a_font_are_one_warning(caplog):
    figure = Figure(figsize=(1, 1))
    figure.text(0, 0, "\u0378 \u0379 x")  # not assigned, and in no other test
    for kind in ("png", "svg"):
        figure_bytes(figure, kind)
    (message,) = caplog.messages
    assert "\u0378\u0379, which no font has: install Noto Sans CJK JP" in message


@pytest.mark.parametrize("n_classes", [3, 51, 1500])
def test_the_most_confused_classes_are_drawn(n_classes):
    """Above 50, in their order, with their share of all examples of the label."""
    cells = np.eye(n_classes, dtype=int) * 6
    cells[n_classes - 1, 0] = cells[1, n_classes - 1] = 2
    names = [f"class {number}" for number in range(n_classes)]
    figure = confusion_matrix(pd.DataFrame(cells, names, names), "Predictions")
    drawn = figure.axes[0].collections[0].get_array()
    n_drawn = min(n_classes, 50)
    assert drawn.shape == (n_drawn, n_drawn)
    assert drawn[-1, 0] == drawn[1, -1] == pytest.approx(0.25)
    assert drawn[0, 0] == 1
    some = f": the 50 most confused of {n_classes:,} classes" if n_classes > 50 else ""
    assert figure.axes[0].get_title() == f"Predictions{some}"
    assert len(figure_bytes(figure, "svg")) < 3_000_000


def test_large_figures_have_fewer_dots():
    data = figure_bytes(Figure(figsize=(4, 625)), "png")
    width, height = (int.from_bytes(data[at : at + 4]) for at in (16, 20))
    assert (width, height) == (400, 62_500)


@pytest.mark.slow
@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_fits_the_page(name):
    """At most two columns wide, no text outside of the page, and pyplot is not used."""
    figure = FIGURES[name]()
    width, height = figure.get_size_inches()
    assert width <= TWO_COLUMNS
    FigureCanvasAgg(figure).draw()
    box = figure.get_tightbbox()
    assert box.x0 > -0.01
    assert box.y0 > -0.01
    assert box.x1 < width + 0.01
    assert box.y1 < height + 0.01
    assert pyplot.get_fignums() == []
