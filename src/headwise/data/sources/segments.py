"""Documents of numbered segments: IWSLT's xml and WMT's sgm.

WMT's sgm is not XML (attributes without quotes, stray ampersands), so both are parsed
by the tags `<doc>` and `<seg>` alone, which all releases use in the same way.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from typing import IO, NamedTuple

from headwise.data.sources.lines import decoded_lines
from headwise.errors import DataError

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
