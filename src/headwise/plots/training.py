"""Figures of one run over its training: statistics of its heads, loss and scores."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
import seaborn as sns
from matplotlib.figure import Figure

from headwise.plots.style import (
    GREY,
    REFERENCES,
    evenly,
    failure_as_warning,
    legend_right,
    panels,
    series_style,
    styled,
    update_axis,
)
from headwise.track.base import HeadNumbers, numbered

Records = Sequence[Mapping[str, Any]]
Labels = Mapping[str, str]
# In heads.jsonl; all others are reported by the attentions.
MEASURED = (
    *("alpha", "diversity", "density", "entropy", "output_norm", "cls_mass", "cls_divergence"),
    *("query_distance", "key_distance", "value_distance"),
)
SPLITS = {"train": "training", "valid": "validation"}
MAX_MARKERS = 12  # with more updates, lines have no markers
MAX_POINTS = 100_000  # of trajectories; of more, those of updates evenly spaced


def training_figures(
    heads: Records,
    metrics: Records,
    labels: Labels,
    name: str = "",
    present: HeadNumbers | None = None,
) -> dict[str, Figure]:
    """Return file name -> figure: alpha, diversity, curves, and heads-… for reported statistics.

    Statistics without values have no figure.

    Args:
        heads, metrics: records of a run's `heads.jsonl` and `metrics.jsonl`.
        labels: name -> label of the metrics to draw.
        name: of what was trained, for the titles.
        present: numbers of its heads, `model.heads`; None: all heads.
    """
    values, scores = head_values(heads, present), _curve_values(metrics, labels)
    figures = {}
    for statistic, table in values.groupby("statistic", sort=False):
        if statistic not in MEASURED or statistic in ("alpha", "diversity"):
            file = re.sub(r"[^\w.-]+", "-", statistic)
            file = file if statistic in MEASURED else f"heads-{file}"
            with failure_as_warning(file):
                figures[file] = trajectories(table, name)
    if len(scores):
        with failure_as_warning("curves"):
            figures["curves"] = curves(scores, name)
    return figures


def head_values(records: Records, present: HeadNumbers | None = None) -> pd.DataFrame:
    """Return records of heads.jsonl as a table: update, statistic, site, layer, head, value."""
    rows = [
        (record["update"], statistic, *place, value)
        for record in records
        for statistic, values in record.items()
        if isinstance(values, Mapping)
        for place, value in numbered(values, present if statistic != "diversity" else None)
    ]
    return pd.DataFrame(rows, columns=["update", "statistic", "site", "layer", "head", "value"])


def _curve_values(records: Records, labels: Labels) -> pd.DataFrame:
    rows = [
        (record["update"], shown_metric, shown_split, record[f"{split}/{metric}"])
        for metric, shown_metric in labels.items()
        for split, shown_split in SPLITS.items()
        for record in records
        if record.get(f"{split}/{metric}") is not None
    ]
    return pd.DataFrame(rows, columns=["update", "metric", "split", "value"])


@styled
def trajectories(table: pd.DataFrame, name: str = "") -> Figure:
    """Draw one statistic of every head (or layer) over training: a panel per site, a line per head.

    Args:
        table: rows of `head_values` of one statistic.
        name: of what was trained, for the title.
    """
    statistic = table["statistic"].iloc[0]
    shown, note = statistic.replace("_", " "), "One line per head, coloured by layer. "
    if statistic == "alpha":  # as Correia et al. 2019
        shown = "α"
        note += "Dashed: α at which a head computes softmax (1), 1.5-entmax and sparsemax (2)."
    elif statistic == "diversity":
        shown = "Jensen-Shannon divergence\n/ log(number of heads)"
        note = "One line per layer. 0: all heads of a layer give the same weights; 1: no two of "
        note += "them attend to the same key."
    title = f"{'Diversity' if statistic == 'diversity' else shown} of the heads over training"
    updates = table["update"].unique()
    kept = evenly(updates, max(2, MAX_POINTS * len(updates) // len(table)))
    figure, drawn = panels(table[table["update"].isin(kept)], "site", title, name, note)
    for axes, part in drawn:
        sns.lineplot(
            part,
            x="update",
            y="value",
            hue="layer",
            hue_norm=(1, max(2, table["layer"].max())),
            palette="crest",
            units="head",
            estimator=None,
            linewidth=0.9,
            marker="o" if part["update"].nunique() <= MAX_MARKERS else None,
            markersize=3,
            ax=axes,
        )
        axes.set_ylabel(shown)
        update_axis(axes)
        if statistic == "alpha":
            for alpha in REFERENCES:
                axes.axhline(alpha, color=GREY, linewidth=0.5, linestyle="--", zorder=0)
    if statistic == "diversity":
        drawn[0][0].set_ylim(bottom=0)  # of all panels
    legend_right(drawn, "layer")
    return figure


@styled
def curves(table: pd.DataFrame, name: str = "") -> Figure:
    """Draw metrics over the updates, one panel per metric, one line per split.

    Args:
        table: columns update, metric, split and value.
        name: of what was trained, for the title.
    """
    title = " and ".join(table["metric"].unique())
    title = f"{title[0].upper()}{title[1:]} over training"
    figure, drawn = panels(table, "metric", title, name, sharey=False)
    for axes, part in drawn:
        style = series_style(SPLITS.values()) | {"markers": {"training": ",", "validation": "o"}}
        style["estimator"] = None  # one value per update
        sns.lineplot(part, x="update", y="value", hue="split", style="split", ax=axes, **style)
        axes.set_ylabel(part["metric"].iloc[0])
        update_axis(axes)
    legend_right(drawn)
    return figure
