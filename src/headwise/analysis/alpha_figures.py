"""What the α of the heads became: their distribution, and whether the start decided the end.

Runs that differ in their seed alone are pooled: every head of every run counts once.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from headwise.analysis.figure_style import (
    GREY,
    GRID,
    INK,
    LABEL,
    NOTE,
    REFERENCES,
    STYLES,
    dress,
    headline,
    known_sites,
    layer_bar,
    layer_colours,
    legend,
    new_figure,
    number_of,
    panels_width,
)
from headwise.schema import SITE_NAMES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MANY = 80  # heads a site, from which on the bins are narrow

Alphas = Mapping[str, Sequence[Sequence[float | None]]]  # site -> layers -> heads


def alpha_histograms(runs: Sequence[Alphas], name: str = "") -> Figure | None:
    """Heads by their α, a panel a site (Correia et al. 2019, section 5).

    Args:
        runs: α of the heads of each run, as in `results.json`.
        name: of what was trained, for the title.

    Returns:
        The figure; None when no head of any run has an α.
    """
    by_site = {site: _values(runs, site) for site in known_sites(s for run in runs for s in run)}
    by_site = {site: values for site, values in by_site.items() if values}
    if not by_site:
        return None
    edges = _edges(by_site)
    figure = new_figure(panels_width(len(by_site)), 2.2)
    panels = figure.subplots(1, len(by_site), sharey=True, squeeze=False)[0]
    top = 1.0
    for axes, (site, values) in zip(panels, by_site.items(), strict=True):
        dress(axes, x="α of a head", title=SITE_NAMES.get(site, site))
        counts, _, _ = axes.hist(
            values, edges, color=STYLES[0].fill, edgecolor=STYLES[0].colour, linewidth=0.7
        )
        top = max(top, *counts)
        _mark_rules(axes)
        median = statistics.median(values)
        axes.plot(
            [median],
            [0],
            marker="^",
            markersize=5,
            color=INK,
            linestyle="none",
            clip_on=False,
            zorder=5,
            label=f"median {median:.2f} of {number_of(len(values), 'head')}",
        )
        _legend_below(axes)
        axes.set_xlim(edges[0] - 0.02, edges[-1] + 0.02)
        axes.set_xticks([1.0, 1.25, 1.5, 1.75, 2.0])
        axes.yaxis.get_major_locator().set_params(integer=True)
    panels[0].set_ylabel("number of heads", fontsize=LABEL, color=INK)
    panels[0].set_ylim(0, 1.06 * top)
    what = f" ({name})" if name else ""
    headline(
        figure,
        f"The α that the heads learned{what}",
        f"Heads of {number_of(len(runs), 'run')}, in bins of {edges[1] - edges[0]:.2f}. Dashed: "
        "α at which a head computes softmax (1), 1.5-entmax and sparsemax (2).",
    )
    return figure


def alpha_start_end(runs: Sequence[tuple[Alphas, Alphas]], name: str = "") -> Figure | None:
    """α of every head before training against α after it, a panel a site.

    Args:
        runs: of each run, α at the first and at the last update that has one.
        name: of what was trained, for the title.

    Returns:
        The figure; None when no head has both.
    """
    sites = known_sites(site for start, end in runs for site in start if site in end)
    points = {site: found for site in sites if (found := _pairs(runs, site))}
    if not points:
        return None
    n_layers = max(layer for found in points.values() for layer, _, _ in found)
    colours = layer_colours(n_layers)
    figure = new_figure(panels_width(len(points)), 2.9)
    panels = list(figure.subplots(1, len(points), sharey=True, sharex=True, squeeze=False)[0])
    for axes, (site, found) in zip(panels, points.items(), strict=True):
        dress(axes, x="α at the start", title=SITE_NAMES.get(site, site))
        axes.axline((1.0, 1.0), slope=1.0, color=GREY, linewidth=0.7, linestyle=(0, (4, 3)))
        for layer in range(1, n_layers + 1):
            own = [(start, end) for number, start, end in found if number == layer]
            axes.plot(
                [start for start, _ in own],
                [end for _, end in own],
                linestyle="none",
                marker=STYLES[(layer - 1) % len(STYLES)].marker,
                markersize=3.6,
                color=colours(layer - 1),
                markeredgecolor="white",
                markeredgewidth=0.3,
                label=f"layer {layer}",
            )
        axes.set_aspect("equal")
        axes.set_title(
            f"{SITE_NAMES.get(site, site)}\n{_correlation(found)}", fontsize=LABEL, color=INK
        )
    low, high = _limits(points)
    panels[0].set(xlim=(low, high), ylim=(low, high))
    ticks = [1.0, 1.25, 1.5, 1.75, 2.0]
    panels[0].set_xticks(ticks)
    panels[0].set_yticks(ticks)
    panels[0].set_ylabel("α at the end", fontsize=LABEL, color=INK)
    if n_layers <= len(STYLES):
        legend(panels[-1], loc="center left", bbox_to_anchor=(1.0, 0.5), handlelength=1.0)
    else:
        layer_bar(figure, panels, colours)
    what = f" ({name})" if name else ""
    headline(
        figure,
        f"Where the α of the heads began and where they ended{what}",
        f"One point a head, of {number_of(len(runs), 'run')}. Below the dashed diagonal a head "
        "became denser, above it sparser. r: correlation of start and end.",
    )
    return figure


def _values(runs: Sequence[Alphas], site: str) -> list[float]:
    return [
        value
        for run in runs
        for layer in run.get(site, ())
        for value in layer
        if value is not None and math.isfinite(value)
    ]


def _pairs(runs: Sequence[tuple[Alphas, Alphas]], site: str) -> list[tuple[int, float, float]]:
    """Layer, start and end of every head that has both."""
    return [
        (layer, before, after)
        for start, end in runs
        for layer, (first, last) in enumerate(
            zip(start.get(site, ()), end.get(site, ()), strict=False), start=1
        )
        for before, after in zip(first, last, strict=False)
        if before is not None and after is not None
    ]


def _edges(by_site: Mapping[str, Sequence[float]]) -> list[float]:
    """Edges of equal bins over [1, 2], and further where some α lies outside."""
    n_bins = 20 if max(map(len, by_site.values())) >= MANY else 10
    everything = [value for values in by_site.values() for value in values]
    first = min(0, math.floor((min(everything) - 1) * n_bins))
    last = max(n_bins, math.ceil((max(everything) - 1) * n_bins))
    return [1 + place / n_bins for place in range(first, last + 1)]


def _limits(points: Mapping[str, Sequence[tuple[int, float, float]]]) -> tuple[float, float]:
    values = [value for found in points.values() for _, *both in found for value in both]
    return min(1.0, *values) - 0.03, max(2.0, *values) + 0.03


def _mark_rules(axes: Axes) -> None:
    """Where α makes a rule that has a name; the names stand in the note."""
    for alpha, _ in REFERENCES:
        axes.axvline(alpha, color=GRID, linewidth=0.7, linestyle=(0, (4, 3)), zorder=0)


def _legend_below(axes: Axes) -> None:
    legend(
        axes,
        loc="upper center",
        bbox_to_anchor=(0.5, -0.24),
        handlelength=1.0,
        fontsize=NOTE,
        borderaxespad=0.2,
    )


def _correlation(found: Sequence[tuple[int, float, float]]) -> str:
    """`r = 0.87, 48 heads`; without r where it is not defined."""
    starts, ends = [start for _, start, _ in found], [end for _, _, end in found]
    heads = number_of(len(found), "head")
    if len(found) < 3 or len(set(starts)) == 1 or len(set(ends)) == 1:
        return heads
    return f"r = {statistics.correlation(starts, ends):.2f}, {heads}"
