"""A metric is a function of sums over items; validation, ranks, tests and tables share it.

An item is one element of a test set: a sentence, a document, an example. It has a row of
statistics, such as nats and tokens, or counts of n-grams.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NotRequired, TypedDict, cast

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


class Score(TypedDict):
    """A value and how it was computed, as in `results.json`.

    Attributes:
        score: the value.
        signature: how it was computed.
        scope: see `Metric`.
        n_scored: number of tokens, of a density model.
        n_bytes: number of bytes or dimensions that the tokens spell.
        low: lower bound of the 95 % bootstrap confidence interval, of a classifier.
        high: its upper bound.
        content: hash of the split before tokenization, see `Task.contents`.
        items: hash of the items; only scores of equal items can be paired.
    """

    score: float
    signature: str
    scope: NotRequired[str]
    n_scored: NotRequired[int]
    n_bytes: NotRequired[int]
    low: NotRequired[float]
    high: NotRequired[float]
    content: NotRequired[str]
    items: NotRequired[str]


@dataclass(frozen=True)
class Metric:
    """A score of any number of items.

    Attributes:
        name: in results.json, in logs, and in `trainer.monitor`.
        better: whether a higher or a lower score is better.
        from_sums: sums over the items, one per column -> score.
        columns: the statistics of an item that the metric uses; None: all.
        signature: how it is computed; scores with different signatures are not comparable.
        unit: kind of the items, as in the file `sums/<split>.<unit>.npz` of a run folder.
        label: on axes and in tables.
        counts: key of `Score` -> column of the items whose sum it is.
        scope: what else determines it, shown beside it: a search, or the part of a split; or empty.
        has_interval: whether scores have a confidence interval.
        consecutive: whether neighbouring items depend on each other, as windows of one text do.
    """

    name: str
    better: Literal["higher", "lower"]
    from_sums: Callable[[Floats], float]
    columns: Sequence[int] | None
    signature: str
    unit: str
    label: str
    counts: Mapping[str, int] = field(default_factory=dict)
    scope: str = ""
    has_interval: bool = False
    consecutive: bool = False

    @property
    def sign(self) -> int:
        """1 if higher is better, else -1."""
        return 1 if self.better == "higher" else -1

    @property
    def scoped_label(self) -> str:
        """The label with the scope."""
        return f"{self.label} ({self.scope})" if self.scope else self.label

    def used(self, items: Floats) -> Floats:
        """Return the statistics (..., columns) that the metric uses, of items (..., statistics)."""
        return items if self.columns is None else items[..., list(self.columns)]

    def score(self, items: Floats) -> float:
        """Return the score of items, (items, statistics)."""
        return float(self.from_sums(self.used(items.sum(0))))


@dataclass(frozen=True)
class Measured:
    """Statistics of items, and the metrics to compute from them.

    Attributes:
        items: (items, statistics).
        metrics: of the sums of the items, all of one unit.
    """

    items: Floats
    metrics: Sequence[Metric]

    @property
    def unit(self) -> str:
        """Unit of its metrics."""
        return self.metrics[0].unit

    def values(self) -> dict[str, float]:
        """Metric -> score."""
        return {metric.name: metric.score(self.items) for metric in self.metrics}

    def scores(self) -> dict[str, Score]:
        """Metric -> score, signature and counts, as a split of results.json."""
        values, sums = self.values(), self.items.sum(0)
        scores = {}
        for metric in self.metrics:
            counts = {key: int(sums[column]) for key, column in metric.counts.items()}
            score = {"score": values[metric.name], "signature": metric.signature}
            scope = {"scope": metric.scope} if metric.scope else {}
            scores[metric.name] = cast(Score, score | scope | counts)
        return scores


def percent(sums: Floats) -> float:
    """Percent right, from the sums (examples, right ones)."""
    return float(100 * sums[1] / sums[0])
