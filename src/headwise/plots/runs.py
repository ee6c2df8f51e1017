"""Figures that compare runs: α, density, diversity, pruning, and validation scores.

Every table has the columns `name`, the choices of a run, and `run`; runs of one name differ only in
their seed.
"""

from __future__ import annotations

import textwrap

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.figure import Figure

from headwise.plots.style import (
    GREY,
    REFERENCES,
    display_name,
    integer_axis,
    legend_right,
    mean_curves,
    panels,
    series_style,
    styled,
    update_axis,
)

N_POINTS = 2000  # queries per violin, in the proportions of its histogram
ALL_HEADS = "all heads"
MEAN = "A line is the mean over runs (seeds), in a band from the lowest to the highest."


@styled
def alpha_histograms(table: pd.DataFrame, what: str = "") -> Figure:
    """Draw a histogram of α over heads, one panel per site (Correia et al. 2019, section 5).

    Args:
        table: columns site, run and end, one row per head.
        what: what was trained, for the title.
    """
    low, high = min(1.0, table["end"].min()), max(2.0, table["end"].max())
    figure, drawn = panels(
        table,
        "site",
        "Learned α of the heads",
        what,
        f"Heads of {table['run'].nunique()} run(s). Dashed: α at which a head computes softmax "
        "(1), 1.5-entmax and sparsemax (2).",
    )
    for axes, part in drawn:
        # 1 is always an edge of a bin
        edges = np.arange(np.floor(low * 10 + 1e-9), np.ceil(high * 10 - 1e-9) + 1) / 10
        sns.histplot(part, x="end", bins=edges, ax=axes)
        for alpha in REFERENCES:
            axes.axvline(alpha, color=GREY, linewidth=0.7, linestyle="--", zorder=0)
        median = f"median {part['end'].median():.2f}, {len(part)} heads"
        axes.set_title(f"{axes.get_title()}\n{median}")
        axes.set(xlabel="α of a head", ylabel="number of heads")
        integer_axis(axes.yaxis)
    return figure


@styled
def alpha_start_end(table: pd.DataFrame, what: str = "") -> Figure:
    """Draw α of every head before and after training, one panel per site.

    Args:
        table: columns site, layer, run, start and end, one row per head.
        what: what was trained, for the title.
    """
    ends = table[["start", "end"]]
    limits = (min(1.0, ends.min().min()) - 0.03, max(2.0, ends.max().max()) + 0.03)
    figure, drawn = panels(
        table,
        "site",
        "α of the heads at the start and at the end of training",
        what,
        f"One point per head of {table['run'].nunique()} run(s). Below the dashed diagonal a head "
        "became denser, above it sparser. r: correlation of start and end.",
        sharex=True,
    )
    for axes, part in drawn:
        sns.scatterplot(
            part,
            x="start",
            y="end",
            hue="layer",
            hue_norm=(1, max(2, table["layer"].max())),
            palette="crest",
            s=14,
            ax=axes,
        )
        axes.axline((1.0, 1.0), slope=1.0, color=GREY, linewidth=0.7, linestyle="--")
        axes.set(xlim=limits, ylim=limits, aspect="equal")
        axes.set(xlabel="α at the start", ylabel="α at the end")
        varies = len(part) >= 3 and min(part["start"].nunique(), part["end"].nunique()) > 1
        r = f"r = {part['start'].corr(part['end']):.2f}, " if varies else ""
        axes.set_title(f"{axes.get_title()}\n{r}{len(part)} heads")
    legend_right(drawn, "layer")
    return figure


@styled
def density_violins(table: pd.DataFrame, what: str = "", text: str = "") -> Figure:
    """Draw the densities of all queries, one panel per site, one violin per name.

    Args:
        table: rows of the analysis' table DENSITY: histograms of the queries of every head.
        what: what was trained, for the title.
        text: the text it was measured on, for the note.
    """
    counts = table.groupby(["site", "name", "low", "high"], sort=False)["n_queries"].sum()
    bins = counts.reset_index()
    bins["share"] = bins["n_queries"] / bins.groupby(["site", "name"])["n_queries"].transform("sum")
    bins["density"] = (bins["low"] + bins["high"]) / 2
    names = list(table["name"].unique())
    figure, drawn = panels(
        bins,
        "site",
        "Density: share of the visible keys of a query with a weight above zero",
        what,
        "Every query of every head and run counts once. Lines: quartiles. Above: share of the "
        f"queries with a density of exactly 1, which use every key, as in softmax. {text}",
    )
    for axes, part in drawn:
        queries = part.loc[part.index.repeat((part["share"] * N_POINTS).round().astype(int))]
        sns.violinplot(
            queries,
            x="name",
            y="density",
            hue="name",
            order=names,
            hue_order=names,
            palette=series_style(names)["palette"],
            cut=0,
            inner="quart",
            linewidth=0.7,
            legend=False,
            ax=axes,
        )
        dense = part[part["low"] == 1.0].set_index("name")["share"]
        for index, name in enumerate(names):
            share = f"{100 * dense.get(name, 0.0):.0f} %"
            axes.annotate(share, (index, 1.05), ha="center", fontsize=6.5, annotation_clip=False)
        axes.set(xlabel="", ylabel="density of a query", ylim=(0, 1.15))
        axes.set_xticks(range(len(names)), [display_name(name) for name in names])
        if len(names) == 1:
            axes.set_xticks([0], [textwrap.fill(display_name(names[0]), 30)])
        elif sum(map(len, names)) > 30:  # horizontal names would overlap
            axes.tick_params(axis="x", rotation=90)
    return figure


