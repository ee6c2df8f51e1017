"""How heads and figures are spelt in the findings."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]

MOST_CHARACTERS = 120  # of a sentence that is quoted
HEAD_SITES = {"encoder_self": "encoder", "decoder_self": "decoder", "cross": "cross-attention"}


def head_name(row: Row) -> str:
    """`encoder layer 1 head 4, α 1.91`."""
    return f"{HEAD_SITES[row['site']]} {short_name(row)}{_with_alpha(row)}"


def head_place(row: Row) -> str:
    """`encoder layer 1 head 4`."""
    return f"{HEAD_SITES[row['site']]} {short_name(row)}"


def local_name(row: Row) -> str:
    """`layer 1 head 4, α 1.91`, where the site is known."""
    return f"{short_name(row)}{_with_alpha(row)}"


def short_name(row: Row) -> str:
    """`layer 1 head 4`."""
    return f"layer {row['layer']} head {row['head']}"


def _with_alpha(row: Row) -> str:
    return "" if row.get("alpha") is None else f", α {row['alpha']:.2f}"


def percent(share: float) -> str:
    """A share of 1 in whole per cent; never 0 or 100 for what is only near."""
    if 0 < share <= 0.005:
        return "under 1 %"
    if 0.995 <= share < 1:
        return "over 99 %"
    return f"{100 * share:.0f} %"


def number(count: int) -> str:
    """With commas."""
    return f"{count:,}"


def plural(count: int, word: str) -> str:
    """`1 head`, `1,200 heads`, `no head`."""
    if not count:
        return f"no {word}"
    return f"{count:,} {word}" if count == 1 else f"{count:,} {word}s"


def listed(items: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}"


def chain(items: Sequence[str]) -> str:
    """`a`, `a; b`, for items with commas in them."""
    return "; ".join(items)


def upper(sentence: str) -> str:
    """With a capital letter in front."""
    return sentence[:1].upper() + sentence[1:]


def quoted(sentence: str) -> str:
    """A sentence in Markdown, cut where it is long."""
    short = sentence if len(sentence) <= MOST_CHARACTERS else f"{sentence[:MOST_CHARACTERS]}…"
    return re.sub(r"([\\*_`\[\]<])", r"\\\1", short)


def known(rows: Iterable[Row], *names: str) -> list[Row]:
    """The rows in which none of the named values is missing."""
    return [row for row in rows if all(row.get(name) is not None for name in names)]
