"""Metrics of classifiers, in percent, as functions of sums over examples.

Statistics of an example, with C classes: loss, its measure, 1, whether the first prediction is
right, whether one of the first five is, the probability of the first, then per class whether it is
right, true and predicted.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from headwise.metrics.metric import Floats, Metric, percent

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
