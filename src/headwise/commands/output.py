"""Files and pipes of commands that apply a run to text: checks, input and output in blocks."""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import IO, TypeVar

from headwise.data.sources.lines import Arriving, decoded_lines, open_bytes, stream_lines
from headwise.errors import DataError
from headwise.files import STDIN, STDOUT, check_output, is_stream, replacing

T = TypeVar("T")


def check_paths(
    output: str | None, inputs: Mapping[str, str | None], may_be_folder: bool = False
) -> None:
    """Raise `DataError` for unreadable or unwritable files, before anything is loaded."""
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


def input_blocks(path: str | None, size: int) -> Iterator[list[str]]:
    """Return the lines of a file, or of standard input, which are never all in memory.

    Args:
        path: of the file; None: standard input.
        size: lines of a block; of a pipe or terminal those that are there at once, up to so many.

    Raises:
        DataError: a line that is not text; of a file that can be read twice before the first line.
    """
    if path is None or is_stream(path):
        return _stream_blocks(path, size)
    deque(stream_lines(Path(path), may_be_empty=True), maxlen=0)
    return in_blocks(stream_lines(Path(path), may_be_empty=True), size)


def _stream_blocks(path: str | None, size: int) -> Iterator[list[str]]:
    is_stdin = path in (None, STDIN)
    name = "stdin" if is_stdin else str(path)
    with nullcontext(sys.stdin.buffer) if is_stdin else open_bytes(Path(name)) as stream:
        arriving = Arriving(stream)
        yield from in_blocks(decoded_lines(arriving, name, True), size, arriving.waits)


def in_blocks(
    items: Iterable[T], size: int, ends: Callable[[], bool] = lambda: False
) -> Iterator[list[T]]:
    """Yield lists of `size` items; of fewer at the end, and where `ends()` after an item."""
    block: list[T] = []
    for item in items:
        block.append(item)
        if len(block) == size or ends():
            yield block
            block = []
    if block:
        yield block


def write_blocks(output: str | None, blocks: Iterable[Sequence[str]]) -> None:
    """Write each block of lines at once as UTF-8; a file has its name when all are written.

    Until then, and after an error, the lines are in `<output>.<process id>.tmp`.

    Args:
        output: a file, pipe or device; None: standard output.
        blocks: of lines.
    """
    texts = ("".join(f"{line}\n" for line in lines) for lines in blocks)
    if output is None or output == STDOUT:
        sys.stdout.flush()
        _write(sys.stdout.buffer, texts)
    elif is_stream(output):
        with open(output, "ab") as stream:
            _write(stream, texts)
    else:
        with replacing(Path(output).resolve(), keep=True) as path, open(path, "wb") as stream:
            _write(stream, texts)


def _write(stream: IO[bytes], texts: Iterable[str]) -> None:
    """Write and flush each text as UTF-8, independent of the terminal's encoding."""
    for text in texts:
        stream.write(text.encode())
        stream.flush()
