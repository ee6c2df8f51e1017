"""Scores of translations: BLEU and chrF with signatures, and external metrics."""

from __future__ import annotations

from headwise.metrics.bleu import bleu_tokeniser, score_translations
from headwise.metrics.external import check_commands, run_external
from headwise.metrics.metric import Score

__all__ = ["Score", "bleu_tokeniser", "check_commands", "run_external", "score_translations"]
