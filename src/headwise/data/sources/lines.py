"""Reading text with one sentence per line: strict UTF-8, cut at line feeds only, bounded memory.

`str.splitlines` and the text mode of `open` also cut at a lone carriage return, U+0085 or
U+2028, which occur inside sentences of Europarl and Common Crawl; one such cut misaligns all
later pairs of a corpus. So bytes are split into lines before decoding.

The documents of numbered segments of IWSLT's xml and WMT's sgm are parsed by the tags `<doc>` and
`<seg>` alone, which all releases use in the same way: sgm is not XML (attributes without quotes,
stray ampersands).
"""

from __future__ import annotations

import gzip
import html
import io
import re
import select
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import zip_longest
from pathlib import Path
from typing import IO, NamedTuple

from headwise.errors import DataError
from headwise.files import is_stream

MAX_LINE = 2**20  # bytes
CHUNK = 2**16  # bytes, as many as a pipe holds
ONE_A_LINE = "Write one sentence a line; tr '\\r' '\\n' converts carriage returns to line feeds"
# Raised by the standard library for a truncated compressed file or another format.
READ_ERRORS = (EOFError, OSError, zlib.error, tarfile.TarError, zipfile.BadZipFile)


class Arriving:
    """The lines of a pipe, terminal or file that another process may still be writing.

    Args:
        stream: open, unread; with `read1` and a descriptor.
    """

    def __init__(self, stream: IO[bytes]) -> None:
        self.stream = stream
        self._unread, self._ended = bytearray(), False

    def readline(self, size: int, /) -> bytes:
        """The next line, or its first bytes; waits for it."""
        self.waits(None)
        end = self._unread.find(b"\n", 0, size) + 1
        line = bytes(self._unread[: end or size])
        del self._unread[: len(line)]
        return line

    def waits(self, timeout: float | None = 0) -> bool:
        """Whether no whole line and no end is there after `timeout` seconds; None: it waits."""
        while not (self._ended or b"\n" in self._unread or len(self._unread) > MAX_LINE):
            if not select.select([self.stream], [], [], timeout)[0]:
                return True
            chunk = self.stream.read1(CHUNK)  # type: ignore[attr-defined]
            self._unread += chunk
            self._ended = not chunk  # of a terminal, which could be read again
        return False


@contextmanager
def open_bytes(path: Path) -> Iterator[IO[bytes]]:
    """The bytes of a plain or `.gz` file."""
    try:
        stream: IO[bytes] = path.open("rb")
    except OSError as error:
        raise DataError(f"{path} cannot be opened: {error.strerror}") from error
    with stream:
        if path.suffix == ".gz":
            with io.BufferedReader(gzip.GzipFile(fileobj=stream)) as unpacked:
                yield unpacked
        else:
            yield stream


def check_text(text: str, where: str) -> None:
    """Raise `DataError` for NUL or surrogates; `where` starts the message."""
    if "\0" in text:
        raise DataError(
            f"{where}: a NUL character. If the file is UTF-16, convert it, for example with "
            "iconv -t utf-8; else remove them, for example with tr -d '\\0'"
        )
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise DataError(f"{where}: half of a surrogate pair, which is not valid text") from error


def decode_line(raw: bytes, name: str, number: int, encoding: str = "utf-8") -> str:
    """Decode `raw` and strip its line end, and the byte-order mark of the first line.

    Raises:
        DataError: `raw` is not UTF-8; the message names the file and the line.
    """
    try:
        line = raw.decode(encoding)
    except UnicodeDecodeError as error:
        raise DataError(
            f"{name}, line {number}: not UTF-8 (byte 0x{raw[error.start]:02x} at position "
            f"{error.start + 1} of the line). Convert the file, for example with iconv -t utf-8."
        ) from error
    check_text(line, f"{name}, line {number}")
    if number == 1:
        line = line.removeprefix("\ufeff")
    return line.removesuffix("\n").removesuffix("\r")


def decoded_lines(
    stream: IO[bytes] | Arriving,
    name: str,
    may_be_empty: bool = False,
    encoding: str = "utf-8",
    max_line: int = MAX_LINE,
) -> Iterator[str]:
    """The lines of `stream`; `name` is its name in messages.

    Raises:
        DataError: no line, unless `may_be_empty`; a line that is not UTF-8; a damaged compressed
            file.
    """
    number, raw = 0, b""
    try:
        for number, raw in enumerate(iter(lambda: stream.readline(max_line + 1), b""), 1):
            if len(raw) > max_line:
                raise DataError(f"{name}, line {number}: above {max_line} bytes. {ONE_A_LINE}")
            if number == 1 and not raw.endswith(b"\n") and b"\r" in raw.rstrip(b"\r"):
                raise DataError(f"{name} ends its lines with carriage returns only. {ONE_A_LINE}")
            yield decode_line(raw, name, number, encoding)
    except READ_ERRORS as error:
        raise DataError(
            f"{name} is truncated or damaged after line {number} ({error}); download it again"
        ) from error
    if number == 0 and not may_be_empty:
        raise DataError(f"{name} is empty; it must have one sentence a line")


def stream_lines(path: Path, may_be_empty: bool = False) -> Iterator[str]:
    """Yield the lines of a file, plain or .gz, with one sentence per line."""
    if not (path.is_file() or is_stream(path)):
        raise DataError(f"{path} not found")
    with open_bytes(path) as stream:
        yield from decoded_lines(stream, str(path), may_be_empty)


