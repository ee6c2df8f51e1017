"""Figures of a run, drawn from its own files, and the α table for the terminal.

A `..._figure` function returns the figure, the `plot_...` function beside it writes it as png
and svg. Nothing touches pyplot: no window, no global state, any number of jobs in a process.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headwise.schema import SITES
from headwise.track.jsonl import read_jsonl

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import ListedColormap
    from matplotlib.figure import Figure

DPI = 150
SITE_TITLES = {
    "encoder_self": "encoder self-attention",
    "decoder_self": "decoder self-attention",
    "cross": "cross-attention",
}
REFERENCES = ((1.0, "softmax"), (1.5, "1.5-entmax"), (2.0, "sparsemax"))
INK, GREY, GRID = "#222222", "#6b6b6b", "#c9c9c9"
SPLIT_COLOURS = {"train": "#8aa6c8", "valid": "#c2571a"}  # told apart without colour vision

Records = Sequence[Mapping[str, Any]]
Series = tuple[list[int], list[float]]


def plot_alpha(heads_jsonl: Path, out: Path) -> tuple[Path, Path] | None:
    """Draw how the α of every head went over training (Correia et al. 2019, figure 2).

    Args:
        heads_jsonl: a run's `heads.jsonl`.
        out: where to write; its suffix is replaced by `.png` and `.svg`.

    Returns:
        The two files, or None when no head has an α.
    """
    figure = alpha_figure(read_jsonl(heads_jsonl))
    return None if figure is None else _save(figure, out)


def plot_diversity(heads_jsonl: Path, out: Path) -> tuple[Path, Path] | None:
    """Draw how much the heads of every layer disagree over training; see `plot_alpha`."""
    figure = diversity_figure(read_jsonl(heads_jsonl))
    return None if figure is None else _save(figure, out)


def plot_curves(metrics_jsonl: Path, out: Path) -> tuple[Path, Path] | None:
    """Draw loss and BLEU over training from a run's `metrics.jsonl`; see `plot_alpha`."""
    figure = curves_figure(read_jsonl(metrics_jsonl))
    return None if figure is None else _save(figure, out)


def alpha_figure(records: Records) -> Figure | None:
    """One panel a site, one line a head, coloured by layer; None when no head has an α."""
    trajectories = _series(records, "alpha")
    if not trajectories:
        return None
    figure, panels = _site_panels(trajectories, "layer {}, head {}", linewidth=1.1)
    for axes in panels:
        _draw_references(axes, with_names=axes is panels[-1])
    highest = max(max(v) for lines in trajectories.values() for _, v in lines.values())
    panels[0].set_ylim(0.98, max(2.0, highest) + 0.02)
    panels[0].set_yticks([1.0, 1.25, 1.5, 1.75, 2.0])
    panels[0].set_ylabel("α", fontsize=11, color=INK, rotation=0, labelpad=8)
    return figure


def diversity_figure(records: Records) -> Figure | None:
    """One panel a site, one line a layer; None when it was measured nowhere."""
    trajectories = _series(records, "diversity")
    if not trajectories:
        return None
    figure, panels = _site_panels(trajectories, "layer {}", linewidth=1.5)
    panels[0].set_ylim(bottom=0)
    panels[0].set_ylabel("Jensen-Shannon divergence of the heads", fontsize=9, color=INK)
    return figure


def _site_panels(
    trajectories: Mapping[str, Mapping[tuple[int, int], Series]], label: str, linewidth: float
) -> tuple[Figure, list[Axes]]:
    """A panel a site, a line a head (or layer), coloured by layer."""
    sites = [site for site in SITES if site in trajectories]
    sites += sorted(set(trajectories) - set(SITES))
    n_layers = max(layer for site in sites for layer, _ in trajectories[site])
    colours = _layer_colours(n_layers)
    figure = _new_figure(2.9 * len(sites) + 1.5, 3.1)
    panels = list(figure.subplots(1, len(sites), sharey=True, squeeze=False)[0])
    for axes, site in zip(panels, sites, strict=True):
        _dress(axes)
        axes.set_title(SITE_TITLES.get(site, site), fontsize=10, color=INK)
        for (layer, head), (updates, values) in sorted(trajectories[site].items()):
            is_point = len(updates) == 1
            axes.plot(
                updates,
                values,
                color=colours(layer - 1),
                linewidth=linewidth,
                alpha=0.85,
                marker="o" if is_point else None,
                markersize=3,
                label=label.format(layer, head),
            )
    _add_layer_bar(figure, panels, colours, n_layers)
    return figure, panels


def curves_figure(records: Records) -> Figure | None:
    """A panel for the loss and one for BLEU, a line a split; None when neither was measured."""
    panels_of = {}
    for metric in ("loss", "bleu"):
        series = {split: _metric_series(records, f"{split}/{metric}") for split in SPLIT_COLOURS}
        drawn = {split: points for split, points in series.items() if points[0]}
        if drawn:
            panels_of[metric] = drawn
    if not panels_of:
        return None
    figure = _new_figure(4.0 * len(panels_of), 3.0)
    panels = figure.subplots(1, len(panels_of), squeeze=False)[0]
    labels = {"loss": "loss per target token", "bleu": "BLEU"}
    for axes, (metric, drawn) in zip(panels, panels_of.items(), strict=True):
        _dress(axes)
        axes.set_ylabel(labels[metric], fontsize=9, color=INK)
        for split, (updates, values) in drawn.items():
            is_train = split == "train"
            axes.plot(
                updates,
                values,
                color=SPLIT_COLOURS[split],
                linewidth=1.1 if is_train else 1.5,
                marker=None if is_train else "o",
                markersize=3,
                label={"train": "training", "valid": "validation"}[split],
            )
        axes.set_xlim(left=0)
        if len(drawn) > 1:
            axes.legend(frameon=False, fontsize=8, labelcolor=INK)
    return figure


