"""Length penalty: scores that rank hypotheses of different lengths."""

from __future__ import annotations

import math


def penalised(log_prob: float, n_tokens: int, length_penalty: float) -> float:
    """log_prob / n_tokens**length_penalty; `n_tokens` counts eos (0 tokens: the log_prob)."""
    return log_prob / math.pow(max(n_tokens, 1), length_penalty)
