"""What a head is called, from what was measured of it.

A head may have several roles, or none. The names are those of the column `roles` of the table of
heads: `previous`, `current`, `next`, `offset+2` and the like, `merging`, `interrogation`, `rare`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

NAMED = {-1: "previous", 0: "current", 1: "next"}
# Of what is scored over words of several pieces alone. A head that always looks at the current
# token scores 1 at all other words, and 0 at these; one that spreads evenly over the pieces of a
# word scores a half at the shortest of them.
LEAST_SPLIT_SCORE = 0.4
FEWEST_SPLIT_WORDS = 10
# An interrogation head looks away where the same word asks nothing.
LEAST_CONTRAST = 0.3
FEWEST_QUESTION_TOKENS = 10


@dataclass(frozen=True)
class Thresholds:
    """From where on a head is called something.

    Attributes:
        positional_share: of the tokens with something at an offset, those whose largest weight
            is there (Voita et al. 2019).
        merge_score: see `text.words.merging` (Correia et al. 2019).
        question_weight: at interrogative words, on the final question mark.
        rare_share: of the sentences, those in which most tokens look at the rarest.
    """

    positional_share: float = 0.9
    merge_score: float = 0.8
    question_weight: float = 0.8
    rare_share: float = 0.5


def offset_name(offset: int) -> str:
    """The role of a head that looks at an offset."""
    return NAMED.get(offset, f"offset{offset:+d}")


def roles(
    head: Mapping[str, Any], column: str, counts: Mapping[str, int], thresholds: Thresholds
) -> list[str]:
    """The roles of a head.

    Args:
        head: its row of the table of heads.
        column: whose tokens its keys are.
        counts: what it was measured over, `Survey.counts`.
    """
    found = []
    if (head.get("offset_share") or 0.0) >= thresholds.positional_share:
        found.append(offset_name(head["offset"]))
    if (
        counts.get(f"{column}_split_words", 0) >= FEWEST_SPLIT_WORDS
        and (head.get("merge_score") or 0.0) >= thresholds.merge_score
        and (head.get("split_merge_score") or 0.0) >= LEAST_SPLIT_SCORE
    ):
        found.append("merging")
    if can_tell_questions(counts):
        asked, told = head.get("question_weight"), head.get("statement_weight")
        if (
            asked is not None
            and told is not None
            and asked >= thresholds.question_weight
            and asked - told >= LEAST_CONTRAST
        ):
            found.append("interrogation")
    if (head.get("rare_share") or 0.0) >= thresholds.rare_share:
        found.append("rare")
    return found


def can_tell_questions(counts: Mapping[str, int]) -> bool:
    """Whether the text has enough interrogative words, in questions and in other sentences."""
    names = ("question_word_tokens", "statement_word_tokens")
    return all(counts.get(name, 0) >= FEWEST_QUESTION_TOKENS for name in names)
