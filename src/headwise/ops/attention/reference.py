"""Attention that forms weights: where no kernel computes it without (`headwise.ops.dispatch`).

    scores  z = scale · q kᵀ - slope |i - j|               (`scores`)
    weights p = α-entmax(z) over the visible keys          (`weights`)
    context     (p · kept) v                               (`context`)

`kept` is dropout: 0 for a dropped weight, else 1 / (1 - rate). Products are torch's; weights are of
`maps/operator.py`, by a kernel or by `maps/reference.py`, plain torch.
Axes: B batch, H heads, Q and K numbers of queries and keys, E head width.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from headwise.ops.attention.distances import Distances
from headwise.ops.attention.layout import BlockLayout
from headwise.ops.dropout.operator import dropout as drop
from headwise.ops.family import Power
from headwise.ops.maps import operator as maps


def scores(
    query_BHQE: Tensor,
    key_BHKE: Tensor,
    scale: float,
    distances: Distances | None = None,
    query_offset: int = 0,
    *,
    layout: BlockLayout | None = None,
    softcap: float | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    """Return the scores (B, H, Q, K).

    Args:
        query_BHQE, key_BHKE: of one dtype.
        scale: of the products.
        distances: a bias by distance, or None.
        query_offset: position of the first query.
        layout: of a pattern: K then counts its slots.
        softcap: scores become softcap · tanh(scores / softcap), before any bias.
        bias: added, broadcastable to (B, H, Q, K), or None.
    """
    scaled_BHQE = query_BHQE * scale  # cheaper than scaling the scores
    if layout is not None:
        scores_BHQK = layout.scores(scaled_BHQE, key_BHKE)
    else:
        scores_BHQK = scaled_BHQE @ key_BHKE.mT
    if softcap is not None:
        scores_BHQK = softcap * torch.tanh(scores_BHQK / softcap)
    if distances is not None:
        keys = None if layout is None else layout.key_positions_BHNK
        scores_BHQK = distances.biased(scores_BHQK, query_offset, keys)
    return scores_BHQK if bias is None else scores_BHQK + bias


def weights(
    scores_BHQK: Tensor,
    power: Power,
    alpha: Tensor | None = None,
    mask: Tensor | None = None,
    sinks_H: Tensor | None = None,
) -> Tensor:
    """Return the weights (B, H, Q, K), in the dtype of the scores, computed in at least float32.

    Args:
        scores_BHQK: floating-point.
        power: the map.
        alpha: in [1, 2], broadcastable to (B, H, Q, 1), for `Power.ANY`, else None.
        mask: bool, broadcastable to the scores, True = may attend; None: all keys.
        sinks_H: score of one more key per head, which takes weight and has no value, or None.
    """
    n_keys, dtype = scores_BHQK.shape[3], scores_BHQK.dtype
    if mask is not None:
        mask = mask[(None,) * (4 - mask.dim())]
    if sinks_H is not None:
        sinks_BHQ1 = sinks_H.to(dtype)[None, :, None, None].expand(*scores_BHQK.shape[:3], 1)
        scores_BHQK = torch.cat([scores_BHQK, sinks_BHQ1], -1)
        mask = None if mask is None else pad(mask, (0, 1), value=True)
    scores_BHQK = scores_BHQK.to(torch.promote_types(dtype, torch.float32))
    alpha = None if alpha is None else alpha.to(scores_BHQK.dtype)
    return maps.weights(scores_BHQK, alpha, mask, power)[..., :n_keys].to(dtype)


def context(
    weights_BHQK: Tensor, value_BHKE: Tensor, dropout: float = 0.0,
    layout: BlockLayout | None = None,
) -> Tensor:  # fmt: skip
    """Return the context (B, H, Q, E): sums of the values, by the weights after dropout.

    Args:
        weights_BHQK: result of `weights`.
        value_BHKE: floating-point.
        dropout: rate on the weights.
        layout: as for `scores`.
    """
    dropped_BHQK = drop(weights_BHQK, dropout).to(value_BHKE.dtype)
    if layout is not None:
        return layout.context(dropped_BHQK, value_BHKE)
    return dropped_BHQK @ value_BHKE
