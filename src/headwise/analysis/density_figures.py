"""How sparse the heads are: distributions over queries, and the heads of every layer.

Data come as name -> one table a run: runs under one name differ in their seed alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, zip_longest
from statistics import fmean
from typing import TYPE_CHECKING, Any

from headwise.analysis.figure_style import (
    DOUBLE,
    GREY,
    INK,
    LABEL,
    NOTE,
    TICK,
    Style,
    dress,
    dress_layers,
    headline,
    known_sites,
    new_figure,
    number_of,
    panels_width,
    shown,
    styles_of,
)
from headwise.schema import SITE_NAMES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Rows = Sequence[Mapping[str, Any]]
TablesOf = Mapping[str, Sequence[Rows]]  # name -> one table a run
Histogram = Sequence[tuple[float, float, float]]  # low, high, share of the queries
N_BINS = 10  # drawn: in finer ones, 1/2 and 1/3 of a few keys stand out as teeth
HALF_WIDTH = 0.42
MOST_BESIDE = 4  # violins in a panel, where the panels stand side by side
BAR_LOW, BAR_HIGH = 1.09, 1.15  # of the bars for a density of exactly 1, clear of the violins
BAR_MIDDLE = (BAR_LOW + BAR_HIGH) / 2


def density_violins(densities: TablesOf, what: str = "", text: str = "") -> Figure | None:
    """Densities of all heads over all queries, a panel a site, a violin a name.

    A violin is the histogram itself, mirrored: nothing is smoothed, so that a mode at exactly 1
    stays one (Correia et al. 2019, section 5).

    Args:
        densities: rows of the table DENSITY.
        what: was trained, for the title.
        text: on which it was measured, for the note.

    Returns:
        The figure; None when there is no row.
    """
    sites = known_sites(_sites(densities))
    if not sites:
        return None
    styles = styles_of(densities)
    pooled = {
        (site, name): found
        for site in sites
        for name, runs in densities.items()
        if (found := _pooled(runs, site))
    }
    bins = [found for of in pooled.values() for found in of if found[1] > found[0]]
    densest_bin = max((share / (high - low) for low, high, share in bins), default=0) or 1.0
    if len(densities) <= MOST_BESIDE:
        figure = new_figure(panels_width(len(sites)), 2.6)
        panels = figure.subplots(1, len(sites), sharey=True, squeeze=False)[0]
    else:  # one site below the other
        figure = new_figure(DOUBLE, 0.6 + 2.1 * len(sites))
        panels = figure.subplots(len(sites), 1, sharey=True, squeeze=False)[:, 0]
    for axes, site in zip(panels, sites, strict=True):
        dress(axes)
        axes.set_title(SITE_NAMES.get(site, site), fontsize=LABEL, color=INK, pad=11)
        names = [name for name in densities if (site, name) in pooled]
        for place, name in enumerate(names):
            histogram = pooled[site, name]
            _violin(axes, place, histogram, styles[name], HALF_WIDTH / densest_bin)
            _dense_bar(axes, place, histogram, styles[name])
            _median(axes, place, histogram)
        axes.set_xticks(range(len(names)), [shown(name) for name in names], fontsize=TICK)
        _tilt(axes, names, 36 if len(densities) <= MOST_BESIDE else 110)
        axes.set_xlim(-0.55, len(names) - 0.45)
        axes.set_ylim(0, BAR_HIGH)
        axes.set_yticks(
            [0, 0.25, 0.5, 0.75, 1, BAR_MIDDLE], ["0", "0.25", "0.5", "0.75", "1", "exactly 1"]
        )
        axes.spines["left"].set_bounds(0, 1)  # the bars have a scale of their own
        if axes is panels[0] or len(densities) > MOST_BESIDE:
            axes.set_ylabel("density of a query", fontsize=LABEL, color=INK)
    headline(
        figure,
        "Density: which share of its visible keys a query gives a weight above zero"
        f"{f' ({what})' if what else ''}",
        f"Every query of every head counts once; {_counts(densities)}. Area of a violin: share of "
        "the queries below 1, on one scale. Bar and number on top: share of those at exactly 1, "
        "which use every key, as under softmax (and the decoder's first position, which sees "
        f"one); line under the bar: all. Dot: median; upright line: middle half. {text}",
    )
    return figure


def density_layers(heads: TablesOf, what: str = "", text: str = "") -> Figure | None:
    """Mean density of each head by layer, a line a rank, a row of panels a name.

    The heads of a layer are sorted, so that the lines join heads of one rank, not of one number:
    heads of different layers have nothing to do with each other (Correia et al. 2019, section 5).

    Args:
        heads: rows of the table HEADS.
        what: was trained, for the title.
        text: on which it was measured, for the note.

    Returns:
        The figure; None when no head has a density.
    """
    measured = {
        name: [[row for row in rows if row.get("density") is not None] for rows in runs]
        for name, runs in heads.items()
    }
    measured = {name: runs for name, runs in measured.items() if any(map(any, runs))}
    if not measured:
        return None
    everything = measured
    dense = [name for name, runs in measured.items() if _is_dense(runs)]
    if len(dense) < len(measured):  # nothing to see there
        measured = {name: runs for name, runs in measured.items() if name not in dense}
    else:
        dense = []
    sites = known_sites(_sites(measured))
    n_layers = max(row["layer"] for runs in measured.values() for rows in runs for row in rows)
    styles = styles_of(heads)
    figure = new_figure(panels_width(len(sites)), 0.75 + 1.45 * len(measured))
    grid = figure.subplots(len(measured), len(sites), sharex=True, sharey=True, squeeze=False)
    for row, (name, runs) in enumerate(measured.items()):
        for column, site in enumerate(sites):
            axes = grid[row][column]
            dress(axes, title=SITE_NAMES.get(site, site) if row == 0 else "")
            _rank_lines(axes, _by_rank(runs, site, n_layers), styles[name])
            dress_layers(axes, n_layers)
            if row < len(measured) - 1:
                axes.set_xlabel("")
        grid[row][0].set_ylabel(f"{shown(name)}\ndensity of a head", fontsize=LABEL, color=INK)
    grid[0][0].set_ylim(0, 1.03)
    several = any(len(runs) > 1 for runs in measured.values())
    told = f" Density 1 everywhere: {', '.join(map(shown, dense))}." if dense else ""
    figure_title = "Mean density of the heads of each layer"
    headline(
        figure,
        f"{figure_title}{f' ({what})' if what else ''}",
        "Density: share of the keys a query may see whose weight is above zero. The heads of each "
        "layer are sorted from the densest to the sparsest, and lines join heads of equal rank; "
        f"shaded: their spread; {_counts(everything)}"
        f"{', means rank by rank' if several else ''}.{told} {text}",
    )
    return figure


def _sites(tables: TablesOf) -> set[str]:
    return {row["site"] for runs in tables.values() for rows in runs for row in rows}


def _counts(densities: TablesOf) -> str:
    """`3 runs of α-entmax, …`, short where all have as many."""
    numbers = {len(runs) for runs in densities.values()}
    if len(numbers) == 1:
        (n_runs,) = numbers
        return number_of(n_runs, "run") + (" each" if len(densities) > 1 else "")
    return ", ".join(f"{shown(n)}: {number_of(len(r), 'run')}" for n, r in densities.items())


def _pooled(runs: Sequence[Rows], site: str) -> Histogram:
    """Shares of all queries of all heads and runs, in ascending bins."""
    counts: dict[tuple[float, float], int] = {}
    for rows in runs:
        for row in rows:
            if row["site"] == site:
                edges = _drawn_bin(row["low"], row["high"])
                counts[edges] = counts.get(edges, 0) + row["n_queries"]
    total = sum(counts.values())
    return [(*edges, counts[edges] / total) for edges in sorted(counts)] if total else []


def _drawn_bin(low: float, high: float) -> tuple[float, float]:
    """The bin of a violin that a bin of the table lies in; itself where it crosses one's edge."""
    place = math.floor(low * N_BINS + 1e-9)
    if low == high or high > (place + 1) / N_BINS + 1e-9:
        return low, high
    return place / N_BINS, (place + 1) / N_BINS


