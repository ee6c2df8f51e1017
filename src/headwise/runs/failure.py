"""`error.json` in the folder of a failed run.

A run folder is made when settings and data are checked. A failure before that leaves no folder,
except of a job of a sweep, whose folder then holds error.json alone.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from omegaconf.errors import OmegaConfBaseException

from headwise.errors import ConfigError, HeadwiseError, RunError
from headwise.runs.environment import rank_variables
from headwise.runs.folder import RunFolder


class UntouchedRun(RunError):
    """The folder belongs to another finished or running training; nothing is written to it."""


@dataclass
class Failure:
    """Writes the error of a command to its run folder.

    Attributes:
        locate: returns the folder of the settings alone, for errors before `folder` is known;
            raises an error for invalid settings.
        overrides: the command line.
        in_sweep: also write errors before there is a run folder, which a command only prints.
        folder: of the settings alone, then of settings and text; None until it is known.
    """

    locate: Callable[[], RunFolder]
    overrides: list[str]
    in_sweep: bool
    folder: RunFolder | None = None

    @contextmanager
    def recorded(self) -> Iterator[None]:
        """Write an exception of the block to error.json, except for a requested stop."""
        try:
            yield
        except UntouchedRun:
            raise
        except Exception as error:
            is_run = self.folder is not None and (self.folder.path / "config.yaml").is_file()
            if is_run or self.in_sweep:
                self._write(error)
            raise

    def _write(self, error: Exception) -> None:
        if rank_variables()[0]:  # only the first rank writes
            return
        try:
            folder = self.folder or self.locate()
        except (ConfigError, OmegaConfBaseException):
            return
        is_expected = isinstance(error, HeadwiseError)
        content = {
            "error": type(error).__name__,
            "message": str(error),
            "overrides": self.overrides,
            "traceback": None if is_expected else "".join(traceback.format_exception(error)),
        }
        with suppress(OSError, HeadwiseError):  # `error` is raised, not these
            folder.path.mkdir(parents=True, exist_ok=True)
            folder.write_json("error.json", content)
