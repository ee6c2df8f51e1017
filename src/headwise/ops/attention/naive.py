"""Attention as its papers define it, to be read; the tests compare it with all that computes it."""

from __future__ import annotations

import math

from torch import Tensor

from headwise.ops.maps.naive import alpha_entmax


def attention(query: Tensor, key: Tensor, value: Tensor, alpha: float, mask: Tensor) -> Tensor:
    """Return α-entmax(q kᵀ / √E) v (..., Q, E) (Vaswani et al. 2017, eq. 1; Correia et al. 2019).

    Args:
        query, key, value: float64, (..., Q, E) and (..., K, E).
        alpha: above 1.
        mask: bool, broadcastable to (..., Q, K), True = may attend; each query has a key.
    """
    scores = query @ key.mT / math.sqrt(query.shape[-1])
    return alpha_entmax(scores.masked_fill(~mask, -math.inf), alpha) @ value
