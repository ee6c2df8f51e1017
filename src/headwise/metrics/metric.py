"""A metric is a function of sums over items: validation, ranks, tests and tables share it.

An item is what a test set is drawn from: a sentence, a document, an example. What is known of it is
a row of statistics, such as nats and tokens, or counts of n-grams.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypedDict

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


class Score(TypedDict):
    """A value and how it was computed, as `results.json` holds them."""

    score: float
    signature: str


@dataclass(frozen=True)
class Metric:
    """A score of any number of items.

    Attributes:
        name: in results.json, in records, and of `trainer.monitor`.
        better: which of two scores is the better one.
        of_sums: from the sums over the items, one a column, to the score.
        columns: which statistics of an item it reads.
        signature: how it is computed; scores of two signatures do not compare.
        unit: whose items have these statistics: `sums/<split>.<unit>.npy` of a run folder.
        label: on axes and in tables.
    """

    name: str
    better: Literal["higher", "lower"]
    of_sums: Callable[[Floats], float]
    columns: Sequence[int]
    signature: str
    unit: str
    label: str

    @property
    def sign(self) -> int:
        """What a score is multiplied by so that higher is better."""
        return 1 if self.better == "higher" else -1

    def score(self, items: Floats) -> float:
        """The score of items (items, statistics)."""
        return float(self.of_sums(items.sum(0)[list(self.columns)]))


@dataclass(frozen=True)
class Measured:
    """What a measuring gives.

    Attributes:
        items: (items, statistics).
        metrics: what their sums give, all of one unit.
    """

    items: Floats
    metrics: Sequence[Metric]

    def values(self) -> dict[str, float]:
        """Metric -> score."""
        return {metric.name: metric.score(self.items) for metric in self.metrics}

    def scores(self) -> dict[str, Score]:
        """Metric -> score and signature, as a split of results.json."""
        values = self.values()
        return {m.name: {"score": values[m.name], "signature": m.signature} for m in self.metrics}
