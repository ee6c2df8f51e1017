"""Atomic file writes, locks between processes, and checks of names that become files.

The config of an untrusted run folder must not cause reads or writes outside the cache and the
run folder.
"""

from __future__ import annotations

import errno
import fcntl
import glob
import io
import json
import logging
import os
import re
import shutil
import sys
import tempfile
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path, PurePosixPath
from typing import IO, Any, TextIO

from headwise.errors import DataError, HeadwiseError, RunError, require

PARTIAL = ".tmp"
STDIN, STDOUT = "/dev/stdin", "/dev/stdout"  # `-` as a setting
STREAMS = ("/dev", "/dev/fd", "/proc/self/fd")  # folders
# Errors of the operating system on writes.
DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
NOT_WRITABLE = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR)
NO_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)  # some CIFS and FUSE
HELD = (errno.EWOULDBLOCK, errno.EACCES)  # a lock, by another process
# The pipe or terminal was closed.
CLOSED = (errno.EPIPE, errno.EIO)
BROKEN_PIPE = 128 + 13  # exit code, as a shell reports SIGPIPE

log = logging.getLogger(__name__)


def is_stream(path: str | Path) -> bool:
    """Whether a path is a pipe or device; standard streams are, also if they are files."""
    is_plain = os.path.isfile(path) or os.path.isdir(path)
    return str(Path(path).parent) in STREAMS or (os.path.exists(path) and not is_plain)


@contextmanager
def replacing(path: Path, keep: bool = False) -> Iterator[Path]:
    """Yield a temporary sibling that replaces `path` if the block succeeds.

    The content is appended to a pipe or device.

    Args:
        path: of the file.
        keep: what was written if the block fails, as `<name>.<process id>.tmp`, and log its path.

    Raises:
        HeadwiseError: the disk is full or not writable; `path` is unchanged.
    """
    if is_stream(path):
        with tempfile.TemporaryDirectory() as folder:
            temporary = Path(folder, path.name)
            yield temporary
            with open(temporary, "rb") as content, open(path, "ab") as stream:
                shutil.copyfileobj(content, stream)
        return
    temporary = path.with_name(f"{'' if keep else '.'}{path.name}.{os.getpid()}{PARTIAL}")
    try:
        yield temporary
        rename(temporary, path)
    except (OSError, RuntimeError) as error:
        reason = _os_error(error)
        if reason is None or not str(reason.filename or temporary).startswith(str(temporary)):
            raise  # of another file
        rerun = "Free some space and run the same command again. "
        advice = rerun if reason.errno in DISK_FULL else ""
        raise HeadwiseError(
            f"could not write {path}: {reason.strerror or reason}. {advice}"
            "Files saved before are intact."
        ) from error
    finally:
        if keep and temporary.is_file() and temporary.stat().st_size:
            log.warning("what was written before is in %s", temporary)
        else:
            temporary.unlink(missing_ok=True)


def rename(path: Path, new: Path) -> None:
    """Rename a file or a folder; after a loss of power, what has the new name is complete.

    An existing file is replaced.
    """
    for part in (*path.rglob("*"), path):
        sync(part)
    os.replace(path, new)
    sync(new.parent)


def sync(path: Path) -> None:
    """Flush a file, or the names in a folder, to the disk; not every file system can."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        is_folder = path.is_dir()
        if error.errno not in NO_SYNC and not (is_folder and error.errno in NOT_WRITABLE):
            raise
        if not is_folder:
            _warn_once(f"no fsync here ({error.strerror}): a loss of power may damage files")


def _os_error(error: BaseException) -> OSError | None:
    """The OSError that caused `error`; torch's zip writer wraps it in another class."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, OSError):
        cause = cause.__cause__ or cause.__context__
    return cause


