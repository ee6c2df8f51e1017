"""The records of a run: of numbers, also sent to its tracker, and log.txt."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from logging.handlers import MemoryHandler
from pathlib import Path
from typing import Any

from headwise.runs.folder import RunFolder
from headwise.track.base import HeadValues, Tracker
from headwise.track.jsonl import JsonlWriter, read_jsonl

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
        if self._files:
            self._files[1].write({"update": update, **heads})
            self._track_heads(update, heads)

    def _track_heads(self, update: int, heads: Mapping[str, HeadValues]) -> None:
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

    def rewind(self, update: int, *n_lines: int) -> None:
        """Truncate the records to what they were at a checkpoint; see `Tracker.rewind`.

        Args:
            update: of the checkpoint; -1 without one.
            n_lines: lengths of the two records there.
        """
        for file, n in zip(self._files, n_lines, strict=False):
            file.rewind(n)
        if self._files and self.tracker.rewind(update):
            sends: tuple[Callable[[int, Any], None], ...] = (self.tracker.log, self._track_heads)
            for file, send in zip(self._files, sends, strict=True):
                for record in read_jsonl(file.path):
                    record.pop("nonfinite", None)
                    send(record.pop("update"), record)

    def sync(self) -> None:
        """Flush the records to disk."""
        for file in self._files:
            file.sync()

    def close(self) -> None:
        """Close the files, not the tracker."""
        for file in self._files:
            file.close()


class LogFile(logging.FileHandler):
    """Appends to log.txt of a run.

    Args:
        folder: of the run.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / "log.txt", encoding="utf-8", errors="backslashreplace")
        self.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))

    def handleError(self, record: logging.LogRecord) -> None:
        """Ignore a full disk: it is no reason to end a training that can still save."""


@contextmanager
def text_log() -> Iterator[MemoryHandler]:
    """Hold what is logged in the block, warnings of Python and the error that ends it included.

    `setTarget` of the handler passes all of it to another one, which is closed after the block.
    """
    root, held = logging.getLogger(), MemoryHandler(capacity=0)  # nothing waits for more records
    logging.captureWarnings(True)
    root.addHandler(held)
    try:
        yield held
    except BaseException as error:  # printed by the command
        text = f"{type(error).__name__}: {error}"
        held.handle(logging.makeLogRecord({"levelname": "ERROR", "msg": text}))
        raise
    finally:
        root.removeHandler(held)
        logging.captureWarnings(False)
        target = held.target or logging.NullHandler()
        held.close()
        with suppress(OSError):
            target.close()
