"""TensorBoard as a mirror of the run folder: event files in its `tensorboard`."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from headwise.errors import ConfigError
from headwise.markdown import markdown_table
from headwise.track.base import HeadNumbers, HeadValues, Tracker, head_metrics, numbered

FOLDER = "tensorboard"

log = logging.getLogger(__name__)


class TensorBoardTracker(Tracker):
    """Mirrors a run in TensorBoard, with the names of `Tracker`; steps are updates.

    A resumed run hides the events after its checkpoint (`purge_step`), which it logs again.
    """

    def __init__(self, **other: Any) -> None:
        super().__init__(**other)
        self._writer: Any = None
        self._update = 0  # the last one

    def check(self) -> None:
        if find_spec("tensorboard") is None:
            raise ConfigError(
                "tracker=tensorboard is an extra: pip install 'headwise[tensorboard]'"
            )

    def start(self, run_dir: Path, group: str | None, config: Mapping[str, Any]) -> None:
        self._folder = run_dir / FOLDER
        self._config = config
        self._head_numbers: HeadNumbers | None = config.get("model", {}).get("heads")

    def rewind(self, update: int) -> bool:
        from torch.utils.tensorboard import SummaryWriter

        self._update = max(update, 0)
        with self._stopped_by_errors():
            self._writer = SummaryWriter(str(self._folder), purge_step=update + 1)
        settings = f"```\n{json.dumps(self._config, indent=2)}\n```"
        if update < 0:
            self._send(lambda writer: writer.add_text("config", settings, 0))
        return False

    def log(self, update: int, metrics: Mapping[str, float]) -> None:
        self._update = update
        self._send(lambda writer: _add_scalars(writer, update, metrics))

    def log_heads(self, update: int, heads: Mapping[str, HeadValues]) -> None:
        """See `Tracker.log_heads`; α also as a histogram per site, `alpha/<site>/histogram`."""
        self.log(update, head_metrics(heads, self._head_numbers))
        self._send(lambda writer: _add_histograms(writer, update, heads.get("alpha", {})))

    def log_table(self, name: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        table = markdown_table(columns, [list(map(str, row)) for row in rows], numeric=False)
        self._send(lambda writer: writer.add_text(name, table, self._update))

    def log_image(self, name: str, path: Path, update: int | None = None) -> None:
        from PIL import Image

        step = self._update if update is None else update
        with Image.open(path) as file:
            image_HWC = np.asarray(file.convert("RGB"))
        self._send(lambda writer: writer.add_image(name, image_HWC, step, dataformats="HWC"))

    def summary(self, values: Mapping[str, Any]) -> None:
        """See `Tracker.summary`; scalars `summary/<name>`, since `<name>` is of validations."""
        self.log(self._update, {f"summary/{name}": value for name, value in values.items()})

    def finish(self, status: str) -> None:
        self._send(lambda writer: writer.close())

    def _send(self, send: Callable[[Any], None]) -> None:
        """Call with the writer; events are on the disk afterwards, so that a kill loses none."""
        if self._writer is not None:
            with self._stopped_by_errors():
                send(self._writer)
                self._writer.flush()

    @contextmanager
    def _stopped_by_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            log.warning("TensorBoard logging stopped (%s); the run continues", error)
            self._writer = None


def _add_scalars(writer: Any, update: int, values: Mapping[str, float]) -> None:
    for name, value in values.items():
        writer.add_scalar(name, value, update)


def _add_histograms(writer: Any, update: int, alphas: HeadValues) -> None:
    for site, layers in alphas.items():
        finite = [value for _, value in numbered({site: layers})]
        if finite:
            writer.add_histogram(f"alpha/{site}/histogram", np.array(finite), update)
