"""α of every head over the training (Correia et al. 2019, section 5.1)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from headwise.analysis.pruning import Head, Heads
from headwise.analysis.tables import HEAD_KEY
from headwise.track.base import numbered

NAMES = ("first", "lowest", "last")
MIN_CHANGE = 0.01  # minimum change of α that counts
MIN_RISE = 0.05  # minimum rise from the lowest α that counts as coming back


def trajectory_rows(records: Iterable[Mapping[str, Any]], heads: Heads) -> list[dict[str, Any]]:
    """Return first, lowest and last α of every head that has one, as rows of the table.

    Args:
        records: records of heads.jsonl, by ascending update.
        heads: numbers of the heads of the run.
    """
    series: dict[Head, list[tuple[int, float]]] = {}
    for record in records:
        for head, alpha in numbered(record.get("alpha", {}), heads):
            series.setdefault(head, []).append((int(record["update"]), alpha))
    rows = []
    for head, points in series.items():
        row: dict[str, Any] = dict(zip(HEAD_KEY, head, strict=True))
        lowest = min(points, key=lambda point: (point[1], point[0]))
        for name, (update, alpha) in zip(NAMES, (points[0], lowest, points[-1]), strict=True):
            row |= {f"{name}_update": update, name: alpha}
        rows.append({**row, "fell_first": fell_first([alpha for _, alpha in points])})
    return rows


def fell_first(alphas: Sequence[float]) -> int | None:
    """1 if the first change of `MIN_CHANGE` or more is a decrease, 0 if not, None without any."""
    for alpha in alphas:
        if abs(alpha - alphas[0]) >= MIN_CHANGE:
            return int(alpha < alphas[0])
    return None


def rise(alphas: Any) -> Any:
    """How far the last α is above the lowest, of a row of the table or of all."""
    return alphas["last"] - alphas["lowest"]


def came_back(alphas: Any) -> Any:
    """Whether the last α is at least `MIN_RISE` above the lowest, of a row or of all."""
    return rise(alphas) >= MIN_RISE


def spearman(a: Iterable[float], b: Iterable[float]) -> float | None:
    """Rank correlation, ties get their mean rank; None if an input is constant."""
    ranks = pd.DataFrame({"a": list(a), "b": list(b)}, dtype=float)
    correlation = float(ranks.corr("spearman").loc["a", "b"])
    return None if math.isnan(correlation) else correlation


def spearman_interval(a: Sequence[float], b: Sequence[float]) -> tuple[float, float, float] | None:
    """Rank correlation with its 95 % interval; None if undefined or for fewer than eight pairs.

    Fisher's transformation with a standard error of 1.03 / sqrt(n - 3) (Fieller et al. 1957).
    """
    correlation = spearman(a, b)
    if correlation is None or len(a) < 8:
        return None
    inside = min(max(correlation, -1 + 1e-12), 1 - 1e-12)
    center, half = math.atanh(inside), 1.96 * 1.03 / math.sqrt(len(a) - 3)
    return correlation, math.tanh(center - half), math.tanh(center + half)


def sarle(values: Sequence[float]) -> float | None:
    """Sarle's bimodality coefficient of a sample; above 5/9 (uniform), it suggests two modes.

    (g² + 1) / (k + 3 (n - 1)² / ((n - 2) (n - 3))) with skewness g and excess kurtosis k, both
    corrected for n. None for fewer than four values, or if all are equal.
    """
    n, sample = len(values), pd.Series(values, dtype=float)
    if n < 4 or sample.nunique() == 1:
        return None
    skewness, kurtosis = float(sample.skew()), float(sample.kurt())
    return (skewness**2 + 1) / (kurtosis + 3 * (n - 1) ** 2 / ((n - 2) * (n - 3)))


def p_value_of_two_groups(values: Sequence[float], n_resamples: int = 1000) -> float | None:
    """Test one normal distribution against a mixture of two with a common deviation.

    The likelihood ratio of one group has no known distribution: it is taken from samples of one
    normal distribution (parametric bootstrap; McLachlan 1987), always the same ones.

    Returns:
        The p-value; None for fewer than eight values, or if all are equal.
    """
    sample = np.asarray(values, float)
    if len(sample) < 8 or sample.std() == 0:
        return None
    drawn = np.random.default_rng(1).standard_normal((n_resamples, len(sample)))
    ratios = _gain_of_two_groups(np.concatenate([sample[None], drawn]))
    return float((1 + (ratios[1:] >= ratios[0]).sum()) / (1 + n_resamples))


def _gain_of_two_groups(samples_SN: NDArray[np.float64], steps: int = 60) -> NDArray[np.float64]:
    """Log likelihood of two groups minus that of one, for each sample, by EM from a split."""
    n = samples_SN.shape[1]
    x = np.sort((samples_SN - samples_SN.mean(1, keepdims=True)) / samples_SN.std(1, keepdims=True))
    best = np.full(len(x), -np.inf)
    for cut in range(2, n - 1):  # starts: the lowest `cut` values, and the others
        share = np.repeat((np.arange(n) < cut)[None], len(x), 0).astype(float)
        for _ in range(steps):
            weight = share.mean(1, keepdims=True)
            low = (share * x).sum(1, keepdims=True) / share.sum(1, keepdims=True)
            high = ((1 - share) * x).sum(1, keepdims=True) / (1 - share).sum(1, keepdims=True)
            squares = share * (x - low) ** 2 + (1 - share) * (x - high) ** 2
            variance = np.maximum(squares.mean(1, keepdims=True), 1e-3)
            density = [
                part * np.exp(-((x - mean) ** 2) / (2 * variance))
                for part, mean in ((weight, low), (1 - weight, high))
            ]
            total = density[0] + density[1]
            share = np.clip(density[0] / total, 1e-9, 1 - 1e-9)
        likelihood = np.log(total).sum(1) - n / 2 * np.log(variance[:, 0])
        best = np.maximum(best, likelihood)
    gain: NDArray[np.float64] = best + n / 2  # of one group with deviation 1: -n/2
    return gain
