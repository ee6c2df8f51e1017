"""Curves of several runs: means over seeds, with bands from the lowest to the highest seed.

Data come as name -> one table a run: runs under one name differ in their seed alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

from headwise.analysis.figure_style import (
    DOUBLE,
    INK,
    LABEL,
    OF_SITES,
    SINGLE,
    STYLES,
    Style,
    dress,
    dress_layers,
    dress_updates,
    headline,
    known_sites,
    legend,
    new_figure,
    number_of,
    panels_width,
    shown,
    styles_of,
)
from headwise.schema import SITE_NAMES, SITES

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Rows = Sequence[Mapping[str, Any]]
TablesOf = Mapping[str, Sequence[Rows]]  # name -> one table a run
Points = Mapping[float, float]  # x -> y of one run
ALL_SITES = ";".join(SITES)
DIVERSITY_BASES = {
    "diversity_heads": "log(number of heads)",
    "diversity_keys": "log(number of keys)",
}


def diversity_layers(
    layers: TablesOf, column: str = "diversity_heads", what: str = "", text: str = ""
) -> Figure | None:
    """How much the heads of each layer disagree, a panel a site, a line a name.

    Args:
        layers: rows of the table LAYERS.
        column: which of the two bases, a key of `DIVERSITY_BASES` (Correia et al. 2019, section
            5, takes that of the keys).
        what: was trained, for the title.
        text: on which it was measured, for the note.

    Returns:
        The figure; None when it was measured nowhere.
    """
    found: dict[str, dict[str, list[Points]]] = {}
    for name, runs in layers.items():
        for rows in runs:
            for site in {row["site"] for row in rows}:
                points = {
                    row["layer"]: row[column]
                    for row in rows
                    if row["site"] == site and row[column] is not None
                }
                if points:
                    found.setdefault(site, {}).setdefault(name, []).append(points)
    if not found:
        return None
    sites = known_sites(found)
    styles = styles_of(layers)
    n_layers = int(max(max(p) for of in found.values() for runs in of.values() for p in runs))
    figure = new_figure(panels_width(len(sites)), 2.4)
    panels = figure.subplots(1, len(sites), sharey=True, squeeze=False)[0]
    for axes, site in zip(panels, sites, strict=True):
        dress(axes, title=SITE_NAMES.get(site, site))
        dress_layers(axes, n_layers)
        for name, lines in found[site].items():
            _draw(axes, lines, styles[name], shown(name))
    panels[0].set_ylim(bottom=0)
    panels[0].set_ylabel(
        f"Jensen-Shannon divergence\n/ {DIVERSITY_BASES[column]}", fontsize=LABEL, color=INK
    )
    _legend_right(panels)
    counts = _counts({name: len(runs) for name, runs in layers.items()})
    headline(
        figure,
        f"How much the heads of each layer disagree{f' ({what})' if what else ''}",
        f"Divergence of the weights of a layer's heads, divided by {DIVERSITY_BASES[column]}; 0: "
        f"all heads give the same weights; the larger, the more they differ. {counts} {text}",
    )
    return figure


def pruning_curves(pruning: TablesOf, what: str = "", text: str = "") -> Figure | None:
    """BLEU against the share of heads masked, a panel a name, a line for each choice of sites.

    Args:
        pruning: rows of the table PRUNING.
        what: was trained, for the title.
        text: on which it was measured, for the note.

    Returns:
        The figure; None when BLEU was measured nowhere.
    """
    found: dict[str, dict[str, list[Points]]] = {}
    for name, runs in pruning.items():
        for rows in runs:
            for sites in dict.fromkeys(row["sites"] for row in rows):
                points = {
                    100 * row["fraction"]: row["bleu"]
                    for row in rows
                    if row["sites"] == sites and row["bleu"] is not None
                }
                if points:
                    found.setdefault(name, {}).setdefault(sites, []).append(points)
    if not found:
        return None
    chosen = dict.fromkeys(sites for of_sites in found.values() for sites in of_sites)
    styles = _styles_of_sites(chosen)
    figure = new_figure(_columns_width(len(found)), 2.4)
    panels = figure.subplots(1, len(found), sharey=True, squeeze=False)[0]
    for axes, (name, of_sites) in zip(panels, found.items(), strict=True):
        dress(axes, x="heads removed (%)", title=shown(name))
        for sites, lines in of_sites.items():
            _draw(axes, lines, styles[sites], _sites_name(sites))
        axes.set_xlim(-2, 102)
        axes.set_xticks([0, 25, 50, 75, 100])
    panels[0].set_ylim(bottom=0)
    panels[0].set_ylabel("BLEU", fontsize=LABEL, color=INK)
    _legend_right(panels)
    counts = _counts({name: len(runs) for name, runs in pruning.items() if name in found})
    headline(
        figure,
        f"What removing heads costs{f' ({what})' if what else ''}",
        "The heads that matter least go first, without training in between; the percentage is of "
        f"the heads of the sites a line names. {counts} {text}",
    )
    return figure


def bleu_curves(sweep: Mapping[str, Mapping[str, Sequence[Points]]]) -> Figure | None:
    """Validation BLEU over training, a panel a corpus, a line a name.

    Args:
        sweep: corpus -> name -> BLEU by update of each run; empty where a run has none.

    Returns:
        The figure; None when no run has any.
    """
    panels_of = {
        corpus: {name: [p for p in runs if p] for name, runs in rows.items() if any(runs)}
        for corpus, rows in sweep.items()
    }
    panels_of = {corpus: rows for corpus, rows in panels_of.items() if rows}
    if not panels_of:
        return None
    styles = styles_of(name for rows in panels_of.values() for name in rows)
    n_columns = 2 if len(panels_of) == 4 else min(3, len(panels_of))
    n_rows = -(-len(panels_of) // n_columns)
    figure = new_figure(_columns_width(n_columns), 0.6 + 1.8 * n_rows)
    grid = figure.subplots(n_rows, n_columns, squeeze=False)
    panels = list(grid.flat)
    for spare in panels[len(panels_of) :]:
        spare.remove()
    panels = panels[: len(panels_of)]
    for axes, (corpus, rows) in zip(panels, panels_of.items(), strict=True):
        dress(axes, y="validation BLEU" if axes in grid[:, 0] else "", title=corpus)
        for name, runs in rows.items():
            _draw(axes, runs, styles[name], shown(name))
        dress_updates(axes, [update for runs in rows.values() for run in runs for update in run])
    _legend_right(panels, fewest=1)
    headline(figure, "BLEU on the validation set over training", _counts(_runs_of(panels_of)))
    return figure


def _draw(axes: Axes, runs: Sequence[Points], style: Style, name: str) -> None:
    """The mean where all runs were measured, in a band from their lowest to their highest."""
    places = sorted(set(runs[0]).intersection(*runs[1:]))
    values = [[run[x] for run in runs] for x in places]
    if len(runs) > 1 and len(places) == 1:
        axes.vlines(places, min(values[0]), max(values[0]), color=style.colour, linewidth=1.0)
    elif len(runs) > 1:
        axes.fill_between(
            places,
            list(map(min, values)),
            list(map(max, values)),
            color=style.fill,
            alpha=0.6,
            lw=0,
        )
    axes.plot(
        places,
        list(map(fmean, values)),
        color=style.colour,
        linestyle=style.dash,
        linewidth=1.2,
        marker=style.marker,
        markersize=3.6,
        markeredgecolor="white",
        markeredgewidth=0.3,
        markevery=max(1, len(places) // 12),
        label=name,
        clip_on=False,
        zorder=3,  # above the axes, which a marker may touch
    )


def _legend_right(panels: Sequence[Axes], fewest: int = 2) -> None:
    """The names of the lines of all panels, once, right of the last."""
    named: dict[str, Artist] = {}
    for axes in panels:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            named.setdefault(label, handle)
    if len(named) >= fewest:
        place: dict[str, Any] = {"loc": "center left", "bbox_to_anchor": (1.0, 0.5)}
        legend(panels[-1], handles=list(named.values()), labels=list(named), **place)


def _runs_of(panels_of: Mapping[str, Mapping[str, Sequence[Points]]]) -> dict[str, int]:
    """Runs a line, by corpus where all lines of one have as many."""
    found = {}
    for corpus, rows in panels_of.items():
        counts = {shown(name): len(runs) for name, runs in rows.items()}
        if len(panels_of) == 1:
            found.update(counts)
        elif len(set(counts.values())) == 1:
            found[corpus] = next(iter(counts.values()))
        else:
            found.update({f"{name} ({corpus})": count for name, count in counts.items()})
    return found


def _counts(n_runs: Mapping[str, int]) -> str:
    """What a line is: one run, or a mean over so many."""
    numbers = set(n_runs.values())
    if numbers == {1}:
        return "A line is one run."
    band = "band (or bar): lowest to highest"
    if len(numbers) == 1:
        return f"A line is the mean of {numbers.pop()} runs (seeds), {band}."
    groups: dict[int, list[str]] = {}
    for name, count in n_runs.items():
        groups.setdefault(count, []).append(shown(name))
    usual = max(groups, key=lambda count: len(groups[count]))
    told = [
        f"{number_of(count, 'run')} of {', '.join(names)}"
        for count, names in groups.items()
        if count != usual
    ]
    most = groups[usual]
    first = f"{number_of(usual, 'run')} {'each' if len(most) > 1 else f'of {most[0]}'}"
    return f"A line is the mean over seeds, {band}; {'; '.join([first, *told])}."


def _columns_width(n_panels: int) -> float:
    return SINGLE + 1.2 if n_panels == 1 else DOUBLE


def _styles_of_sites(chosen: Mapping[str, Any]) -> dict[str, Style]:
    """All sites in ink, one alone in its own style, other choices in what is left."""
    known = {**OF_SITES, ALL_SITES: STYLES[-1]}
    free = [style for style in STYLES if style not in known.values()]
    others = [sites for sites in chosen if sites not in known]
    return {
        **{sites: known[sites] for sites in chosen if sites in known},
        **{sites: free[place % len(free)] for place, sites in enumerate(others)},
    }


def _sites_name(sites: str) -> str:
    if sites == ALL_SITES:
        return "all heads"
    return " and ".join(SITE_NAMES.get(site, site) for site in sites.split(";"))