def read_lines(path: Path, may_be_empty: bool = False) -> list[str]:
    """Read a file into memory; see `stream_lines`."""
    return list(stream_lines(path, may_be_empty))


def read_pairs(source: Path, target: Path) -> tuple[list[str], list[str]]:
    """Read two aligned files with one sentence per line; see `read_lines`."""
    sides = read_lines(source), read_lines(target)
    if len(sides[0]) != len(sides[1]):
        raise DataError(
            f"{source} has {len(sides[0])} lines and {target} {len(sides[1])}: they must be aligned"
        )
    return sides


def aligned(
    source: Iterator[str], target: Iterator[str], source_name: str, target_name: str
) -> Iterator[tuple[str, str]]:
    """Pairs of lines with the same number.

    Raises:
        DataError: one side has more lines; the message names both counts. Raised at the end
            only, since the text is streamed.
    """
    both = zip_longest(source, target)
    for number, (first, second) in enumerate(both, 1):
        if first is None or second is None:
            longer = number + sum(1 for _ in both)
            counts = (number - 1, longer) if first is None else (longer, number - 1)
            raise DataError(
                f"the two sides are misaligned: {source_name} has {counts[0]} lines, "
                f"{target_name} has {counts[1]}; line N of one must translate line N of the other"
            )
        yield first, second


def file_pairs(source: Path, target: Path) -> Iterator[tuple[str, str]]:
    """Aligned lines of two plain or `.gz` files."""
    return aligned(stream_lines(source), stream_lines(target), str(source), str(target))


# -- segments of SGML and XML ---------------------------------------------------------------------

_TAG = re.compile(
    r"<doc\b(?P<doc>[^>]*)>|<seg\b(?P<seg>[^>]*)>(?P<text>.*?)</seg\s*>",
    re.IGNORECASE | re.DOTALL,
)
_ATTRIBUTE = re.compile(r"""(\w+)\s*=\s*(?:"([^"]*)"|'([^']*)'|([^\s>]+))""")
# Only entities that end in a semicolon: html.unescape alone also converts "&not" in plain text.
_ENTITY = re.compile(r"&(?:#\d+|#[xX][0-9a-fA-F]+|[A-Za-z][A-Za-z0-9]*);")


class Segment(NamedTuple):
    """One line of a test set."""

    document: str  # docid
    position: int  # index of the document in the file
    number: str  # id within the document
    text: str


def unescape(text: str) -> str:
    """Decode XML entities; a lone ampersand stays."""
    return _ENTITY.sub(lambda m: html.unescape(m.group()), text) if "&" in text else text


def read_segments(stream: IO[bytes], name: str) -> list[Segment]:
    """All segments of one side of a development or test set (a few megabytes at most).

    Raises:
        DataError: no segment, a segment id twice in a document, not UTF-8, or damaged.
    """
    lines = decoded_lines(stream, name, may_be_empty=True)
    segments: dict[tuple[int, str], Segment] = {}
    document, position = "", -1
    for match in _TAG.finditer("\n".join(lines)):
        if match["doc"] is not None:
            document, position = _attribute(match["doc"], "docid"), position + 1
            continue
        text = unescape(match["text"].replace("\n", " ")).strip()
        segment = Segment(document, max(position, 0), _attribute(match["seg"], "id"), text)
        if (segment.position, segment.number) in segments:
            raise DataError(
                f"{name}: segment {segment.number!r} occurs twice in document {document!r}"
            )
        segments[segment.position, segment.number] = segment
    if not segments:
        raise DataError(f"{name} has no <seg> element; is it the right file?")
    return list(segments.values())


def aligned_segments(
    source: list[Segment], target: list[Segment], source_name: str, target_name: str
) -> Iterator[tuple[str, str]]:
    """Pairs of segments with the same document and id, in the order of the source file.

    The two sides may name their documents differently; then the n-th document of one side is
    aligned with the n-th of the other.

    Raises:
        DataError: a segment has no partner; the message has the counts and the first such segment.
    """
    names = [{(s.document, s.position) for s in side} for side in (source, target)]
    first, second = ({document for document, _ in side} for side in names)
    # Names that repeat in a file (missing, or of several references) do not identify documents.
    by_name = first == second and len(first) == len(names[0]) == len(names[1])

    def key(segment: Segment) -> tuple[str | int, str]:
        return (segment.document if by_name else segment.position, segment.number)

    sides = [{key(segment): segment.text for segment in side} for side in (source, target)]
    unmatched = [k for k in sides[0] if k not in sides[1]]
    extra = sides[1].keys() - sides[0].keys()
    if unmatched or extra:
        orphan = unmatched[0] if unmatched else min(extra, key=str)
        raise DataError(
            f"the two sides are misaligned: {source_name} has {len(source)} segments, "
            f"{target_name} has {len(target)}; no partner for document {orphan[0]!r}, "
            f"segment {orphan[1]!r}"
        )
    yield from ((text, sides[1][k]) for k, text in sides[0].items())


def _attribute(tag: str, name: str) -> str:
    """The value of an attribute, quoted or not; empty if missing."""
    matches = (m for m in _ATTRIBUTE.finditer(tag) if m[1].lower() == name)
    return next((m[2] or m[3] or m[4] or "" for m in matches), "")
