"""Two questions about a difference between systems: other seeds, and other test items.

**Over seeds**: Student's t interval of the differences of runs paired by seed. It is the one that
supports a claim about a rule, as another training of it is another seed.

**Over items**: paired bootstrap resampling (Koehn 2004). Items of a test set, such as sentences,
are drawn with replacement, the same ones for both systems, and the difference in a metric is
computed on each draw from the sums of their statistics. Systems trained from several seeds are
compared by the mean difference over seeds on each draw, as in the tables.

Windows of one text are not independent: of items that are consecutive, blocks of neighbours are
drawn, from a circle of all items (Politis and Romano 1992), of n^(1/3) items, the order of
length that is best for variances (Hall, Horowitz and Jing 1995).

sacreBLEU's paired test takes one pair of systems and compares absolute differences: for equal
systems its p-value is below 0.05 about one time in ten. Hence this implementation.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from headwise.config.commands import N_RESAMPLES
from headwise.errors import DataError, require
from headwise.metrics.metric import Floats, Measured, Metric, Score

Bools = npt.NDArray[np.bool_]

BATCH_SIZE = 100  # 10,000 draws of 3,000 items take under a second
RANDOM_SEED = 12345  # as in sacreBLEU; makes reports reproducible


@dataclass(frozen=True)
class Comparison:
    """A system compared with a baseline, on items of a test set.

    Attributes:
        difference: mean over seeds of the difference in the metric.
        low: lower bound of its 95 % bootstrap confidence interval, over items.
        high: its upper bound.
        p_value: two-sided: probability of a difference at least as large between equal systems.
    """

    difference: float
    low: float
    high: float
    p_value: float


def t_quantile(n_degrees: int, share: float = 0.95) -> float:
    """Bound that |t| is below with probability `share`, for Student's t.

    By bisection of the finite sums for whole degrees of freedom (Abramowitz and Stegun 1964,
    26.7.3 and 26.7.4).
    """

    def inside(t: float) -> float:
        angle = math.atan2(t, math.sqrt(n_degrees))
        term, total = (math.cos(angle) if n_degrees % 2 else 1.0), 0.0
        for k in range(1 + n_degrees % 2, n_degrees, 2):
            total, term = total + term, term * math.cos(angle) ** 2 * k / (k + 1)
        total *= math.sin(angle)
        return 2 / math.pi * (angle + total) if n_degrees % 2 else total

    low, high = 0.0, 1e6
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if inside(middle) < share else (low, middle)
    return high


def mean_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """95 % interval of a mean by Student's t, with n - 1 degrees of freedom; None below 2 values.

    Of the differences of runs paired by seed it is the interval over seeds.
    """
    n = len(values)
    if n < 2:
        return None
    half = t_quantile(n - 1) * statistics.stdev(values) / math.sqrt(n)
    mean = statistics.fmean(values)
    return mean - half, mean + half


def _drawn_sums(columns: Floats, n_resamples: int, consecutive: bool) -> Floats:
    """Sums (systems, draws, statistics) of n_items items, drawn with replacement.

    Args:
        columns: (systems, items, statistics); the same draws for all systems.
        consecutive: draw blocks of neighbours; the last one may be cut.
    """
    generator, (n_systems, n_items, _) = np.random.default_rng(RANDOM_SEED), columns.shape
    flat = columns.transpose(1, 0, 2).reshape(n_items, -1)  # one product for all systems
    n_block = max(1, round(math.cbrt(n_items))) if consecutive else 1
    sums = []
    for first in range(0, n_resamples, BATCH_SIZE):
        n_draws = min(BATCH_SIZE, n_resamples - first)
        indices = generator.integers(n_items, size=(n_draws, -(-n_items // n_block)))
        if consecutive:
            indices = (indices[..., None] + np.arange(n_block)) % n_items
            indices = indices.reshape(n_draws, -1)[:, :n_items]
        indices += np.arange(n_draws)[:, None] * n_items
        counts = np.bincount(indices.ravel(), minlength=n_draws * n_items).reshape(n_draws, n_items)
        sums.append(counts.astype(np.float64) @ flat)
    return np.concatenate(sums).reshape(n_resamples, n_systems, -1).transpose(1, 0, 2)


def scores_with_intervals(measured: Measured, n_resamples: int = 2000) -> dict[str, Score]:
    """The scores of measured items, with 95 % bootstrap intervals (`Metric.has_interval`)."""
    scores, metrics = measured.scores(), [m for m in measured.metrics if m.has_interval]
    if metrics:
        (sums,) = _drawn_sums(measured.items[None], n_resamples, metrics[0].consecutive)
    for metric in metrics:
        resampled = [metric.from_sums(row) for row in metric.used(sums)]
        low, high = np.quantile(resampled, [0.025, 0.975])
        scores[metric.name] |= {"low": float(low), "high": float(high)}
    return scores


def mcnemar(is_right: Bools, other_is_right: Bools) -> float:
    """Two-sided p-value of McNemar's exact test (1947) on the items that one system has right."""
    n_first = int((is_right & ~other_is_right).sum())
    n_one = n_first + int((other_is_right & ~is_right).sum())
    tail = sum(math.comb(n_one, k) for k in range(min(n_first, n_one - n_first) + 1))
    p_value: float = 2 * tail / 2**n_one
    return min(1.0, p_value)


def paired_bootstrap(
    systems: Sequence[Floats],
    baselines: Sequence[Floats],
    metric: Metric,
    n_resamples: int = N_RESAMPLES,
) -> Comparison:
    """Compare systems with baselines, pair by pair, on the same resampled items.

    The p-value is the share of the resampled differences, shifted to a mean of 0, that are at least
    as far from 0 as the observed one.

    Args:
        systems: (items, statistics) of one system per seed, all on the same test set.
        baselines: the same for the baselines, in the same seed order.
        metric: a function of the sums of these items.
        n_resamples: number of draws.

    Raises:
        DataError: different numbers of systems or items, or none.
        ConfigError: fewer than 1 draw.
    """
    require(n_resamples >= 1, "n_resamples", "at least 1", n_resamples)
    if len(systems) != len(baselines) or not systems:
        raise DataError(f"cannot pair {len(systems)} systems with {len(baselines)} baselines")
    n_items = len(systems[0])
    if any(len(items) != n_items for items in (*systems, *baselines)):
        raise DataError("cannot pair systems that were scored on different numbers of items")
    columns = np.stack([metric.used(items) for items in (*systems, *baselines)])
    drawn = _drawn_sums(columns, n_resamples, metric.consecutive)
    sums = np.concatenate((columns.sum(1)[:, None], drawn), axis=1)
    scores = np.array([[metric.from_sums(row) for row in s] for s in sums])
    differences = (scores[: len(systems)] - scores[len(systems) :]).mean(0)
    difference, resampled = float(differences[0]), differences[1:]
    centred = np.abs(resampled - resampled.mean())
    n_beyond = int((centred >= abs(difference)).sum())
    low, high = np.quantile(resampled, [0.025, 0.975])
    return Comparison(
        difference=difference,
        low=float(low),
        high=float(high),
        p_value=(n_beyond + 1) / (n_resamples + 1),
    )
