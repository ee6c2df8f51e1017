"""The two records of a run, also sent to its tracker."""

from __future__ import annotations

from collections.abc import Mapping

from headwise.runs.folder import RunFolder
from headwise.track.base import HeadValues, Tracker
from headwise.track.jsonl import JsonlWriter

LAYER_STATISTICS = ("diversity",)  # one number per layer, not per head


class RunLog:
    """metrics.jsonl and heads.jsonl of a folder; only the first rank writes.

    Args:
        folder: the run, or None for a rank that does not write.
        tracker: gets the same values.
    """

    def __init__(self, folder: RunFolder | None, tracker: Tracker | None = None) -> None:
        self.tracker: Tracker = tracker if tracker is not None else Tracker()
        paths = () if folder is None else (folder.metrics, folder.heads)
        self._files = [JsonlWriter(path) for path in paths]

    def log(self, update: int, metrics: Mapping[str, float]) -> None:
        """Write scalars named split/name."""
        if self._files:
            self._files[0].write({"update": update, **metrics})
            self.tracker.log(update, metrics)

    def log_heads(self, update: int, heads: Mapping[str, HeadValues]) -> None:
        """Write statistics of heads: name -> site -> layers -> heads.

        The tracker gets statistics per layer as `attention/<name>/<site>/layer<i>`.
        """
        if not self._files:
            return
        self._files[1].write({"update": update, **heads})
        per_head = {name: sites for name, sites in heads.items() if name not in LAYER_STATISTICS}
        per_layer = {
            f"attention/{name}/{site}/layer{layer}": value
            for name in LAYER_STATISTICS
            for site, layers in heads.get(name, {}).items()
            for layer, values in enumerate(layers, start=1)
            for value in values
            if value is not None
        }
        if per_head:
            self.tracker.log_heads(update, per_head)
        if per_layer:
            self.tracker.log(update, per_layer)

    def n_lines(self) -> list[int]:
        """Lengths of the two records in lines; 0 on ranks that do not write."""
        return [file.n_lines for file in self._files] or [0, 0]

    def rewind(self, *n_lines: int) -> None:
        """Truncate the records to these lengths, those at a checkpoint."""
        for file, n in zip(self._files, n_lines, strict=False):
            file.rewind(n)

    def sync(self) -> None:
        """Flush the records to disk."""
        for file in self._files:
            file.sync()

    def close(self) -> None:
        """Close the files, not the tracker."""
        for file in self._files:
            file.close()