def discard(descriptor: int) -> None:
    """Redirect later writes on a file descriptor to `os.devnull`."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, descriptor)
    os.close(null)


def _until_closed(act: Callable[..., Any], stream: TextIO) -> Callable[..., Any]:
    """A method of a stream which discards text after the reader has closed the stream.

    Data goes to its `buffer`, where a closed pipe is an error.
    """

    def guarded(*arguments: str) -> Any:
        try:
            return act(*arguments)
        except OSError as error:
            if error.errno not in CLOSED:
                raise
            return discard(stream.fileno())

    return guarded


def guard_streams() -> None:
    """Keep the standard streams of this process from ending its work.

    A stream that is closed is opened on `os.devnull`: else the next file would get its descriptor,
    and the messages of libraries. Characters that a terminal lacks are replaced.
    """
    for descriptor, name in enumerate(("stdin", "stdout", "stderr")):
        stream = getattr(sys, name)
        if stream is None:
            null = os.open(os.devnull, os.O_RDWR)  # the lowest free number: that of the stream
            os.set_inheritable(null, True)
            mode = "w" if descriptor else "r"
            stream = open(null, mode, encoding="utf-8", closefd=False)  # noqa: SIM115
            setattr(sys, name, stream)
        if descriptor and isinstance(stream, io.TextIOWrapper):  # not of a notebook or test
            stream.reconfigure(errors="replace")
            for method in ("write", "flush"):
                setattr(stream, method, _until_closed(getattr(stream, method), stream))


@contextmanager
def output_to(path: Path | None) -> Iterator[None]:
    """Append what this process prints within the block to a file; None: print it."""
    if path is None:
        yield
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    saved = {stream: os.dup(stream.fileno()) for stream in (sys.stdout, sys.stderr)}
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    try:
        for stream in saved:
            stream.flush()
            os.dup2(file, stream.fileno())
        yield
    finally:
        for stream, descriptor in saved.items():
            stream.flush()
            os.dup2(descriptor, stream.fileno())
            os.close(descriptor)
        os.close(file)


def remove_partial(folder: Path) -> None:
    """Remove temporary files of killed processes, recursively; no process may be writing."""
    for path in folder.rglob(f".*{PARTIAL}"):
        path.unlink(missing_ok=True)


def machine_cache_dir() -> Path:
    """The cache folder: `HEADWISE_CACHE`, else the default of `conf/train.yaml`."""
    return Path(os.environ.get("HEADWISE_CACHE") or "~/.cache/headwise").expanduser()


def check_output(output: str) -> None:
    """Raise `DataError` if the file named by the key `output` cannot be written there."""
    folder = Path(output).absolute().parent
    if not folder.is_dir():
        raise DataError(f"output={output} cannot be written: folder {folder} not found")
    if Path(output).is_dir():
        raise DataError(f"output={output} is a folder; give a file in it")


def matching_paths(pattern: Path) -> list[Path]:
    """The paths that match a glob; the part of it that exists, or all of it, is no pattern."""
    existing = next(path for path in (pattern, *pattern.parents) if os.path.exists(path))
    if existing == pattern:
        return [pattern]
    text = os.path.join(glob.escape(str(existing)), pattern.relative_to(existing))
    return [Path(path) for path in sorted(glob.glob(text, recursive=True))]


def write_text(path: Path, text: str) -> None:
    """Write a small file atomically."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a small JSON file atomically."""
    write_text(path, json.dumps(content, indent=2, ensure_ascii=False) + "\n")


def read_json(path: Path, missing_ok: bool = False) -> dict[str, Any]:
    """Return the content of a small JSON file of a run.

    Args:
        path: of the file.
        missing_ok: return an empty dict if there is no file.

    Raises:
        RunError: not a JSON object, for example after an incomplete copy.
    """
    if missing_ok and not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise RunError(f"{path} is broken: {error}. Copy it again, or remove it") from error
    if not isinstance(content, dict):
        raise RunError(f"{path} is broken: not a JSON object. Copy it again, or remove it")
    return content


def lock(file: IO[Any], wait: bool = False, shared: bool = False) -> bool | None:
    """Lock an open file between processes, until it is closed.

    Returns:
        Whether it is locked now: False if another process holds it. None, with a warning, on a file
        system without locks: nobody can hold it.
    """
    try:
        kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
        fcntl.flock(file, kind | (0 if wait else fcntl.LOCK_NB))
    except OSError as error:
        if error.errno in HELD:
            return False
        folder = Path(file.name).parent
        _warn_once(f"no locks in {folder} ({error.strerror}): use it from one process at a time")
        return None
    return True


@cache
def _warn_once(text: str) -> None:
    log.warning("%s", text)


def is_locked(path: Path) -> bool | None:
    """Whether a process holds the lock `path`; a file that does not exist is not locked.

    None on a file system without locks.
    """
    try:
        with open(path, "rb") as handle:
            is_free = lock(handle, shared=True)
    except OSError:
        return False
    return None if is_free is None else not is_free


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock between processes; waits for other holders.

    Args:
        path: of the lock file, which exists while the lock is held.
    """
    with _acquired(path):
        try:
            yield
        finally:
            path.unlink(missing_ok=True)  # closing the file then releases the lock


def _acquired(path: Path) -> IO[str]:
    while True:
        file = open(path, "w")  # noqa: SIM115
        if lock(file) is False:
            log.info("waiting for another process: %s", path)
            lock(file, wait=True)
        # The previous holder removed this file; others may have created and locked a new one.
        try:
            if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                return file
        except FileNotFoundError:
            pass
        file.close()


# -- names in configs that become paths -----------------------------------------------------------

MAX_BYTES = 200  # file systems allow 255, and endings are appended
# One spelling of a name of a class or column: files of macOS write "é" as two characters.
nfc = partial(unicodedata.normalize, "NFC")
_INVALID = re.compile(r"[\\\0\r\n]")


def check_file_name(key: str, value: Any) -> None:
    """Reject a value that is not a single file name.

    Raises:
        ConfigError: empty, `.`, `..`, too long, or with a separator; the message names `key`.
    """
    fits = _is_relative(value) and "/" not in value and value != "."
    require(fits, key, "a plain name, without / in it", value)
    n_bytes = len(value.encode())
    require(n_bytes <= MAX_BYTES, key, f"a name of at most {MAX_BYTES} bytes", f"{n_bytes} bytes")


def check_relative_path(key: str, value: Any) -> None:
    """Reject a path that is absolute or contains `..`.

    Raises:
        ConfigError: the message names `key`.
    """
    require(_is_relative(value), key, "a relative path without ..", value)


def _is_relative(value: Any) -> bool:
    if not isinstance(value, str) or not value or _INVALID.search(value):
        return False
    path = PurePosixPath(value)
    return not path.is_absolute() and ".." not in path.parts
