"""The interface of a tracker, and the names of what is logged.

Names: metrics are `split/name` (`valid/loss`); α is `alpha/<site>/layer<i>/head<j>`; any other
statistic of a head is `attention/<statistic>/<site>/layer<i>/head<j>`. Layers and heads count
from 1; after pruning the remaining heads keep their numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

HeadValues = Mapping[str, Sequence[Sequence[float | None]]]
"""site -> layers -> one value per head; a layer without this statistic is empty."""

HeadNumbers = Mapping[str, Sequence[Sequence[int]]]
"""site -> layers -> ascending numbers from 1 of the present heads, as in `model.heads`."""


class Tracker:
    """A mirror of a run, which mirrors nothing here; nothing is read from a tracker.

    Args:
        other: settings of another tracker, such as the `tags` of an experiment; without effect.
    """

    def __init__(self, **other: Any) -> None:
        pass

    def check(self) -> None:
        """Validate settings and environment, before data is read.

        Raises:
            ConfigError: the run could not be logged.
        """

    def start(self, run_dir: Path, group: str | None, config: Mapping[str, Any]) -> None:
        """Open the tracker; only the first rank does.

        Args:
            run_dir: the run folder.
            group: name of the sweep, or None.
            config: the resolved config as plain dicts, lists, strings and numbers.
        """

    def rewind(self, update: int) -> bool:
        """Discard what earlier processes logged after `update`, which is logged again; -1: all.

        Returns:
            Whether the scalars and statistics up to `update` are to be logged again as well.
        """
        return False

    def log(self, update: int, metrics: Mapping[str, float]) -> None:
        """Log scalars after `update` updates, named `split/name`."""

    def log_heads(self, update: int, heads: Mapping[str, HeadValues]) -> None:
        """Log statistics of the heads: statistic (`alpha`, `density`, ...) -> values."""

    def log_table(self, name: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        """Log a table of plain values, such as outputs and references."""

    def log_image(self, name: str, path: Path, update: int | None = None) -> None:
        """Log the image file (png) at `path`, after `update` updates or of the whole run."""

    def log_audio(self, name: str, path: Path, update: int) -> None:
        """Log the audio file (wav) at `path`."""

    def summary(self, values: Mapping[str, Any]) -> None:
        """Log values of the whole run, such as its test scores."""

    def finish(self, status: str) -> None:
        """Close the tracker; `finished` counts as success, any other status as failure."""


def head_metrics(
    heads: Mapping[str, HeadValues], present: HeadNumbers | None = None
) -> dict[str, float]:
    """Return the statistics of `Tracker.log_heads` as named scalars, without absent values."""
    return {
        f"{'' if name == 'alpha' else 'attention/'}{name}/{site}/layer{layer}/head{head}": value
        for name, values in heads.items()
        for (site, layer, head), value in numbered(values, present)
    }


def alphas_by_name(heads: Mapping[str, HeadValues]) -> dict[str, list[float]]:
    """Return the finite α of each site by the name of its histogram, `alpha/<site>/histogram`."""
    sites = heads.get("alpha", {}).items()
    values = {site: [value for _, value in numbered({site: layers})] for site, layers in sites}
    return {f"alpha/{site}/histogram": finite for site, finite in values.items() if finite}


def numbered(
    values: HeadValues, present: HeadNumbers | None = None
) -> Iterator[tuple[tuple[str, int, int], float]]:
    """Yield (site, layer, number of the head) and value of every head with a finite value.

    Args:
        values: of the present heads, in order.
        present: numbers of the present heads; None: counted from 1. A layer with another
            number of values than heads is skipped.
    """
    for site, layers in values.items():
        for layer, head_values in enumerate(layers, start=1):
            numbers = head_numbers(present, site, layer, len(head_values))
            for number, value in zip(numbers, head_values, strict=False):
                if value is not None and math.isfinite(value):
                    yield (site, layer, number), float(value)


def head_numbers(
    present: HeadNumbers | None, site: str, layer: int, n_values: int
) -> Sequence[int]:
    """Return the head numbers of one layer; empty if there are not `n_values` heads."""
    if not present or site not in present:
        return range(1, n_values + 1)
    numbers = present[site][layer - 1] if layer <= len(present[site]) else ()
    return numbers if len(numbers) == n_values else ()
