"""Figures of heads and runs show the tables: α, densities, curves, and attention on a sentence."""

import numpy as np
import pandas as pd
import pytest

from figures_drawn import density_rows, layer_rows, table, tokens
from figures_drawn import maps as random_maps
from headwise.plots import runs as plots
from headwise.plots.attention_maps import COLOURS, LayerMaps, attention_maps

pytestmark = pytest.mark.slow


def titled(figure):
    return {axes.get_title().split("\n")[0]: axes for axes in figure.axes if axes.get_title()}


def lines(axes):
    points = [list(zip(*line.get_data(), strict=True)) for line in axes.lines]
    return [line_points for line_points in points if line_points]


def ends(**columns):
    return pd.DataFrame({"site": "cross", "layer": 1, "run": "a", **columns})


# -- α --------------------------------------------------------------------------------------------


def test_histograms_count_every_head_of_every_run_once():
    axes = titled(plots.alpha_histograms(ends(end=[1.01, 1.05, 1.55, 1.04, 1.999, 2.35])))
    bars = axes["cross-attention"].patches
    assert {round(bar.get_x(), 2): bar.get_height() for bar in bars if bar.get_height()} == {
        1.0: 3, 1.5: 1, 1.9: 1, 2.3: 1
    }  # fmt: skip
    assert axes["cross-attention"].get_title().endswith("\nmedian 1.30, 6 heads")


def test_start_against_end_pairs_the_same_head():
    start, end = [1.2, 1.8, 1.5], [1.1, 1.9, 1.4]
    (axes,) = titled(plots.alpha_start_end(ends(start=start, end=end))).values()
    points = [tuple(point) for point in axes.collections[0].get_offsets()]
    assert points == list(zip(start, end, strict=True))
    assert f"r = {np.corrcoef(start, end)[0, 1]:.2f}, 3 heads" in axes.get_title()
    (axes,) = titled(plots.alpha_start_end(ends(start=[1.5] * 3, end=end))).values()
    assert axes.get_title().endswith("\n3 heads")  # not defined: not shown


# -- density --------------------------------------------------------------------------------------


def test_violins_pool_heads_and_runs_by_their_queries():
    place = {"site": "cross", "layer": 1, "head": 1}
    bins = [(0.0, 0.1, 45, "a"), (1.0, 1.0, 5, "a"), (1.0, 1.0, 50, "b")]
    rows = [
        {**place, "low": low, "high": high, "n_queries": n, "run": r} for low, high, n, r in bins
    ]
    (axes,) = titled(plots.density_violins(pd.DataFrame(rows).assign(name="softmax"))).values()
    assert [text.get_text() for text in axes.texts] == ["55 %"]
    low, high = axes.collections[0].get_datalim(axes.transData).intervaly
    assert (low, high) == pytest.approx((0.05, 1.0))
    figure = plots.density_violins(table(density_rows))
    for axes in titled(figure).values():
        assert axes.texts[0].get_text() == "100 %"  # softmax
        assert [label.get_text() for label in axes.get_xticklabels()] == [
            "softmax", "1.5-entmax", "α-entmax"
        ]  # fmt: skip


# -- curves ---------------------------------------------------------------------------------------


def test_curve_is_the_mean_over_seeds_in_a_band_of_their_range():
    rows = [("s1", 100, 10.0), ("s1", 200, 20.0), ("s2", 100, 14.0), ("s2", 200, 18.0)]
    rows += [("s2", 300, 30.0)]  # not of all runs: left out
    scores = pd.DataFrame(rows, columns=["run", "update", "score"]).assign(
        name="softmax", corpus="c", metric="bits"
    )
    (axes,) = plots.score_curves(scores).axes
    assert axes.get_ylabel() == "validation bits"
    assert lines(axes) == [[(100, 12.0), (200, 19.0)]]
    (band,) = axes.collections
    corners = {(x, y) for x, y in band.get_paths()[0].vertices}
    assert {(100, 10.0), (100, 14.0), (200, 18.0), (200, 20.0)} == corners


def test_diversity_label_names_the_base():
    figure = plots.diversity_layers(table(lambda _: layer_rows(), ["softmax"]))
    first = titled(figure)["encoder self-attention"]
    assert first.get_ylabel().endswith("/ log(number of heads)")
    assert lines(first)[0] == [(n, pytest.approx(0.2 + n / 20)) for n in (1, 2, 3)]


# -- attention ------------------------------------------------------------------------------------


def cells(axes):
    """Which cells are grey, and the weights of the drawn cells."""
    masked, weights = (image.get_array() for image in axes.images)
    return ~np.ma.getmaskarray(masked), weights.filled(np.nan)


def test_exact_zeros_are_empty_and_the_smallest_weight_is_not():
    weights = np.array([[[1.0, 0.0, 0.0], [0.5, -0.5, 0.0], [1e-30, 0.0, 1.0]]])
    allowed = np.tril(np.ones((1, 3, 3), dtype=bool))
    names = ["<s>", "▁a", "▁b"]
    layer = LayerMaps(2, [3], weights, allowed, [1.834])
    figure = attention_maps("decoder_self", [layer], names, names, "")
    axes = titled(figure)["layer 2 head 3, α 1.83"]
    masked, drawn = cells(axes)
    assert (masked == ~allowed[0]).all()
    assert (np.isnan(drawn) == (weights[0] == 0)).all()
    assert [label.get_text() for label in axes.get_xticklabels()] == names
    assert axes.yaxis_inverted()
    assert figure.axes[-1].get_ylim() == (-1.0, 1.0)  # one weight is negative
    paper, least, below, full = (sum(COLOURS(at)[:3]) for at in (np.nan, 0.5 + 1e-3, 0.5 - 1e-3, 1))
    assert paper == 0  # transparent
    assert full < least < 2.7
    assert below < 2.7
    assert list(COLOURS(0.5 + 1e-3)) != list(COLOURS(0.5 - 1e-3))


def test_one_figure_shows_every_head():
    names = tokens(16)
    maps = random_maps(2, 8, 16)
    figure = attention_maps("encoder_self", maps, names, names, "text", "softmax, trained on it.")
    assert list(titled(figure)) == [
        f"layer {layer} head {head}, α 1.50" for layer in (1, 2) for head in range(1, 9)
    ]
    assert figure.axes[-1].get_ylim() == (0.0, 1.0)
    assert "softmax, trained on it." in " ".join(figure.get_supxlabel().split())


def test_site_without_heads_has_no_map():
    empty = LayerMaps(1, [], np.zeros((0, 2, 2)), np.ones((0, 2, 2), dtype=bool), [])
    assert attention_maps("cross", [empty], ["a", "b"], ["a", "b"], "") is None
    assert attention_maps("cross", [], ["a"], ["a"], "") is None


def test_lines_of_head_counts_are_means_over_seeds():
    rows = [
        {"name": "a", "run": seed, "n_heads": n, "measure": "accuracy", "value": n + seed}
        for n in (1, 2, 16)
        for seed in (1, 3)
    ]
    (axes,) = titled(plots.head_counts(pd.DataFrame(rows))).values()
    assert lines(axes)[0] == [(1, 3), (2, 4), (16, 18)]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["1", "2", "16"]
