"""Is one system better than another by more than the choice of test items explains?

Paired bootstrap resampling (Koehn 2004): items of a test set, such as sentences, are drawn with
replacement, the same ones for both systems, and the difference in a metric is computed on each
draw from the sums of their statistics. Systems trained from several seeds are compared through
their mean score, which is what tables show: on each draw the mean over the seeds' differences. What
is tested is thus the items' share of the chance; how much seeds differ is not in the p value, and
is shown beside it as a standard deviation.

sacreBLEU's own paired test takes one pair of systems and compares absolute differences, so that on
equal systems it falls below 0.05 about one time in ten; hence the resampling here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from headwise.errors import DataError, require
from headwise.metrics.metric import Floats, Metric

RANDOM_SEED = 12345  # sacreBLEU's own; a report made twice says the same


@dataclass(frozen=True)
class Comparison:
    """A system beside a baseline.

    Attributes:
        difference: mean over seeds of the difference in score, above 0 where the system is better,
            in the unit of the metric.
        low, high: middle 95 % of the differences on resampled items.
        p_value: two-sided: how often a difference as large comes about between equal systems.
        n_seeds: pairs of systems.
        n_items: of the test set.
        n_resamples: draws of that many items.
    """

    difference: float
    low: float
    high: float
    p_value: float
    n_seeds: int
    n_items: int
    n_resamples: int


def paired_bootstrap(
    systems: Sequence[Floats], baselines: Sequence[Floats], metric: Metric, n_resamples: int = 1000
) -> Comparison:
    """Compare systems with baselines, pair by pair, on the same resampled items.

    The p value is of the resampled differences moved to a mean of 0, as a true difference of 0
    would spread them: the share that is as far from 0 as what was observed.

    Args:
        systems, baselines: the items (items, statistics) of one system a seed, in the same order of
            seeds, all of the same test set.
        metric: a function of the sums of these items.
        n_resamples: draws.

    Raises:
        DataError: items of different test sets, or none.
        ConfigError: fewer than 1 draw.
    """
    require(n_resamples >= 1, "n_resamples", "at least 1", n_resamples)
    if len(systems) != len(baselines) or not systems:
        raise DataError(f"cannot pair {len(systems)} systems with {len(baselines)} baselines")
    n_items = len(systems[0])
    if any(len(items) != n_items for items in (*systems, *baselines)):
        raise DataError("cannot pair systems that were scored on different numbers of items")
    generator = np.random.default_rng(RANDOM_SEED)
    draws = generator.multinomial(n_items, [1 / n_items] * n_items, size=n_resamples)
    weights = draws.astype(np.float64)  # (draws, items): how often each was drawn

    def scores(items: Floats) -> Floats:
        """Of the items as they are, and of each draw."""
        columns = items[:, list(metric.columns)]
        sums = np.vstack((columns.sum(0), weights @ columns))
        return metric.sign * np.array([metric.of_sums(row) for row in sums])

    pairs = zip(systems, baselines, strict=True)
    found = np.mean([scores(new) - scores(old) for new, old in pairs], axis=0)
    difference, resampled = float(found[0]), found[1:]
    centred = np.abs(resampled - resampled.mean())
    n_as_far = int((centred >= abs(difference)).sum())
    low, high = np.quantile(resampled, [0.025, 0.975])
    return Comparison(
        difference=difference,
        low=float(low),
        high=float(high),
        p_value=(n_as_far + 1) / (n_resamples + 1),
        n_seeds=len(systems),
        n_items=n_items,
        n_resamples=n_resamples,
    )
