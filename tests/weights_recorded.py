"""Calls of an attention that return its weights."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from headwise.attention.protocol import Attention
from headwise.attention.recorder import recorded_weights


def with_weights(attention: Attention, *args: Any) -> tuple[Tensor, Any]:
    """Context (B, Q, D) and weights (B, H, Q, K); None if the attention forms none."""
    with recorded_weights(attention) as weights:
        context = attention(*args)
    return context, weights.get(attention.place.site, {}).get(attention.place.layer)
