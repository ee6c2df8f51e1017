"""Attention without weights in memory, by the kernel that `dispatch` selects.

Axes: B batch, H heads, Q and K numbers of queries and keys, E head width.
"""

from __future__ import annotations

import logging

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from headwise.ops import dispatch
from headwise.ops.attention.cpu import attention
from headwise.ops.attention.cpu_few import attention_of_few
from headwise.ops.attention.cpu_sparse import Settings, sparse_attention
from headwise.ops.attention.distances import Distances
from headwise.ops.attention.layout import BlockLayout
from headwise.ops.attention.triton import triton_entmax_attention
from headwise.ops.attention.widths import of_one_width, repeated
from headwise.ops.dispatch import Choice
from headwise.ops.family import ALPHAS, Power
from headwise.ops.visible import Visible

_LOGGED: set[Choice] = set()
log = logging.getLogger(__name__)


def attend(
    query_BHQE: Tensor,
    key_BHKE: Tensor,
    value_BHKE: Tensor,
    power: Power,
    alpha: Tensor | None,
    alpha_per_query: bool,
    visible: Visible,
    dropout: float = 0.0,
    distances: Distances | None = None,
    layout: BlockLayout | None = None,
    scale: float | None = None,
) -> Tensor | None:
    """Return the context (B, H, Q, E), or None if no kernel is faster than forming weights.

    Scores are scale · query · key, plus the bias. Differentiable once in queries, keys, values, α.

    Args:
        query_BHQE, key_BHKE, value_BHKE: of one dtype; values may have another width, keys and
            values fewer heads, which divide H: consecutive heads of queries share them.
        power: the map.
        alpha: α, float32, broadcastable to (B, H, Q, 1); None if `power` determines it.
        alpha_per_query: whether α differs by query.
        visible: which keys.
        dropout: rate on the weights.
        distances: the bias, or None.
        layout: of the pattern of `visible`, or None.
        scale: of the scores; None: E^-0.5.
    """
    scale = query_BHQE.shape[3] ** -0.5 if scale is None else scale
    heads = (query_BHQE, key_BHKE, value_BHKE)
    if layout is None:
        chosen = dispatch.attention(
            *heads, power, visible, dropout=dropout, alpha_per_query=alpha_per_query,
            has_bias=distances is not None,
        )  # fmt: skip
    else:
        chosen = dispatch.sparse_attention(
            query_BHQE, value_BHKE, power, alpha_per_query=alpha_per_query
        )
    log_once(chosen)
    if chosen.kernel == dispatch.WEIGHTS:
        return None
    if chosen.kernel == dispatch.TORCH:
        key_BHKE, value_BHKE = (repeated(x, query_BHQE.shape[1]) for x in (key_BHKE, value_BHKE))
        heads = (query_BHQE, key_BHKE, value_BHKE)
        return _torch_softmax(*heads, visible, dropout, distances, scale)
    if chosen.kernel == dispatch.TRITON:
        alpha_H = ALPHAS[power] if alpha is None else alpha.flatten()
        if visible.window is not None:
            n_heads, n = query_BHQE.shape[1:3]
            layout = visible.window_layout(n_heads, n, query_BHQE.device)
        return triton_entmax_attention(
            *heads, alpha_H, visible.key_lengths_B, visible.causal, visible.query_offset, dropout,
            scale, distances, layout, None, visible.key_mask_BK, visible.segments_BN,
        )  # fmt: skip
    if layout is not None:
        settings = Settings(layout, power, dropout, scale, distances)
        return sparse_attention(*heads, alpha, settings)
    visible = visible.with_mask(query_BHQE.shape[2], key_BHKE.shape[2], query_BHQE.device)
    if chosen.kernel == dispatch.CPP_FEW:
        return attention_of_few(*heads, alpha, power, visible, scale, distances)
    return attention(*heads, alpha, power, visible, dropout, scale, distances)


def _torch_softmax(
    query_BHQE: Tensor, key_BHKE: Tensor, value_BHKE: Tensor, visible: Visible, dropout: float,
    distances: Distances | None, scale: float,
) -> Tensor:  # fmt: skip
    width = value_BHKE.shape[3]
    # torch's kernels without weights need one width
    query_BHQE, key_BHKE, value_BHKE = of_one_width(query_BHQE, key_BHKE, value_BHKE)
    is_plain = distances is None and visible.is_plain_causal
    # torch's causal kernel masks before it scales: NaN for a scale that is not positive
    if is_plain and query_BHQE.shape[2] == key_BHKE.shape[2] and scale > 0:
        return scaled_dot_product_attention(
            query_BHQE, key_BHKE, value_BHKE, dropout_p=dropout, is_causal=True, scale=scale
        )[..., :width]
    dense = visible.dense(query_BHQE.shape[2], key_BHKE.shape[2], query_BHQE.device)
    if distances is not None:  # equal for all sentences
        bias = query_BHQE.new_zeros(1, 1, query_BHQE.shape[2], key_BHKE.shape[2])
        if dense is not None:
            bias = bias.masked_fill(~dense, -torch.inf)
        dense = distances.biased(bias, visible.query_offset).to(query_BHQE.dtype)
    return scaled_dot_product_attention(
        query_BHQE, key_BHKE, value_BHKE, attn_mask=dense, dropout_p=dropout, scale=scale
    )[..., :width]


def log_once(chosen: Choice) -> None:
    """Log the kernel once, except for few queries (decoding), estimates and under torch.compile."""
    is_silent = torch.compiler.is_compiling() or chosen.kernel == dispatch.CPP_FEW
    if is_silent or chosen.reason in (dispatch.SHORT_ROWS, dispatch.SHAPES) or chosen in _LOGGED:
        return
    _LOGGED.add(chosen)
    log.info("attention: %s", chosen)