@styled
def diversity_layers(table: pd.DataFrame, what: str = "", text: str = "") -> Figure:
    """Draw the diversity of the heads of each layer, one panel per site, one line per name.

    Args:
        table: rows of the analysis' table LAYERS that have `diversity_heads`.
        what: what was trained, for the title.
        text: the text it was measured on, for the note.
    """
    figure, drawn = panels(
        table,
        "site",
        "Diversity of the heads of each layer",
        what,
        "Jensen-Shannon divergence of the weights of a layer's heads, divided by log(number of "
        f"heads); 0: all heads give the same weights. {MEAN} {text}",
    )
    style = series_style(table["name"])
    for axes, part in drawn:
        mean_curves(axes, part, "layer", "diversity_heads", "name", **style)
        axes.set_ylabel("Jensen-Shannon divergence\n/ log(number of heads)")
        integer_axis(axes.xaxis)
    drawn[0][0].set_ylim(bottom=0)  # of all panels
    legend_right(drawn)
    return figure


@styled
def pruning_curves(table: pd.DataFrame, what: str = "", text: str = "") -> Figure:
    """Draw the score over the share of removed heads, one panel per name, one line per sites.

    Args:
        table: columns sites, fraction, score, metric, name and run; sites are ALL_HEADS or names.
        what: what was trained, for the title.
        text: the text it was measured on, for the note.
    """
    table = table.assign(removed=100 * table["fraction"])
    figure, drawn = panels(
        table,
        "name",
        "Scores when heads are removed, the least important first",
        what,
        f"{MEAN} {text}",
    )
    style = series_style([ALL_HEADS, *table["sites"]])
    for axes, part in drawn:
        mean_curves(axes, part, "removed", "score", "sites", **style)
        axes.set(xlabel="heads removed (%)", ylabel=part["metric"].iloc[0])
    legend_right(drawn)
    return figure


@styled
def head_counts(table: pd.DataFrame, what: str = "") -> Figure:
    """Draw what models of one width reach by the number of heads of a layer, one line per name.

    Args:
        table: columns name, run, n_heads, measure (one panel each) and value.
        what: what was trained, for the title.
    """
    title = "How many heads are enough?"
    note = f"{MEAN} Effective heads: those left before the score is significantly lower."
    figure, drawn = panels(table, "measure", title, what, note, sharey=False)
    style = series_style(table["name"])
    for axes, part in drawn:
        mean_curves(axes, part, "n_heads", "value", "name", **style)
        axes.set_xscale("log", base=2)
        numbers = sorted(table["n_heads"].unique())
        axes.set_xticks(numbers, [str(n) for n in numbers])
        axes.set(xlabel="heads per layer", ylabel="")
    legend_right(drawn)
    return figure


@styled
def by_length(table: pd.DataFrame, what: str = "") -> Figure:
    """Draw test scores by the length of the input, one line per name.

    Args:
        table: columns name, run, metric, length and score.
        what: what was trained, for the title.
    """
    return _over_lengths(table, "metric", "score", "Scores by length", what)


@styled
def relevant_weight(table: pd.DataFrame, what: str = "") -> Figure:
    """Draw the weight on the key that a query needs by length, one panel per site.

    Of every run and length, the head with the largest weight is drawn.

    Args:
        table: rows of the analysis' table LENGTHS, with name and run.
        what: what was trained, for the title.
    """
    best = table.groupby(["site", "name", "run", "length"], sort=False)["relevant_weight"].max()
    title = "Weight of the best head on the key that a query needs"
    return _over_lengths(best.reset_index(), "site", "relevant_weight", title, what)


def _over_lengths(table: pd.DataFrame, panel: str, value: str, title: str, what: str) -> Figure:
    figure, drawn = panels(table, panel, title, what, MEAN, sharey=False)
    style = series_style(table["name"])
    for axes, part in drawn:
        mean_curves(axes, part, "length", value, "name", **style)
        axes.set_xscale("log", base=2)
        lengths = sorted(part["length"].unique())
        axes.set_xticks(lengths, [f"{length:,}" for length in lengths])
        axes.set(xlabel="length", ylabel=part[panel].iloc[0] if panel == "metric" else "weight")
    legend_right(drawn)
    return figure


@styled
def score_curves(table: pd.DataFrame) -> Figure:
    """Draw validation scores over training, one panel per corpus and metric, one line per name.

    Args:
        table: columns corpus, metric, name, run, update and score.
    """
    title = "Scores on the validation set over training"
    table = table.assign(panel=table["corpus"] + ", " + table["metric"])
    figure, drawn = panels(table, "panel", title, note=MEAN, height=2.0, sharey=False)
    style = series_style(table["name"])
    for axes, part in drawn:
        mean_curves(axes, part, "update", "score", "name", **style)
        axes.set_ylabel(f"validation {part['metric'].iloc[0]}")
        update_axis(axes)
    legend_right(drawn)
    return figure
