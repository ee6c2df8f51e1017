"""Documents of numbered segments: IWSLT's xml and WMT's sgm.

WMT's sgm is not XML (attributes without quotes, stray ampersands), so both are read by their
tags alone; every release puts `<doc>` and `<seg>` around the text in the same way.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from typing import IO, NamedTuple

from headwise.data.lines import DAMAGED, decode_line
from headwise.errors import DataError

_TAG = re.compile(
    r"<doc\b(?P<doc>[^>]*)>|<seg\b(?P<seg>[^>]*)>(?P<text>.*?)</seg\s*>",
    re.IGNORECASE | re.DOTALL,
)
_ATTRIBUTE = re.compile(r"""(\w+)\s*=\s*(?:"([^"]*)"|'([^']*)'|([^\s>]+))""")
# Only entities that end in a semicolon: html.unescape alone also turns "&not" of free text.
_ENTITY = re.compile(r"&(?:#\d+|#[xX][0-9a-fA-F]+|[A-Za-z][A-Za-z0-9]*);")


class Segment(NamedTuple):
    """One line of a test set."""

    document: str  # docid
    position: int  # which document of the file, from 0
    number: str  # id within the document
    text: str


def unescape(text: str) -> str:
    """XML entities as the characters they stand for; a lone ampersand stays."""
    return _ENTITY.sub(lambda m: html.unescape(m.group()), text) if "&" in text else text


def read_segments(stream: IO[bytes], name: str) -> list[Segment]:
    """All segments of one side of a development or test set (a few megabytes at most).

    Raises:
        DataError: no segment, a segment id twice in a document, not UTF-8, or damaged.
    """
    number = 0
    lines = []
    try:
        for number, raw in enumerate(stream, 1):
            lines.append(decode_line(raw, name, number))
    except DAMAGED as error:
        raise DataError(f"{name} is damaged after line {number} ({error})") from error
    segments, document, position = [], "", -1
    for match in _TAG.finditer("\n".join(lines)):
        if match["doc"] is not None:
            document, position = _attributes(match["doc"]).get("docid", ""), position + 1
            continue
        segment_id = _attributes(match["seg"]).get("id", "")
        text = unescape(" ".join(match["text"].split("\n"))).strip()
        segments.append(Segment(document, max(position, 0), segment_id, text))
    if not segments:
        raise DataError(f"{name} holds no <seg> element; is it the right file?")
    _check_unique(segments, name)
    return segments


def aligned_segments(
    source: list[Segment], target: list[Segment], source_name: str, target_name: str
) -> Iterator[tuple[str, str]]:
    """Pairs of segments with the same document and id, in the order of the source file.

    Releases whose two sides come from different archives may name the documents differently;
    then the n-th document of one side belongs to the n-th of the other.

    Raises:
        DataError: a segment has no partner; counts and the first one are named.
    """
    names = [{(s.document, s.position) for s in side} for side in (source, target)]
    first, second = ({document for document, _ in side} for side in names)
    # A name twice in one file (none at all, or several references) identifies nothing.
    by_name = first == second and len(first) == len(names[0]) == len(names[1])

    def key(segment: Segment) -> tuple[str | int, str]:
        return (segment.document if by_name else segment.position, segment.number)

    partners = {key(segment): segment for segment in target}
    keys = [key(segment) for segment in source]
    lonely = [k for k in keys if k not in partners]
    extra = set(partners) - set(keys)
    if lonely or extra:
        orphan = lonely[0] if lonely else min(extra, key=str)
        raise DataError(
            f"the two sides are misaligned: {source_name} has {len(source)} segments, "
            f"{target_name} has {len(target)}; no partner for document {orphan[0]!r}, "
            f"segment {orphan[1]!r}"
        )
    for segment, k in zip(source, keys, strict=True):
        yield segment.text, partners[k].text


def _attributes(text: str) -> dict[str, str]:
    return {
        m[1].lower(): m[2] if m[2] is not None else m[3] if m[3] is not None else m[4]
        for m in _ATTRIBUTE.finditer(text)
    }


def _check_unique(segments: list[Segment], name: str) -> None:
    seen = set()
    for segment in segments:
        key = (segment.position, segment.number)
        if key in seen:
            raise DataError(
                f"{name}: segment {segment.number!r} occurs twice in document {segment.document!r}"
            )
        seen.add(key)