def alpha_table(alphas: Mapping[str, Sequence[Sequence[float | None]]]) -> str:
    """α of every head as plain text: one row a site and layer, one column a head.

    Args:
        alphas: site -> layers -> heads, as in `results.json`; empty when there is no α.
    """
    rows = [
        (site, layer, values)
        for site in sorted(alphas, key=lambda s: (SITES.index(s) if s in SITES else 99, s))
        for layer, values in enumerate(alphas[site], start=1)
        if values
    ]
    if not rows:
        return "no head of this model has an α"
    n_heads = max(len(values) for _, _, values in rows)
    width = max(len("site"), *(len(site) for site, _, _ in rows))
    head = "".join(f"{f'head{i}':>8}" for i in range(1, n_heads + 1))
    lines = [f"{'site':<{width}}  layer{head}{'mean':>8}"]
    previous = ""
    for site, layer, values in rows:
        known = [value for value in values if value is not None and math.isfinite(value)]
        mean = sum(known) / len(known) if known else None
        padded = [*values, *[None] * (n_heads - len(values)), mean]
        cells = "".join(f"{_number(value):>8}" for value in padded)
        lines.append(f"{site if site != previous else '':<{width}}  {layer:>5}{cells}")
        previous = site
    return "\n".join(lines)


def _number(value: float | None) -> str:
    return "-" if value is None or not math.isfinite(value) else f"{value:.3f}"


def _series(records: Records, statistic: str) -> dict[str, dict[tuple[int, int], Series]]:
    """Updates and values by site, then (layer, head), without what is absent."""
    trajectories: dict[str, dict[tuple[int, int], Series]] = {}
    for record in records:
        for site, layers in record.get(statistic, {}).items():
            for layer, values in enumerate(layers, start=1):
                for head, value in enumerate(values, start=1):
                    if value is None or not math.isfinite(value):
                        continue
                    heads = trajectories.setdefault(site, {})
                    updates, line = heads.setdefault((layer, head), ([], []))
                    updates.append(record["update"])
                    line.append(value)
    return trajectories


def _metric_series(records: Records, name: str) -> Series:
    known = [(r["update"], r[name]) for r in records if r.get(name) is not None]
    return [update for update, _ in known], [value for _, value in known]


def _new_figure(width_inches: float, height_inches: float) -> Figure:
    from matplotlib.figure import Figure

    return Figure(figsize=(width_inches, height_inches), layout="constrained")


def _layer_colours(n_layers: int) -> ListedColormap:
    """One colour a layer along viridis, whose light end is cut off: lines stand on white."""
    from matplotlib import colormaps
    from matplotlib.colors import ListedColormap

    viridis = colormaps["viridis"]
    step = 0.86 / max(1, n_layers - 1)
    return ListedColormap([viridis(layer * step) for layer in range(n_layers)])


def _dress(axes: Axes) -> None:
    from matplotlib.ticker import EngFormatter, MaxNLocator

    axes.set_xlabel("update", fontsize=9, color=INK)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=4, integer=True))
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set(color=INK, linewidth=0.7)
    axes.tick_params(labelsize=8, colors=INK, width=0.7)
    axes.margins(x=0.01)


def _draw_references(axes: Axes, with_names: bool) -> None:
    """Where α makes a rule that has a name; names at the right edge of the last panel."""
    for alpha, name in REFERENCES:
        axes.axhline(alpha, color=GRID, linewidth=0.9, linestyle=(0, (4, 3)), zorder=0)
        if with_names:
            axes.annotate(
                name,
                xy=(1.0, alpha),
                xycoords=axes.get_yaxis_transform(),
                xytext=(4, 0),
                textcoords="offset points",
                fontsize=8,
                color=GREY,
                va="center",
            )


def _add_layer_bar(
    figure: Figure, panels: list[Axes], colours: ListedColormap, n_layers: int
) -> None:
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import BoundaryNorm

    edges = [layer + 0.5 for layer in range(n_layers + 1)]
    mappable = ScalarMappable(BoundaryNorm(edges, n_layers), colours)
    step = math.ceil(n_layers / 12)
    bar = figure.colorbar(mappable, ax=panels, aspect=30, pad=0.02)
    bar.set_ticks(list(range(1, n_layers + 1, step)), minor=False)
    bar.ax.minorticks_off()
    bar.ax.tick_params(length=0, labelsize=8, colors=INK)
    bar.set_label("layer", fontsize=9, color=INK)
    bar.outline.set_visible(False)


def _save(figure: Figure, out: Path) -> tuple[Path, Path]:
    from matplotlib import rc_context

    png, svg = out.with_suffix(".png"), out.with_suffix(".svg")
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(png, dpi=DPI)
    # fixed salt and no date: the same run gives the same bytes
    with rc_context({"svg.hashsalt": "headwise", "svg.fonttype": "path"}):
        figure.savefig(svg, metadata={"Date": None})
    return png, svg
