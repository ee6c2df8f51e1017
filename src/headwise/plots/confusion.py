"""The confusion matrix of a classifier."""

from __future__ import annotations

import pandas as pd
import seaborn as sns
from matplotlib.figure import Figure

from headwise.plots.style import TWO_COLUMNS, styled

MAX_NUMBERED = 12  # classes; with more, cells have no numbers


@styled
def confusion_matrix(counts: pd.DataFrame, title: str) -> Figure:
    """Draw the share of each prediction (column) among the examples of a label (row).

    Args:
        counts: of examples; those of small matrices are in the cells.
        title: of the figure.
    """
    size = min(TWO_COLUMNS, 1.6 + 0.42 * len(counts))
    figure = Figure(figsize=(size + 0.8, size))
    axes = figure.subplots()
    shares = counts.div(counts.sum(axis=1).clip(lower=1), axis=0)
    numbers = counts if len(counts) <= MAX_NUMBERED else None
    sns.heatmap(
        shares, annot=numbers, fmt="d", vmin=0, vmax=1, cmap="Blues", square=True, ax=axes,
        cbar_kws={"label": "share of the label", "shrink": 0.7},
    )  # fmt: skip
    axes.set(title=title, xlabel="prediction", ylabel="label")
    return figure
