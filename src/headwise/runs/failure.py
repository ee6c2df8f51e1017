"""`error.json` in the folder of a failed run."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from headwise.errors import HeadwiseError
from headwise.runs.folder import RunFolder


@contextmanager
def error_recorded(folder: RunFolder, overrides: list[str]) -> Iterator[None]:
    """Write an exception of the block, except for a requested stop, to error.json of a run.

    Args:
        folder: of the run.
        overrides: the command line.
    """
    try:
        yield
    except Exception as error:
        is_expected = isinstance(error, HeadwiseError)
        content = {
            "error": type(error).__name__,
            "message": str(error),
            "overrides": overrides,
            "traceback": None if is_expected else "".join(traceback.format_exception(error)),
        }
        with suppress(OSError, HeadwiseError):  # `error` is raised, not these
            folder.write_json("error.json", content)
        raise
