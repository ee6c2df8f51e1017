"""What a run that failed leaves: `error.json` in its folder."""

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
    """The folder has a run of its own, finished or at work; nothing may be written there."""


@dataclass
class Failure:
    """Where the error of this command would be left.

    Attributes:
        place: finds the folder of the settings alone, for settings that turn out wrong before
            `folder` is known; fails if they are too wrong to name one.
        overrides: the command line.
        in_sweep: keep a wrong setting too, which a single command only tells.
        folder: of the settings alone, then of the text as well, as soon as it is known.
    """

    place: Callable[[], RunFolder]
    overrides: list[str]
    in_sweep: bool
    folder: RunFolder | None = None

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Write down what is raised below, unless the run was stopped on request."""
        try:
            yield
        except UntouchedRun:
            raise
        except Exception as error:
            begun = self.folder is not None and (self.folder.path / "config.yaml").is_file()
            if begun or self.in_sweep or not isinstance(error, ConfigError):
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
        with suppress(OSError, HeadwiseError):  # the first error is what is told
            folder.path.mkdir(parents=True, exist_ok=True)
            folder.write_json("error.json", content)
