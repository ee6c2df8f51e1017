"""TensorBoard as a mirror of the run folder: event files in its `tensorboard`."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from headwise.errors import ConfigError
from headwise.markdown import markdown_table
from headwise.track.base import HeadNumbers, HeadValues, Tracker, alphas_by_name, head_metrics

log = logging.getLogger(__name__)


class TensorBoardTracker(Tracker):
    """Mirrors a run in TensorBoard, with the names of `Tracker`; steps are updates.

    A resumed run hides the events after its checkpoint (`purge_step`), which it logs again.
    """

    def __init__(self, **other: Any) -> None:
        super().__init__(**other)
        self._writer: Any = None
        self._is_active = False
        self._update = 0  # the last one

    def check(self) -> None:
        if find_spec("tensorboard") is None:
            raise ConfigError(
                "tracker=tensorboard is an extra: pip install 'headwise[tensorboard]'"
            )

    def start(self, run_dir: Path, group: str | None, config: Mapping[str, Any]) -> None:
        self._folder = run_dir / "tensorboard"
        self._config = config
        self._head_numbers: HeadNumbers | None = config.get("model", {}).get("heads")

    def rewind(self, update: int) -> bool:
        self._is_active, self._update, self._purge_step = True, max(update, 0), update + 1
        settings = f"```\n{json.dumps(self._config, indent=2)}\n```"
        if update < 0:
            self._send("add_text", "config", settings, 0)
        return False

    def log(self, update: int, metrics: Mapping[str, float]) -> None:
        self._update = update
        for name, value in metrics.items():
            self._send("add_scalar", name, value, update)
        self._send("flush")

    def log_heads(self, update: int, heads: Mapping[str, HeadValues]) -> None:
        """See `Tracker.log_heads`; α also as a histogram per site, `alpha/<site>/histogram`."""
        self.log(update, head_metrics(heads, self._head_numbers))
        for name, alphas in alphas_by_name(heads).items():
            self._send("add_histogram", name, np.array(alphas), update)
        self._send("flush")

    def log_table(self, name: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        table = markdown_table(columns, [list(map(str, row)) for row in rows], numeric=False)
        self._send("add_text", name, table, self._update)
        self._send("flush")

    def log_image(self, name: str, path: Path, update: int | None = None) -> None:
        from PIL import Image

        step = self._update if update is None else update
        with Image.open(path) as file:
            image_HWC = np.asarray(file.convert("RGB"))
        self._send("add_image", name, image_HWC, step, dataformats="HWC")
        self._send("flush")

    def summary(self, values: Mapping[str, Any]) -> None:
        """See `Tracker.summary`; scalars `summary/<name>`, since `<name>` is of validations."""
        self.log(self._update, {f"summary/{name}": value for name, value in values.items()})

    def finish(self, status: str) -> None:
        self._send("close")

    def _send(self, method: str, *arguments: Any, **options: Any) -> None:
        """Call a method of the writer; "flush" writes its events, so that a kill loses none."""
        if not self._is_active:
            return
        from torch.utils.tensorboard import SummaryWriter

        try:
            if self._writer is None:
                self._writer = SummaryWriter(str(self._folder), purge_step=self._purge_step)
            getattr(self._writer, method)(*arguments, **options)
        except OSError as error:
            log.warning("TensorBoard logging stopped (%s); the run continues", error)
            self._is_active = False