def _violin(
    axes: Axes, place: float, histogram: Histogram, style: Style, half_width: float
) -> None:
    """Mirrored bins below 1, half as wide as their share over their height times `half_width`."""
    for part in _unbroken(histogram):
        levels = [edge for low, high, _ in part for edge in (low, high)]
        halves = [half_width * share / (high - low) for low, high, share in part for _ in range(2)]
        axes.fill_betweenx(
            levels,
            [place - half for half in halves],
            [place + half for half in halves],
            facecolor=style.fill,
            edgecolor=style.colour,
            hatch=style.hatch,
            linewidth=0.6,
        )


def _dense_bar(axes: Axes, place: float, histogram: Histogram, style: Style) -> None:
    """The share of the queries with a density of exactly 1, as a bar and in numbers."""
    share = _dense_share(histogram)
    axes.hlines(
        BAR_LOW, place - HALF_WIDTH, place + HALF_WIDTH, color=GREY, linewidth=0.5, clip_on=False
    )
    if share:
        axes.bar(
            [place],
            [BAR_HIGH - BAR_LOW],
            bottom=BAR_LOW,
            width=2 * HALF_WIDTH * share,
            facecolor=style.fill,
            edgecolor=style.colour,
            hatch=style.hatch,
            linewidth=0.6,
            clip_on=False,
        )
    axes.annotate(
        "< 1 %" if 0 < share < 0.005 else f"{100 * share:.0f} %",
        xy=(place, BAR_HIGH),
        xytext=(0, 2),
        textcoords="offset points",
        ha="center",
        fontsize=NOTE,
        color=INK,
        annotation_clip=False,
    )


