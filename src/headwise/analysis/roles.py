"""Roles of a head, from its statistics.

A head may have several roles, or none. The names are those of the column `roles` of the table of
heads: `previous`, `current`, `next`, `offset+2` and the like, `merging`, `interrogation`, `rare`,
and those of `headwise.analysis.kinds`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headwise.config.commands import AnalyzeConfig

OFFSET_NAMES = {-1: "previous", 0: "current", 1: "next"}
# Role -> the statistic of its heads, and the name of its threshold.
ROLES = {
    **{role: (f"{role}_share", "positional_share") for role in OFFSET_NAMES.values()},
    "merging": ("merge_score", "merge_score"),
    "interrogation": ("question_weight", "question_weight"),
    "rare": ("rare_share", "rare_share"),
}
# Minimum merge score over words of several tokens. A head that always attends to the current token
# scores 1 at words of one token and 0 at these; uniform weights over the tokens of a word score a
# half at words of two tokens.
MIN_SPLIT_SCORE = 0.4
MIN_SPLIT_WORDS = 10
# Minimum drop of an interrogation head's weight at the same words outside questions.
MIN_CONTRAST = 0.3
MIN_QUESTION_TOKENS = 10


@dataclass(frozen=True)
class Thresholds:
    """Minimum value of a statistic for each role.

    Attributes:
        positional_share: share of the tokens with a token at an offset whose largest weight is
            there (Voita et al. 2019).
        merge_score: see `text.words.merging` (Correia et al. 2019).
        question_weight: from interrogative words to the final question mark.
        rare_share: share of the sentences in which most tokens attend to the rarest.
    """

    positional_share: float = AnalyzeConfig.positional_share
    merge_score: float = AnalyzeConfig.merge_score
    question_weight: float = AnalyzeConfig.question_weight
    rare_share: float = AnalyzeConfig.rare_share


def offset_name(offset: int) -> str:
    """Return the role of a head that attends to an offset."""
    return OFFSET_NAMES.get(offset, f"offset{offset:+d}")


def roles(
    head: Mapping[str, Any], column: str, counts: Mapping[str, int], thresholds: Thresholds
) -> list[str]:
    """Return the roles of a head.

    Args:
        head: row of the table of heads.
        column: name of the column of its keys.
        counts: see `Survey.counts`.
    """
    names = []
    if (head.get("offset_share") or 0.0) >= thresholds.positional_share:
        names.append(offset_name(head["offset"]))
    if (
        counts.get(f"{column}_split_words", 0) >= MIN_SPLIT_WORDS
        and (head.get("merge_score") or 0.0) >= thresholds.merge_score
        and (head.get("split_merge_score") or 0.0) >= MIN_SPLIT_SCORE
    ):
        names.append("merging")
    if has_enough_questions(counts):
        question, statement = head.get("question_weight"), head.get("statement_weight")
        if (
            question is not None
            and statement is not None
            and question >= thresholds.question_weight
            and question - statement >= MIN_CONTRAST
        ):
            names.append("interrogation")
    if (head.get("rare_share") or 0.0) >= thresholds.rare_share:
        names.append("rare")
    return names


def has_enough_questions(counts: Mapping[str, int]) -> bool:
    """Whether the text has enough interrogative words, in questions and in other sentences."""
    names = ("question_word_tokens", "statement_word_tokens")
    return all(counts.get(name, 0) >= MIN_QUESTION_TOKENS for name in names)
