"""What every tracker offers, and the names under which it files things.

Names: metrics are `split/name` (`valid/loss`); α is `alpha/<site>/layer<i>/head<j>`; any other
statistic of a head is `attention/<statistic>/<site>/layer<i>/head<j>`. Layers and heads count
from 1; where heads were pruned, the others keep their numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

HeadValues = Mapping[str, Sequence[Sequence[float | None]]]
"""site -> one entry a layer -> one value a head; an empty layer has no such statistic."""

HeadNumbers = Mapping[str, Sequence[Sequence[int]]]
"""site -> layers -> rising numbers from 1 of the heads that are there, as in `model.heads`."""


class Tracker(Protocol):
    """A view of a run. The record itself is the run folder; nothing reads a tracker back."""

    def log(self, update: int, metrics: Mapping[str, float]) -> None:
        """Scalars measured after `update` updates, named `split/name`."""

    def log_heads(self, update: int, heads: Mapping[str, HeadValues]) -> None:
        """Statistics of the heads: name of the statistic (`alpha`, `density`, ...) -> values."""

    def log_table(self, name: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        """A table of plain values, such as outputs beside what was expected."""

    def log_image(self, name: str, path: Path) -> None:
        """A raster image (png) that stands at `path`."""

    def summary(self, values: Mapping[str, Any]) -> None:
        """What the run is remembered by, such as its test scores."""

    def finish(self, status: str) -> None:
        """End the view; `finished` counts as success, any other status as failure."""


class NullTracker:
    """A tracker that keeps nothing."""

    def log(self, update: int, metrics: Mapping[str, float]) -> None:
        """Keep nothing."""

    def log_heads(self, update: int, heads: Mapping[str, HeadValues]) -> None:
        """Keep nothing."""

    def log_table(self, name: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        """Keep nothing."""

    def log_image(self, name: str, path: Path) -> None:
        """Keep nothing."""

    def summary(self, values: Mapping[str, Any]) -> None:
        """Keep nothing."""

    def finish(self, status: str) -> None:
        """Nothing to end."""


def head_name(statistic: str, site: str, layer: int, head: int) -> str:
    """Name of one value of one head; layer and head from 1."""
    prefix = "alpha" if statistic == "alpha" else f"attention/{statistic}"
    return f"{prefix}/{site}/layer{layer}/head{head}"


def head_metrics(
    heads: Mapping[str, HeadValues], kept: HeadNumbers | None = None
) -> dict[str, float]:
    """The statistics of `Tracker.log_heads` as named scalars, without the absent ones."""
    return {
        head_name(statistic, *place): value
        for statistic, values in heads.items()
        for place, value in numbered(values, kept)
    }


def numbered(
    values: HeadValues, kept: HeadNumbers | None = None
) -> Iterator[tuple[tuple[str, int, int], float]]:
    """(site, layer, number of the head) and value of every head that has one.

    Args:
        values: of the heads that are there, in their order.
        kept: the numbers that they have; None: they are counted from 1. What has another number of
            values than a layer has heads is left out.
    """
    for site, layers in values.items():
        for layer, found in enumerate(layers, start=1):
            numbers = head_numbers(kept, site, layer, len(found))
            for number, value in zip(numbers, found, strict=False):
                if value is not None and math.isfinite(value):
                    yield (site, layer, number), float(value)


def head_numbers(kept: HeadNumbers | None, site: str, layer: int, n_values: int) -> Sequence[int]:
    """The numbers of the heads of one layer; none where there are not as many as values."""
    if not kept or site not in kept:
        return range(1, n_values + 1)
    numbers = kept[site][layer - 1] if layer <= len(kept[site]) else ()
    return numbers if len(numbers) == n_values else ()
