"""The two records of a run, and the tracker that mirrors them."""

from __future__ import annotations

from collections.abc import Mapping

from headwise.runs.folder import RunFolder
from headwise.track.base import HeadValues, NullTracker, Tracker
from headwise.track.jsonl import JsonlWriter

LAYER_STATISTICS = ("diversity",)  # one number a layer, where others have one a head


class Records:
    """metrics.jsonl and heads.jsonl of a folder; ranks other than the first keep nothing.

    Args:
        folder: the run, or None for a rank that does not write.
        tracker: gets the same.
    """

    def __init__(self, folder: RunFolder | None, tracker: Tracker | None = None) -> None:
        self.tracker: Tracker = tracker if tracker is not None else NullTracker()
        self._metrics = JsonlWriter(folder.metrics) if folder is not None else None
        self._heads = JsonlWriter(folder.heads) if folder is not None else None

    def log(self, update: int, metrics: Mapping[str, float]) -> None:
        """Scalars named split/name."""
        if self._metrics is not None:
            self._metrics.write({"update": update, **metrics})
            self.tracker.log(update, metrics)

    def log_heads(self, update: int, heads: Mapping[str, HeadValues]) -> None:
        """Statistics of heads: name -> site -> layers -> heads.

        The tracker gets what has one number a layer as `attention/<name>/<site>/layer<i>`.
        """
        if self._heads is None:
            return
        self._heads.write({"update": update, **heads})
        of_heads = {name: sites for name, sites in heads.items() if name not in LAYER_STATISTICS}
        of_layers = {
            f"attention/{name}/{site}/layer{layer}": value
            for name in LAYER_STATISTICS
            for site, layers in heads.get(name, {}).items()
            for layer, values in enumerate(layers, start=1)
            for value in values
            if value is not None
        }
        if of_heads:
            self.tracker.log_heads(update, of_heads)
        if of_layers:
            self.tracker.log(update, of_layers)

    def n_lines(self) -> tuple[int, int]:
        """Lengths of the two records (0 where nothing is kept)."""
        if self._metrics is None or self._heads is None:
            return 0, 0
        return self._metrics.n_lines, self._heads.n_lines

    def rewind(self, metrics_lines: int, heads_lines: int) -> None:
        """Forget what came after a checkpoint."""
        if self._metrics is not None and self._heads is not None:
            self._metrics.rewind(metrics_lines)
            self._heads.rewind(heads_lines)

    def sync(self) -> None:
        """Return when all of it is on the disk."""
        if self._metrics is not None and self._heads is not None:
            self._metrics.sync()
            self._heads.sync()

    def close(self) -> None:
        """Close the files; the tracker is finished by whom it belongs to."""
        if self._metrics is not None and self._heads is not None:
            self._metrics.close()
            self._heads.close()
