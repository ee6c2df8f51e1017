"""The findings on what heads look at: the heads that have a role, or those nearest to it."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from headwise.analysis.roles import (
    FEWEST_SPLIT_WORDS,
    NAMED,
    Thresholds,
    can_tell_questions,
    offset_name,
)
from headwise.analysis.wording import (
    Row,
    chain,
    head_name,
    known,
    local_name,
    number,
    percent,
    plural,
    upper,
)
from headwise.schema import SITE_NAMES

WHERE = {-1: "the token before", 0: "the current token", 1: "the token behind"}


def _with(role: str, heads: Sequence[Row]) -> list[Row]:
    return [row for row in heads if role in row["roles"].split(";")]


def positional_text(heads: Sequence[Row], thresholds: Thresholds) -> str:
    """Heads at a fixed distance: before, behind, current, then any other."""
    heads = known(heads, "offset_share")
    if not heads:
        return "No self-attention head forms weights, so none can be seen to look at a distance."
    share = percent(thresholds.positional_share)
    lines = [_at_offset(heads, offset, share) for offset in (-1, 1, 0)]
    others = [row for row in heads if row["offset"] not in NAMED and _is_positional(row)]
    for row in others:
        lines.append(
            f"- **{row['offset']:+d}**: {head_name(row)}, puts {percent(row['offset_weight'])} "
            "there."
        )
    return (
        f"Heads whose largest weight lies at one distance for {share} of the tokens or more, with "
        "the mean weight they put there; ends of sentences, and tokens with nothing at that "
        "distance, left out.\n\n" + "\n".join(lines)
    )


def _is_positional(row: Row) -> bool:
    return offset_name(row["offset"]) in row["roles"].split(";")


def _at_offset(heads: Sequence[Row], offset: int, share: str) -> str:
    name = NAMED[offset]
    found = sorted(_with(name, heads), key=lambda row: -float(row[f"{name}_weight"]))
    start = f"- **{offset:+d}, {WHERE[offset]}**: " if offset else f"- **{WHERE[offset]}**: "
    if found:
        named = [f"{head_name(row)}, puts {percent(row[f'{name}_weight'])} there" for row in found]
        middle = percent(statistics.median(row[f"{name}_weight"] for row in found))
        more = f" with a median of {middle}" if len(found) > 1 else ""
        return f"{start}{plural(len(found), 'head')}{more}: {chain(named)}."
    near = known(heads, f"{name}_share")
    if not near:
        return f"{start}not to be seen by any head."
    best = max(near, key=lambda row: float(row[f"{name}_share"]))
    return (
        f"{start}no head for {share} of tokens; nearest is {head_name(best)}, "
        f"with {percent(best[f'{name}_share'])} and a mean weight of "
        f"{percent(best[f'{name}_weight'])}."
    )


def merging_text(heads: Sequence[Row], counts: Mapping[str, int], thresholds: Thresholds) -> str:
    """Heads that keep their weight inside of the current word."""
    lines = []
    for site, side in (("encoder_self", "source"), ("decoder_self", "target")):
        rows = known([row for row in heads if row["site"] == site], "merge_score")
        if f"{side}_words" not in counts:
            lines.append(
                f"- **{SITE_NAMES[site]}**: not measured, the {side} is written without spaces."
            )
            continue
        if not rows:
            continue
        if not counts[f"{side}_split_words"]:
            lines.append(f"- **{SITE_NAMES[site]}**: every word is one piece, nothing to hold.")
            continue
        lines.append(f"- **{SITE_NAMES[site]}**: {_merging(rows, counts, side, thresholds)}")
    if not lines:
        return ""
    return (
        "Merge score: the highest weight that a piece of a word puts on the word's other pieces; "
        "for a word of one piece, its weight on itself; mean over words. Cluster mass: weight of a "
        "piece inside of its own word.\n\n" + "\n".join(lines)
    )


def _merging(
    rows: Sequence[Row], counts: Mapping[str, int], side: str, thresholds: Thresholds
) -> str:
    found = _with("merging", rows)
    text = (
        f"{number(counts[f'{side}_split_words'])} of {number(counts[f'{side}_words'])} words have "
        "several pieces. "
    )
    if found:
        named = [
            f"{local_name(row)}, scores {percent(row['merge_score'])} "
            f"({percent(row['split_merge_score'])} at words of several pieces, cluster mass "
            f"{percent(row['cluster_mass'])})"
            for row in sorted(found, key=lambda row: -float(row["merge_score"]))
        ]
        return f"{text}{upper(plural(len(found), 'head'))}: {chain(named)}."
    score = max(rows, key=lambda row: float(row["merge_score"]))
    mass = max(rows, key=lambda row: float(row["cluster_mass"]))
    split = max(rows, key=lambda row: float(row["split_merge_score"]))
    verdict = f"No head scores {percent(thresholds.merge_score)} by holding words together."
    if counts[f"{side}_split_words"] < FEWEST_SPLIT_WORDS:
        verdict = "Too few to call a head by."
    return (
        f"{text}{verdict} Highest: merge score {percent(score['merge_score'])} "
        f"({local_name(score)}), at words of several pieces alone "
        f"{percent(split['split_merge_score'])} ({local_name(split)}), cluster mass "
        f"{percent(mass['cluster_mass'])} ({local_name(mass)})."
    )


def interrogation_text(
    heads: Sequence[Row], counts: Mapping[str, int], thresholds: Thresholds
) -> str:
    """Heads that look from question words at the question mark."""
    if "question_word_tokens" not in counts:
        return "Not measured: there is no list of question words for the source language."
    asked, told = counts["question_word_tokens"], counts["statement_word_tokens"]
    seen = (
        f"The text has {plural(asked, 'piece')} of question words in questions and "
        f"{plural(told, 'piece')} of the same words in other sentences"
    )
    rows = known(heads, "question_weight")
    if not rows:
        return f"{seen}: nothing to tell."
    best = max(rows, key=lambda row: float(row["question_weight"]))
    if not can_tell_questions(counts):
        return (
            f"{seen}: too few to tell. Most weight from them on the question mark: "
            f"{head_name(best)}, with {percent(best['question_weight'])}."
        )
    found = _with("interrogation", rows)
    if found:
        named = [_asked(row) for row in found]
        return f"{seen}. {upper(plural(len(found), 'head'))}: {chain(named)}."
    best = max(rows, key=lambda row: float(row["question_weight"] - row["statement_weight"]))
    if any(row["question_weight"] >= thresholds.question_weight for row in rows):
        return (
            f"{seen}. No head that puts {percent(thresholds.question_weight)} on the question mark "
            f"there looks away where they ask nothing; the largest difference is that of "
            f"{_asked(best)}."
        )
    return (
        f"{seen}. No head puts {percent(thresholds.question_weight)} on the question mark there; "
        f"the largest difference is that of {_asked(best)}."
    )


def _asked(row: Row) -> str:
    return (
        f"{head_name(row)}, which puts {percent(row['question_weight'])} on the question mark from "
        f"question words, and {percent(row['statement_weight'])} on the last token from the same "
        "words elsewhere"
    )


def rare_text(heads: Sequence[Row], thresholds: Thresholds) -> str:
    """Heads that look at the rarest token."""
    rows = known(heads, "rare_share")
    if not rows:
        return ""
    found = _with("rare", rows)
    seen = "how rare a piece is, is counted over the source text looked at"
    if found:
        named = [f"{head_name(row)}, in {percent(row['rare_share'])} of sentences" for row in found]
        return f"Most tokens look at the rarest token of their sentence: {chain(named)} ({seen})."
    best = max(rows, key=lambda row: float(row["rare_share"]))
    if not best["rare_share"]:
        return f"No head looks from most tokens at the rarest of any sentence ({seen})."
    return (
        f"No head looks from most tokens at the rarest of the sentence in "
        f"{percent(thresholds.rare_share)} of sentences; nearest is {head_name(best)}, "
        f"with {percent(best['rare_share'])} ({seen})."
    )
