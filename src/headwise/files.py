"""Files that are whole or not there, and one writer at a time."""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from headwise.errors import HeadwiseError, RunError

PARTIAL = ".tmp"
# Why the operating system lets nothing be written.
FULL = (errno.ENOSPC, errno.EDQUOT)
FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR)
# Nobody reads what is written: a pipe or a terminal was closed.
GONE = (errno.EPIPE, errno.EIO)
BROKEN_PIPE = 128 + 13  # exit code, as a shell reports SIGPIPE

log = logging.getLogger(__name__)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary sibling that takes the place of `path` when the block ends well.

    Raises:
        HeadwiseError: the disk is full, or cannot be written; what stood at `path` is untouched.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}{PARTIAL}")
    try:
        yield temporary
        with open(temporary, "rb+") as handle:
            os.fsync(handle.fileno())
        os.replace(temporary, path)
    except (OSError, RuntimeError) as error:
        reason = _os_error(error)
        if reason is None:
            raise
        again = "Free some space and give the same command again. "
        advice = again if reason.errno in FULL else ""
        raise HeadwiseError(
            f"could not write {path}: {reason.strerror or reason}. {advice}"
            "What was saved before is intact."
        ) from error
    finally:
        temporary.unlink(missing_ok=True)


def _os_error(error: BaseException) -> OSError | None:
    """What the operating system said; torch's zip writer hides it behind an error of its own."""
    found: BaseException | None = error
    while found is not None and not isinstance(found, OSError):
        found = found.__cause__ or found.__context__
    return found


def discard(descriptor: int) -> None:
    """Send what is written there from now on to nowhere, as who read it has gone."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)


def remove_partial(folder: Path) -> None:
    """Remove what killed processes left, also in folders below; none may be writing now."""
    for left in folder.rglob(f".*{PARTIAL}"):
        left.unlink(missing_ok=True)


def machine_cache_dir() -> Path:
    """The cache of this machine: `HEADWISE_CACHE`, else as `conf/paths/default.yaml` has it."""
    return Path(os.environ.get("HEADWISE_CACHE", "~/.cache/headwise")).expanduser()


def write_text(path: Path, text: str) -> None:
    """Write a small file all or not at all."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a small json file all or not at all."""
    write_text(path, json.dumps(content, indent=2, ensure_ascii=False) + "\n")


def read_json(path: Path, may_lack: bool = False) -> dict[str, Any]:
    """Content of a small json file of a run.

    Args:
        path: of the file.
        may_lack: nothing is read where there is no file.

    Raises:
        RunError: it is no json object, as a copy that broke off leaves it.
    """
    if may_lack and not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise RunError(f"{path} is broken: {error}. Copy it anew, or remove it") from error
    if not isinstance(content, dict):
        raise RunError(f"{path} is broken: it holds no object. Copy it anew, or remove it")
    return content


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """The block, while no other process is in one of the same file; waits for the other's end.

    Args:
        path: of a file that is there meanwhile.
    """
    with _claimed(path):
        try:
            yield
        finally:
            path.unlink(missing_ok=True)  # closing the file then gives the lock back


def _claimed(path: Path) -> IO[str]:
    while True:
        file = open(path, "w")  # noqa: SIM115
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            log.info("waiting for another process: %s", path)
            fcntl.flock(file, fcntl.LOCK_EX)
        # The one before us has removed the file that we waited for; others may have a new one.
        try:
            if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                return file
        except FileNotFoundError:
            pass
        file.close()
