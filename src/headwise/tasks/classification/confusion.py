"""The confusion matrix of a classifier."""

from __future__ import annotations

import io
import textwrap

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.figure import Figure

from headwise.plots.style import TWO_COLUMNS, drawable, failure_as_warning, styled
from headwise.runs.record import Record
from headwise.tasks.classification.predict import CONFUSION, FOLDER

MAX_NUMBERED = 12  # classes; with more, cells have no numbers
MAX_CLASSES = 50  # drawn of more classes: those with the most confusions
MAX_CHARACTERS = 24  # of the name of a class


def confusion_figures(run: Record, name: str) -> dict[str, Figure]:
    """File name -> figure of the predictions of each split; `name` is of what was trained."""
    of_run = f" ({name})" if name else ""
    figures = {}
    for file in run.names(f"{FOLDER}/*{CONFUSION}"):
        split = file.removeprefix(f"{FOLDER}/").removesuffix(CONFUSION)
        with failure_as_warning(f"confusion-{split}"):
            # names of classes are text, "NA" too
            text = io.StringIO(run.text(file))
            counts = pd.read_csv(text, index_col=0, dtype={"label": str}, keep_default_na=False)
            title = f"Predictions of {split}{of_run}"
            figures[f"confusion-{split}"] = confusion_matrix(counts, title)
    return figures


@styled
def confusion_matrix(counts: pd.DataFrame, title: str) -> Figure:
    """Draw the share of each prediction (column) among the examples of a label (row).

    Of many classes, those with the most wrong examples, by label and by prediction, are drawn.

    Args:
        counts: of examples; those of small matrices are in the cells.
        title: of the figure.
    """
    cells = counts.to_numpy()
    shares = cells / cells.sum(1, keepdims=True).clip(min=1)
    n_wrong = cells.sum(0) + cells.sum(1) - 2 * cells.diagonal()
    if len(counts) > MAX_CLASSES:
        title = f"{title}: the {MAX_CLASSES} most confused of {len(counts):,} classes"
    chosen = np.sort(np.argsort(-n_wrong, kind="stable")[:MAX_CLASSES])
    names = [drawable(str(name), MAX_CHARACTERS) for name in counts.index[chosen]]
    shown = pd.DataFrame(shares[np.ix_(chosen, chosen)], names, names)
    size = min(TWO_COLUMNS, 1.6 + 0.42 * len(chosen))
    figure = Figure(figsize=(size + 0.8, size))
    axes = figure.subplots()
    numbers = cells if len(counts) <= MAX_NUMBERED else None
    sns.heatmap(
        shown, annot=numbers, fmt="d", vmin=0, vmax=1, cmap="Blues", square=True, ax=axes,
        cbar_kws={"label": "share of the label", "shrink": 0.7},
    )  # fmt: skip
    title = textwrap.fill(drawable(title, 200), int(size * 15))
    axes.set(title=title, xlabel="prediction", ylabel="label")
    return figure
