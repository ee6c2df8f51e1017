"""Metrics of classifiers against their definitions, from sums over examples."""

import numpy as np
import pytest
import torch

from headwise.losses.loss import CrossEntropy
from headwise.metrics.significance import paired_bootstrap
from headwise.tasks.classification.metrics import class_metrics
from headwise.tasks.classification.task import class_statistics

N, C = 200, 7


def statistics(logits, targets):
    extra = class_statistics(CrossEntropy(), logits, targets).numpy()
    return np.column_stack((np.ones((len(extra), 3)), extra)).astype(np.float64)


def drawn(seed, n_classes=C, signal=2.0):
    generator = torch.Generator().manual_seed(seed)
    targets = torch.randint(n_classes, (N,), generator=generator)
    logits = torch.randn(N, n_classes, generator=generator)
    logits[torch.arange(N), targets] += signal
    return logits, targets


def scores(logits, targets):
    items = statistics(logits, targets)
    return {m.name: m.score(items) for m in class_metrics(logits.shape[1], "loss")}


def test_metrics_follow_their_definitions():
    logits, targets = drawn(1)
    predicted, true = logits.argmax(1).numpy(), targets.numpy()
    measured = scores(logits, targets)
    assert measured["accuracy"] == pytest.approx(100 * (predicted == true).mean())
    first_five = np.argsort(-logits.numpy(), 1)[:, :5]
    assert measured["top5"] == pytest.approx(100 * (first_five == true[:, None]).any(1).mean())
    f1 = []
    for label in range(C):
        precision = (true[predicted == label] == label).mean()
        recall = (predicted[true == label] == label).mean()
        f1.append(2 * precision * recall / (precision + recall))
    assert measured["f1_macro"] == pytest.approx(100 * np.mean(f1))
    # the correlation of indicator vectors, summed over classes (Gorodkin 2004)
    x, y = np.eye(C)[predicted], np.eye(C)[true]
    x, y = x - x.mean(0), y - y.mean(0)
    correlation = (x * y).sum() / np.sqrt((x * x).sum() * (y * y).sum())
    assert measured["matthews"] == pytest.approx(100 * correlation)


def test_one_predicted_class_has_no_correlation_and_absent_classes_no_f1():
    targets = torch.tensor([0, 1, 0])
    logits = torch.tensor([[1.0, 0, 0]]).expand(3, 3)
    measured = scores(logits, targets)
    assert measured["matthews"] == 0
    assert measured["f1_macro"] == pytest.approx(100 * (0.8 + 0) / 2)
    assert "top5" not in measured


def test_bootstrap_compares_macro_f1():
    better, worse = (statistics(*drawn(1, signal=signal)) for signal in (4.0, 0.5))
    f1 = next(metric for metric in class_metrics(C, "loss") if metric.name == "f1_macro")
    found = paired_bootstrap([better], [worse], f1, 500)
    assert found.difference == pytest.approx(f1.score(better) - f1.score(worse))
    assert found.p_value < 0.01
    assert 0 < found.low < found.difference < found.high
