"""Attention in plain torch: weights are formed, and multiplied by the values.

    scores  z = scale · q kᵀ - slope |i - j|
    weights p = α-entmax(z) over the visible keys          (`maps/reference.py`)
    context     (p · kept) v

`kept` is dropout: 0 for a dropped weight, else 1 / (1 - rate).

Axes: B batch, H heads, Q and K numbers of queries and keys, E head width.
"""

from __future__ import annotations

from torch import Tensor

from headwise.ops.attention.distances import Distances
from headwise.ops.maps import reference as maps


def weights(
    query_BHQE: Tensor, key_BHKE: Tensor, alpha: Tensor | float, mask: Tensor, scale: float,
    distances: Distances,
) -> Tensor:  # fmt: skip
    """Return the weights (B, H, Q, K).

    Args:
        query_BHQE, key_BHKE: float32 or float64.
        alpha: in [1, 2]: a number, or a tensor that broadcasts to (B, H, Q, 1).
        mask: bool, broadcastable to the weights, True = may attend.
        scale: of the products.
        distances: the bias. The last query is at the position of the last key.
    """
    scores_BHQK = query_BHQE @ key_BHKE.mT * scale
    n_queries, n_keys = scores_BHQK.shape[2:]
    return maps.weights(distances.biased(scores_BHQK, n_keys - n_queries), alpha, mask)


def gradients(
    grad_BHQE: Tensor, query_BHQE: Tensor, key_BHKE: Tensor, value_BHKE: Tensor,
    p_BHQK: Tensor, kept: Tensor | float, alpha: Tensor | float, scale: float,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Return the gradients of query, key, value and, if it is a tensor, of α per query.

    Args:
        grad_BHQE: gradient of the context.
        query_BHQE, key_BHKE, value_BHKE, alpha, scale: as for `weights`.
        p_BHQK: result of `weights`.
        kept: dropout, 0 or 1 / (1 - rate), broadcastable to the weights.
    """
    grad_p_BHQK = grad_BHQE @ value_BHKE.mT * kept
    grad_z_BHQK, grad_alpha = maps.gradients(p_BHQK, grad_p_BHQK, alpha, isinstance(alpha, Tensor))
    of_query, of_key = grad_z_BHQK @ key_BHKE * scale, grad_z_BHQK.mT @ query_BHQE * scale
    of_value = (p_BHQK * kept).mT @ grad_BHQE
    return of_query, of_key, of_value, *(() if grad_alpha is None else (grad_alpha,))