def _median(axes: Axes, place: float, histogram: Histogram) -> None:
    """The median as a dot, the middle half as a line; what is exactly 1 lies on the bar."""
    quartiles = [_quantile(histogram, share) for share in (0.25, 0.5, 0.75)]
    if _dense_share(histogram):
        quartiles = [BAR_MIDDLE if value == 1.0 else value for value in quartiles]
    first, middle, third = quartiles
    axes.plot([place, place], [first, third], color=INK, linewidth=1.4, solid_capstyle="butt")
    axes.plot(
        [place],
        [middle],
        marker="o",
        markersize=3.2,
        markerfacecolor="white",
        markeredgecolor=INK,
        markeredgewidth=0.8,
        linestyle="none",
        zorder=4,
        clip_on=False,
    )


def _dense_share(histogram: Histogram) -> float:
    return sum(found for low, _, found in histogram if low == 1.0)


def _unbroken(histogram: Histogram) -> list[Histogram]:
    """The bins below 1 that hold something, cut where empty ones lie between."""
    parts: list[list[tuple[float, float, float]]] = [[]]
    for found in histogram:
        low, high, share = found
        if share and high > low:
            parts[-1].append(found)
        elif parts[-1]:
            parts.append([])
    return [part for part in parts if part]


def _quantile(histogram: Histogram, share: float) -> float:
    """Where so much of the queries lies below, straight within a bin."""
    below = [0.0, *accumulate(found for _, _, found in histogram)]
    for (low, high, found), before in zip(histogram, below, strict=False):
        if found and before + found >= share - 1e-12:
            return low + (high - low) * (share - before) / found
    return histogram[-1][1]


def _tilt(axes: Axes, names: Sequence[str], n_letters: int) -> None:
    """Turn names that would run into each other, where so many letters have room."""
    room = n_letters / max(1, len(names))
    if max((len(shown(name)) for name in names), default=0) > room:
        axes.tick_params(axis="x", rotation=25)
        for label in axes.get_xticklabels():
            label.set_horizontalalignment("right")


def _is_dense(runs: Sequence[Rows]) -> bool:
    return all(row["density"] == 1.0 for rows in runs for row in rows)


def _by_rank(runs: Sequence[Rows], site: str, n_layers: int) -> list[list[float | None]]:
    """Density by rank of the head, then by layer; None where a layer has not as many heads."""
    columns = []
    for layer in range(1, n_layers + 1):
        sorted_runs = [_sorted(rows, site, layer) for rows in runs]
        ranks = zip_longest(*sorted_runs)
        columns.append([fmean(v for v in rank if v is not None) for rank in ranks])
    return [list(line) for line in zip_longest(*columns)]


def _sorted(rows: Iterable[Mapping[str, Any]], site: str, layer: int) -> list[float]:
    found = (row for row in rows if row["site"] == site and row["layer"] == layer)
    return sorted((row["density"] for row in found), reverse=True)


def _rank_lines(axes: Axes, lines: Sequence[Sequence[float | None]], style: Style) -> None:
    if not lines:
        return
    layers = range(1, len(lines[0]) + 1)
    known = [
        [value for value in column if value is not None] for column in zip(*lines, strict=True)
    ]
    spread = [(layer, min(c), max(c)) for layer, c in zip(layers, known, strict=True) if c]
    axes.fill_between(
        [layer for layer, _, _ in spread],
        [low for _, low, _ in spread],
        [high for _, _, high in spread],
        color=style.fill,
        alpha=0.35,
        linewidth=0,
    )
    for line in lines:
        there = [
            (layer, value) for layer, value in zip(layers, line, strict=True) if value is not None
        ]
        axes.plot(
            [layer for layer, _ in there],
            [value for _, value in there],
            color=style.colour,
            linewidth=0.9,
            marker=style.marker,
            markersize=2.8,
            clip_on=False,
        )
