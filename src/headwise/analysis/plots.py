"""Figures of a run, drawn from its own records, and the α table for the terminal."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from headwise.analysis.figure_style import (
    DOUBLE,
    GREY,
    GRID,
    INK,
    LABEL,
    NOTE,
    REFERENCES,
    SINGLE,
    STYLES,
    dress,
    dress_updates,
    headline,
    known_sites,
    layer_bar,
    layer_colours,
    legend,
    new_figure,
    panels_width,
)
from headwise.schema import SITE_NAMES, SITES
from headwise.track.base import HeadNumbers, HeadValues, head_numbers, numbered

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SPLIT_STYLES = {"train": STYLES[4], "valid": STYLES[1]}
# Of heads.jsonl; whatever else stands there the attentions report of themselves.
MEASURED = (
    *("update", "alpha", "density", "entropy", "diversity", "output_norm", "register_mass"),
    *("query_distance", "key_distance", "value_distance"),
)
Records = Sequence[Mapping[str, Any]]
Series = tuple[list[int], list[float]]


def alpha_figure(
    records: Records, name: str = "", kept: HeadNumbers | None = None
) -> Figure | None:
    """How the α of every head went over training (Correia et al. 2019).

    One panel a site, one line a head, coloured by layer; None when no head has an α.

    Args:
        records: of a run's `heads.jsonl`.
        name: of what was trained, for the title.
        kept: numbers of its heads, `model.heads`; None: all are there.
    """
    trajectories = _series(records, "alpha", kept)
    if not trajectories:
        return None
    figure, panels = _site_panels(trajectories, "layer {}, head {}", linewidth=0.9)
    for axes in panels:
        _draw_references(axes, with_names=axes is panels[-1])
    for axes, site in zip(panels, known_sites(trajectories), strict=True):
        _name_extremes(axes, trajectories[site])
    highest = max(max(v) for lines in trajectories.values() for _, v in lines.values())
    panels[0].set_ylim(0.98, max(2.0, highest) + 0.02)
    panels[0].set_yticks([1.0, 1.25, 1.5, 1.75, 2.0])
    panels[0].set_ylabel("α of a head", fontsize=LABEL, color=INK)
    headline(
        figure,
        f"How the α of every head went over training{_of(name)}",
        "One line a head, its shade the layer. The larger α, the sparser a head can be.",
    )
    return figure


def reported_figures(
    records: Records, name: str = "", kept: HeadNumbers | None = None
) -> dict[str, Figure]:
    """How whatever else heads report of themselves went over training, a figure each.

    One panel a site, one line a head, coloured by layer.

    Args:
        records, name, kept: as of `alpha_figure`.
    """
    names = dict.fromkeys(
        key
        for record in records
        for key, value in record.items()
        if key not in MEASURED and isinstance(value, Mapping)
    )
    figures = {}
    for statistic in names:
        trajectories = _series(records, statistic, kept)
        if trajectories:
            figure, panels = _site_panels(trajectories, "layer {}, head {}", linewidth=0.9)
            shown = statistic.replace("_", " ")
            panels[0].set_ylabel(f"{shown} of a head", fontsize=LABEL, color=INK)
            headline(
                figure,
                f"How {shown} of every head went over training{_of(name)}",
                "One line a head, its shade the layer. As the attention itself reports it, or "
                "measured at validations.",
            )
            figures[statistic] = figure
    return figures


def diversity_figure(records: Records, name: str = "") -> Figure | None:
    """One panel a site, one line a layer; None when it was measured nowhere."""
    trajectories = _series(records, "diversity")
    if not trajectories:
        return None
    figure, panels = _site_panels(trajectories, "layer {}", linewidth=1.3)
    panels[0].set_ylim(bottom=0)
    panels[0].set_ylabel(
        "Jensen-Shannon divergence\n/ log(number of heads)", fontsize=LABEL, color=INK
    )
    headline(
        figure,
        f"How much the heads of a layer disagree over training{_of(name)}",
        "One line a layer. 0: all heads of the layer give the same weights; 1: no two of them look "
        "at the same key.",
    )
    return figure


def _site_panels(
    trajectories: Mapping[str, Mapping[tuple[int, int], Series]], label: str, linewidth: float
) -> tuple[Figure, list[Axes]]:
    """A panel a site, a line a head (or layer), coloured by layer."""
    sites = known_sites(trajectories)
    n_layers = max(layer for site in sites for layer, _ in trajectories[site])
    colours = layer_colours(n_layers)
    figure = new_figure(panels_width(len(sites)), 2.7)
    panels = list(figure.subplots(1, len(sites), sharey=True, squeeze=False)[0])
    for axes, site in zip(panels, sites, strict=True):
        dress(axes, title=SITE_NAMES.get(site, site))
        lines = trajectories[site]
        dress_updates(axes, [update for updates, _ in lines.values() for update in updates])
        for (layer, head), (updates, values) in sorted(lines.items()):
            are_few = len(updates) <= 12
            axes.plot(
                updates,
                values,
                color=colours(layer - 1),
                linewidth=linewidth,
                alpha=0.85,
                marker=STYLES[(layer - 1) % len(STYLES)].marker if are_few else None,
                markersize=3,
                clip_on=not are_few,
                zorder=3 if are_few else 2,  # markers lie above the axes that they touch
                label=label.format(layer, head),
            )
    layer_bar(figure, panels, colours)
    return figure, panels


def _name_extremes(axes: Axes, heads: Mapping[tuple[int, int], Series]) -> None:
    """Mark where the highest and the lowest line end, and name both heads below the panel."""
    if len(heads) < 2:
        return
    ends = {place: (updates[-1], values[-1]) for place, (updates, values) in heads.items()}
    ranked = sorted(ends, key=lambda place: (ends[place][1], place))
    marks = []
    for name, (layer, head), marker in (
        ("highest", ranked[-1], "^"),
        ("lowest", ranked[0], "v"),
    ):
        update, alpha = ends[layer, head]
        marks += axes.plot(
            [update],
            [alpha],
            marker=marker,
            color=INK,
            markersize=4.5,
            linestyle="none",
            clip_on=False,
            label=f"{name}: layer {layer} head {head}, {alpha:.2f}",
        )
    legend(
        axes,
        handles=marks,
        loc="upper center",
        bbox_to_anchor=(0.5, -0.2),
        handlelength=1.0,
        fontsize=NOTE,
        labelspacing=0.25,
        borderaxespad=0.3,
    )


def curves_figure(records: Records, name: str = "") -> Figure | None:
    """A panel for the loss and one for BLEU, a line a split; None when neither was measured."""
    panels_of = {}
    for metric in ("loss", "bleu"):
        series = {split: _metric_series(records, f"{split}/{metric}") for split in SPLIT_STYLES}
        drawn = {split: points for split, points in series.items() if points[0]}
        if drawn:
            panels_of[metric] = drawn
    if not panels_of:
        return None
    figure = new_figure(SINGLE if len(panels_of) == 1 else DOUBLE, 2.3)
    panels = figure.subplots(1, len(panels_of), squeeze=False)[0]
    labels = {"loss": "loss per target token", "bleu": "BLEU"}
    names = {"train": "training", "valid": "validation"}
    for axes, (metric, drawn) in zip(panels, panels_of.items(), strict=True):
        dress(axes, y=labels[metric])
        at = drawn.get("valid", drawn.get("train", ([], [])))[0]
        dress_updates(axes, at)
        for split, (updates, values) in drawn.items():
            style, is_train = SPLIT_STYLES[split], split == "train"
            axes.plot(
                updates,
                values,
                color=style.colour,
                linewidth=1.0 if is_train else 1.3,
                marker=None if is_train else style.marker,
                markersize=3,
                label=names[split],
            )
        if len(drawn) > 1:
            legend(axes)
        else:
            axes.set_ylabel(f"{labels[metric]}, {names[next(iter(drawn))]}")
    title = "Training: " + " and ".join(labels[metric] for metric in panels_of)
    headline(figure, f"{title}{_of(name)}")
    return figure


def alpha_table(alphas: HeadValues, kept: HeadNumbers | None = None) -> str:
    """α of every head as plain text: one row a site and layer, one column a head.

    Args:
        alphas: site -> layers -> heads, as in `results.json`; empty when there is no α.
        kept: numbers of the heads, `model.heads`; None: all are there.
    """
    rows = [
        (site, layer, dict(zip(head_numbers(kept, site, layer, len(values)), values, strict=False)))
        for site in sorted(alphas, key=lambda s: (SITES.index(s) if s in SITES else 99, s))
        for layer, values in enumerate(alphas[site], start=1)
        if values
    ]
    if not rows:
        return "no head of this model has an α"
    numbers = sorted({number for _, _, values in rows for number in values})
    width = max(len("site"), *(len(site) for site, _, _ in rows))
    head = "".join(f"{f'head{i}':>8}" for i in numbers)
    lines = [f"{'site':<{width}}  layer{head}{'mean':>8}"]
    previous = ""
    for site, layer, values in rows:
        known = [v for v in values.values() if v is not None and math.isfinite(v)]
        mean = sum(known) / len(known) if known else None
        shown = [*(values.get(number) for number in numbers), mean]
        cells = "".join(f"{_number(value):>8}" for value in shown)
        lines.append(f"{site if site != previous else '':<{width}}  {layer:>5}{cells}")
        previous = site
    return "\n".join(lines)


def _of(name: str) -> str:
    return f" ({name})" if name else ""


def _number(value: float | None) -> str:
    return "-" if value is None or not math.isfinite(value) else f"{value:.3f}"


def _series(
    records: Records, statistic: str, kept: HeadNumbers | None = None
) -> dict[str, dict[tuple[int, int], Series]]:
    """Updates and values by site, then (layer, head), without what is absent."""
    trajectories: dict[str, dict[tuple[int, int], Series]] = {}
    for record in records:
        for (site, layer, head), value in numbered(record.get(statistic, {}), kept):
            updates, line = trajectories.setdefault(site, {}).setdefault((layer, head), ([], []))
            updates.append(record["update"])
            line.append(value)
    return trajectories


def _metric_series(records: Records, name: str) -> Series:
    known = [(r["update"], r[name]) for r in records if r.get(name) is not None]
    return [update for update, _ in known], [value for _, value in known]


def _draw_references(axes: Axes, with_names: bool) -> None:
    """Where α makes a rule that has a name; names at the right edge of the last panel."""
    for alpha, name in REFERENCES:
        axes.axhline(alpha, color=GRID, linewidth=0.7, linestyle=(0, (4, 3)), zorder=0)
        if with_names:
            axes.annotate(
                name,
                xy=(1.0, alpha),
                xycoords=axes.get_yaxis_transform(),
                xytext=(4, 0),
                textcoords="offset points",
                fontsize=NOTE,
                color=GREY,
                va="center",
            )
