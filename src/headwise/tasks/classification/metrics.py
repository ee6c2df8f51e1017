"""Metrics of classifiers, in percent, as functions of sums over examples, and the confusion matrix.

Statistics of an example, with C classes: loss, its measure, 1, whether the first prediction is
right, whether one of the first five is, the probability of the first, then per class whether it is
right, true and predicted.
"""

from __future__ import annotations

import io
import textwrap

import numpy as np
import numpy.typing as npt
import pandas as pd
import seaborn as sns
from matplotlib.figure import Figure

from headwise.metrics.metric import Floats, Metric, percent
from headwise.plots.style import TWO_COLUMNS, drawable, failure_as_warning, styled
from headwise.runs.record import Record
from headwise.tasks.classification.predict import CONFUSION, FOLDER

N_BEFORE = 6  # statistics before those per class
TOP = 5  # predictions of `top5`


def class_metrics(n_classes: int | None, unit: str) -> list[Metric]:
    """Accuracy, macro F1, Matthews correlation and, with more than `TOP` classes, top-5 accuracy.

    Args:
        n_classes: None: unknown before data is read.
        unit: of the items.
    """
    metrics = [
        Metric("accuracy", "higher", percent, (2, 3), "percent", unit, "accuracy (%)"),
        Metric(
            "f1_macro", "higher", f1_macro, None, "percent, mean of classes", unit, "macro F1 (%)"
        ),
        Metric("matthews", "higher", matthews, None, "times 100", unit, "Matthews correlation (%)"),
    ]
    if n_classes is not None and n_classes > TOP:
        metrics.append(
            Metric("top5", "higher", percent, (2, 4), "percent", unit, "top-5 accuracy (%)")
        )
    return metrics


def _by_class(values: Floats) -> Floats:
    """Statistics per class, (…, 3, C): right, true and predicted; of items, or their sums."""
    return values[..., N_BEFORE:].reshape(*values.shape[:-1], 3, -1)


def true_classes(items: Floats) -> Floats:
    """The classes of items as rows of one 1, (N, C)."""
    return _by_class(items)[:, 1]


def predictions(items: Floats) -> tuple[npt.NDArray[np.int64], Floats]:
    """The predicted class of each item, and its probability, (N,) each."""
    return _by_class(items)[:, 2].argmax(1), items[:, N_BEFORE - 1]


def f1_macro(sums: Floats) -> float:
    """Mean F1 (%) of the classes that are true or predicted, as in scikit-learn."""
    right_C, true_C, predicted_C = _by_class(sums)
    either_C = true_C + predicted_C
    return float(100 * np.mean(2 * right_C[either_C > 0] / either_C[either_C > 0]))


def matthews(sums: Floats) -> float:
    """Matthews correlation (%) of C classes (Gorodkin 2004); 0 if there is one class only."""
    right_C, true_C, predicted_C = _by_class(sums)
    n = true_C.sum()
    spread = (n**2 - true_C @ true_C) * (n**2 - predicted_C @ predicted_C)
    if not spread:
        return 0.0
    return float(100 * (right_C.sum() * n - true_C @ predicted_C) / np.sqrt(spread))


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
