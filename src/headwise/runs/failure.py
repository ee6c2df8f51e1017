"""Write `error.json` in the folder of a run that failed."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from omegaconf.errors import OmegaConfBaseException

from headwise.errors import ConfigError, HeadwiseError, RunError
from headwise.runs.folder import RunFolder


class UntouchedRun(RunError):
    """The folder has another finished or running training; nothing may be written there."""


@dataclass
class Failure:
    """Where to write the error of this command.

    Attributes:
        place: returns the folder of the settings alone, for errors before `folder` is known;
            raises if the settings do not give one.
        overrides: the command line.
        in_sweep: write wrong settings too, which a single command only prints.
        folder: of the settings alone, then of settings and text, as soon as it is known.
    """

    place: Callable[[], RunFolder]
    overrides: list[str]
    in_sweep: bool
    folder: RunFolder | None = None

    @contextmanager
    def recorded(self) -> Iterator[None]:
        """Write an exception of the block to error.json, unless the run was stopped on request."""
        try:
            yield
        except UntouchedRun:
            raise
        except Exception as error:
            is_run = self.folder is not None and (self.folder.path / "config.yaml").is_file()
            if is_run or self.in_sweep or not isinstance(error, ConfigError):
                self._write(error)
            raise

    def _write(self, error: Exception) -> None:
        if os.environ.get("RANK", "0") != "0":  # of several processes the first one writes
            return
        try:
            folder = self.folder or self.place()
        except (ConfigError, OmegaConfBaseException):
            return
        known = isinstance(error, HeadwiseError)
        content = {
            "error": type(error).__name__,
            "message": str(error),
            "overrides": self.overrides,
            "traceback": None if known else "".join(traceback.format_exception(error)),
        }
        with suppress(OSError, HeadwiseError):  # the first error is raised
            folder.path.mkdir(parents=True, exist_ok=True)
            folder.write_json("error.json", content)
