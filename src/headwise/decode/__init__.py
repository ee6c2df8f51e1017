"""Search (beam, greedy), translation of text, and scoring of given translations."""

from __future__ import annotations

from headwise.decode.beam import beam_search
from headwise.decode.greedy import greedy_search
from headwise.decode.hypothesis import (
    Hypothesis,
    SearchRecord,
    check_decode_config,
    length_limit,
)
from headwise.decode.scoring import TargetScore, score_ids
from headwise.decode.translator import Translation, Translator
from headwise.losses.output_map import SOFTMAX, OutputMap

__all__ = [
    "SOFTMAX",
    "Hypothesis",
    "OutputMap",
    "SearchRecord",
    "TargetScore",
    "Translation",
    "Translator",
    "beam_search",
    "check_decode_config",
    "greedy_search",
    "length_limit",
    "score_ids",
]
