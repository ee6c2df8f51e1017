"""Files and pipes of commands that apply a run to text: checks, and output in blocks of lines."""

from __future__ import annotations

import os
import select
import stat
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from headwise.errors import DataError, require
from headwise.files import BROKEN_PIPE, STDOUT, check_output, is_stream, write_text

DESCRIPTOR = 1  # of standard output

Blocks = Iterable[Sequence[str]]  # of lines


def check_paths(
    buffer_size: int,
    output: str | None,
    inputs: Mapping[str, str | None],
    may_be_folder: bool = False,
) -> None:
    """Raise `DataError` for unreadable or unwritable files, before anything is loaded."""
    require(buffer_size >= 1, "buffer_size", "at least 1", buffer_size)
    for key, path in inputs.items():
        if path is None:
            continue
        if not (os.path.exists(path) and (may_be_folder or not os.path.isdir(path))):
            raise DataError(f"{key}={path} not found")
        has_both = output is not None and not is_stream(output)
        if has_both and Path(str(output)).resolve() == Path(path).resolve():
            raise DataError(f"output={output} would overwrite {key}={path}")
    if output is not None:
        check_output(output)


def write_blocks(output: str | None, blocks: Blocks) -> None:
    """Write blocks of lines to a file, atomically, or to standard output, block by block."""
    if output not in (None, STDOUT):
        _write_output(Path(output), blocks)
        return
    sys.stdout.flush()
    with _exit_on_closed_pipe():
        _write(sys.stdout.buffer, blocks)


def _write(stream: IO[bytes], blocks: Blocks) -> None:
    """Write and flush each block of lines as UTF-8, independent of the terminal's encoding."""
    for lines in blocks:
        stream.write("".join(f"{line}\n" for line in lines).encode())
        stream.flush()


@contextmanager
def _exit_on_closed_pipe() -> Iterator[None]:
    """Exit as `cat` does if standard output is a pipe and its reader closes it."""
    done = threading.Event()

    def watch() -> None:
        poll = select.poll()
        poll.register(DESCRIPTOR, 0)  # errors are always reported
        while not done.is_set():
            if poll.poll(200):
                os._exit(BROKEN_PIPE)

    if not stat.S_ISFIFO(os.fstat(DESCRIPTOR).st_mode):
        yield
        return
    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()


def _write_output(path: Path, blocks: Blocks) -> None:
    """Write a file atomically; write to a device or a pipe directly."""
    if is_stream(path):
        with open(path, "ab") as stream:
            _write(stream, blocks)
    else:
        text = "".join(f"{line}\n" for lines in blocks for line in lines)
        write_text(path.resolve(), text)
