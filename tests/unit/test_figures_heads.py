"""Figures of heads show the tables: α, densities, and the attention of one sentence."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from figures_drawn import alphas, density_rows, head_rows, maps, pieces
from headwise.analysis.alpha_figures import alpha_histograms, alpha_start_end
from headwise.analysis.attention_figures import LayerMaps, attention_maps
from headwise.analysis.density_figures import density_layers, density_violins


def titled(figure: Any) -> dict[str, Any]:
    return {axes.get_title().split("\n")[0]: axes for axes in figure.axes if axes.get_title()}


def words(figure: Any) -> str:
    from matplotlib.text import Text

    return " ".join(" ".join(t.get_text().split()) for t in figure.findobj(Text) if t.get_text())


# -- α --------------------------------------------------------------------------------------------


def test_histograms_count_every_head_of_every_run_once() -> None:
    runs = [
        {"encoder_self": [[1.01, 1.05], [1.55]], "cross": [[1.999, None]]},
        {"encoder_self": [[1.04, 1.95], []]},
    ]
    figure = alpha_histograms(runs, "α-entmax")
    panels = titled(figure)
    assert list(panels) == ["encoder self-attention", "cross-attention"]
    bars = panels["encoder self-attention"].patches
    assert len(bars) == 10
    counts = {round(bar.get_x(), 2): bar.get_height() for bar in bars if bar.get_height()}
    assert counts == {1.0: 3, 1.5: 1, 1.9: 1}
    assert [bar.get_height() for bar in panels["cross-attention"].patches] == [0] * 9 + [1]
    assert all(axes.get_ylim()[1] > 3 for axes in panels.values())  # no bar is cut
    assert "median 1.05 of 5 heads" in words(figure)
    assert "2 runs" in words(figure)
    assert "α-entmax" in words(figure)


def test_many_heads_have_finer_bins_and_an_alpha_above_two_has_one() -> None:
    many = [{"cross": [[1.2] * 50, [1.9] * 50]}]
    assert len(titled(alpha_histograms(many))["cross-attention"].patches) == 20
    beyond = [{"cross": [[1.2, 2.35]]}]
    bars = titled(alpha_histograms(beyond))["cross-attention"].patches
    assert sum(bar.get_height() for bar in bars) == 2


def test_start_against_end_pairs_the_same_head() -> None:
    start = {"cross": [[1.2, 1.8], [1.5, None]], "decoder_self": [[1.1]]}
    end = {"cross": [[1.1, 1.9], [1.4, 1.3]]}
    figure = alpha_start_end([(start, end)])
    (axes,) = titled(figure).values()
    points = {
        line.get_label(): list(zip(line.get_xdata(), line.get_ydata(), strict=True))
        for line in axes.lines
        if line.get_label().startswith("layer")
    }
    assert points == {"layer 1": [(1.2, 1.1), (1.8, 1.9)], "layer 2": [(1.5, 1.4)]}
    expected = np.corrcoef([1.2, 1.8, 1.5], [1.1, 1.9, 1.4])[0, 1]
    assert f"r = {expected:.2f}, 3 heads" in axes.get_title()


def test_a_correlation_that_is_not_defined_is_not_told() -> None:
    flat = [({"cross": [[1.5, 1.5, 1.5]]}, {"cross": [[1.1, 1.2, 1.3]]})]
    (axes,) = titled(alpha_start_end(flat)).values()
    assert axes.get_title().endswith("\n3 heads")


def test_without_alpha_there_is_nothing() -> None:
    assert alpha_histograms([]) is None
    assert alpha_histograms([{"cross": [[None]]}]) is None
    assert alpha_start_end([({}, alphas(1))]) is None


# -- density --------------------------------------------------------------------------------------


def row(low: float, high: float, n: int, **place: Any) -> dict[str, Any]:
    known = {"site": "cross", "layer": 1, "head": 1, **place}
    return {**known, "low": low, "high": high, "n_queries": n}


def areas(axes: Any) -> list[float]:
    """Of the violins below 1, from left to right by their middle."""
    from matplotlib.collections import PolyCollection

    found = []
    for part in axes.collections:
        if isinstance(part, PolyCollection):
            x, y = part.get_paths()[0].vertices.T
            area = abs(np.dot(x, np.roll(y, 1)) - np.dot(y, np.roll(x, 1))) / 2
            found.append(((x.min() + x.max()) / 2, area))
    return [area for _, area in sorted(found)]


def test_the_area_of_a_violin_is_its_share_of_the_queries() -> None:
    sparse = [row(0.0, 0.05, 10), row(0.05, 0.1, 30), row(0.1, 0.15, 60), row(1.0, 1.0, 0)]
    half = [row(0.3, 0.35, 20, head=2), row(0.35, 0.4, 30, head=2), row(1.0, 1.0, 50, head=2)]
    figure = density_violins({"a": [sparse], "b": [half]})
    (axes,) = titled(figure).values()
    whole, rest = areas(axes)
    assert rest == pytest.approx(whole / 2)
    (bar,) = axes.patches  # of the dense queries
    assert bar.get_y() > 1.05  # clear of the violins
    assert axes.spines["left"].get_bounds() == (0, 1)
    ticks = dict(zip(axes.get_yticks(), axes.get_yticklabels(), strict=True))
    assert ticks[1.0].get_text() == "1"
    (own,) = [place for place, label in ticks.items() if label.get_text() == "exactly 1"]
    assert bar.get_y() < own < bar.get_y() + bar.get_height()
    assert bar.get_width() == pytest.approx(0.84 / 2)
    assert [text.get_text() for text in axes.texts] == ["0 %", "50 %"]


def test_heads_and_runs_are_pooled_by_their_queries() -> None:
    one = [
        row(0.0, 0.1, 85),
        row(0.95, 1.0, 5),
        row(1.0, 1.0, 0),
        row(0.0, 0.1, 0, head=2),
        row(1.0, 1.0, 5, head=2),
    ]
    other = [row(0.0, 0.1, 4), row(1.0, 1.0, 1)]
    (axes,) = titled(density_violins({"a": [one, other]})).values()
    assert [text.get_text() for text in axes.texts] == ["6 %"]


def test_softmax_is_a_bar_at_one() -> None:
    figure = density_violins({"softmax": [density_rows("softmax")]})
    for axes in titled(figure).values():
        assert areas(axes) == []
        (bar,) = axes.patches
        assert bar.get_width() == pytest.approx(0.84)
        (dot,) = [line for line in axes.lines if line.get_marker() == "o"]
        assert bar.get_y() < dot.get_ydata()[0] < bar.get_y() + bar.get_height()
        assert [text.get_text() for text in axes.texts] == ["100 %"]


def test_the_median_lies_where_half_of_the_queries_are_below() -> None:
    rows = [row(0.2, 0.3, 40), row(0.3, 0.4, 40), row(1.0, 1.0, 20)]
    (axes,) = titled(density_violins({"a": [rows]})).values()
    (dot,) = [line for line in axes.lines if line.get_marker() == "o"]
    assert dot.get_ydata()[0] == pytest.approx(0.325)
    (span,) = [line for line in axes.lines if line.get_marker() != "o"]
    assert list(span.get_ydata()) == pytest.approx([0.2625, 0.3875])


def test_lines_join_heads_of_one_rank_and_average_runs() -> None:
    def rows(*densities: tuple[int, int, float]) -> list[dict[str, Any]]:
        return [
            {"site": "cross", "layer": layer, "head": head, "density": value}
            for layer, head, value in densities
        ]

    first = rows((1, 1, 0.2), (1, 2, 0.8), (2, 1, 0.5))
    second = rows((1, 1, 0.6), (1, 2, 0.4), (2, 1, 0.7))
    figure = density_layers({"alpha_entmax": [first, second]})
    (axes,) = titled(figure).values()
    lines = [(list(line.get_xdata()), list(line.get_ydata())) for line in axes.lines]
    assert lines == [([1, 2], pytest.approx([0.7, 0.6])), ([1], pytest.approx([0.3]))]


def test_what_is_dense_everywhere_is_told_and_takes_no_room() -> None:
    figure = density_layers({"softmax": [head_rows("softmax")], "entmax15": [head_rows("x")]})
    assert len(figure.axes) == 3
    assert "Density 1 everywhere: softmax." in words(figure)
    assert "lines join heads of equal rank" in words(figure)
    assert density_layers({"softmax": [head_rows("softmax")]}) is not None
    assert (
        density_layers({"a": [[{"site": "cross", "layer": 1, "head": 1, "density": None}]]}) is None
    )
    assert density_violins({}) is None


# -- attention ------------------------------------------------------------------------------------


def drawn_cells(axes: Any) -> dict[tuple[int, int], Any]:
    """(row, column) -> colour of the cells that are drawn."""
    weights = axes.collections[0]
    corners = [tuple(path.vertices[0].astype(int)) for path in weights.get_paths()]
    return dict(zip([(r, c) for c, r in corners], weights.get_facecolors(), strict=True))


def barred_cells(axes: Any) -> set[tuple[int, int]]:
    hatched = [part for part in axes.collections if part.get_hatch()]
    return {(int(p.vertices[0][1]), int(p.vertices[0][0])) for h in hatched for p in h.get_paths()}


def test_exact_zeros_are_empty_and_the_smallest_weight_is_not() -> None:
    weights = np.array([[[1.0, 0.0, 0.0], [0.5, 0.5, 0.0], [1e-30, 0.0, 1.0]]])
    allowed = np.tril(np.ones((1, 3, 3), dtype=bool))
    layer = LayerMaps(2, [3], weights, allowed, [1.834])
    (figure,) = attention_maps(
        "decoder_self", [layer], ["<s>", "▁a", "▁b"], ["<s>", "▁a", "▁b"], ""
    )
    axes = titled(figure)["head 3, α 1.83"]
    cells = drawn_cells(axes)
    assert set(cells) == {(0, 0), (1, 0), (1, 1), (2, 0), (2, 2)}
    assert barred_cells(axes) == {(0, 1), (0, 2), (1, 2)}
    lightness = {cell: sum(colour[:3]) for cell, colour in cells.items()}
    assert lightness[0, 0] < lightness[1, 0] == lightness[1, 1] < lightness[2, 0] < 2.7
    assert [label.get_text() for label in axes.get_xticklabels()] == ["<s>", "▁a", "▁b"]
    assert axes.yaxis_inverted()
    assert "layer 2" in words(figure)


def test_weights_below_zero_are_marked() -> None:
    weights = np.array([[[0.5, -0.5], [2.0, 0.0]]])
    layer = LayerMaps(1, [1], weights, np.ones((1, 2, 2), dtype=bool), [None])
    (figure,) = attention_maps("cross", [layer], ["a", "b"], ["c", "d"], "e")
    axes = titled(figure)["head 1"]
    (marks,) = [line for line in axes.lines if line.get_marker() == "_"]
    assert (list(marks.get_xdata()), list(marks.get_ydata())) == ([1.5], [0.5])
    cells = drawn_cells(axes)
    assert list(cells[0, 0]) == list(cells[0, 1])
    assert "above 0 to 2; –: below 0" in words(figure)


@pytest.mark.parametrize(("n_heads", "n_pieces"), [(4, 5), (8, 16), (5, 30), (1, 60)])
def test_pages_hold_every_head_once_in_legible_type(n_heads: int, n_pieces: int) -> None:
    names = pieces(n_pieces)
    figures = attention_maps("encoder_self", maps(2, n_heads, n_pieces), names, names, "text")
    titles = [axes.get_title() for figure in figures for axes in figure.axes if axes.get_title()]
    assert titles == [f"head {head}, α 1.50" for head in range(1, n_heads + 1)] * 2
    for figure in figures:
        width, height = figure.get_size_inches()
        assert width <= 7.0
        assert height <= 9.0
        axes = next(iter(titled(figure).values()))
        assert 4.99 <= axes.get_xticklabels()[0].get_fontsize() <= 6.5
        if len(figures) > 1:
            assert f"of {len(figures)}" in words(figure)


@pytest.mark.parametrize(("largest", "ticks"), [(1, [0.05, 0.25, 0.5, 1]), (2, [0.1, 0.5, 1, 2])])
def test_the_colour_bar_says_which_weight_a_colour_is(largest: float, ticks: list[float]) -> None:
    from matplotlib.colors import to_rgb

    weights = largest * np.array([[[0.05, 0.25], [0.5, 1.0]]])
    layer = LayerMaps(1, [1], weights, np.ones((1, 2, 2), dtype=bool), [None])
    about = "softmax, trained on a corpus. The target is the model's own translation."
    (figure,) = attention_maps("cross", [layer], ["a", "b"], ["c", "d"], "", about)
    assert about in words(figure)
    cells = list(drawn_cells(titled(figure)["head 1"]).values())
    bar = figure.axes[-1]
    named = {
        text.get_text(): text.get_position()[0]
        for text in bar.texts
        if text.get_text() in {f"{tick:g}" for tick in ticks}
    }
    assert [float(name) for name in named] == ticks
    steps = [patch for patch in bar.patches if patch.get_fill() and not patch.get_hatch()]
    for colour, x in zip(cells, named.values(), strict=True):
        at = min(steps, key=lambda step: abs(step.get_x() + step.get_width() / 2 - x))
        assert list(to_rgb(at.get_facecolor())) == pytest.approx(list(colour[:3]), abs=0.03)


def test_a_site_without_heads_has_no_map() -> None:
    empty = LayerMaps(1, [], np.zeros((0, 2, 2)), np.ones((0, 2, 2), dtype=bool), [])
    assert attention_maps("cross", [empty], ["a", "b"], ["a", "b"], "") == []
    assert attention_maps("cross", [], ["a"], ["a"], "") == []
