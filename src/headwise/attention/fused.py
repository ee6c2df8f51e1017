"""Attention without weights in memory, by the kernel that `headwise.ops.dispatch` selects.

Axes: B batch, H heads, Q and K numbers of queries and keys, E head width.
"""

from __future__ import annotations

import logging
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from headwise.attention.parts import Normaliser, ScoreContext
from headwise.entmax import alpha_entmax
from headwise.ops import dispatch
from headwise.ops.attention.cpu import attention
from headwise.ops.attention.cpu_few import attention_of_few
from headwise.ops.attention.cpu_sparse import Settings, sparse_attention
from headwise.ops.attention.triton import triton_entmax_attention
from headwise.ops.attention.widths import of_one_width
from headwise.ops.dispatch import Choice
from headwise.ops.family import ALPHAS, Power
from headwise.ops.visible import Visible

_LOGGED: set[Choice] = set()
log = logging.getLogger(__name__)


class FusedNormaliser(Normaliser):
    """A normaliser of the entmax family, whose maps have kernels.

    Attributes:
        power: the map.
        alpha_per_query: whether α differs by query.
    """

    is_fused = True
    power: ClassVar[Power]
    alpha_per_query: bool = False

    def row_alpha(self, context: ScoreContext) -> Tensor | None:
        """Return α, float32, broadcastable to (B, H, Q, 1); None if `power` determines it."""
        return None

    def forward(self, scores_BHQK: Tensor, context: ScoreContext) -> Tensor:
        """Return weights (B, H, Q, K), differentiable in the scores and in α."""
        alpha, mask = self.row_alpha(context), context.dense_mask(scores_BHQK)
        value = ALPHAS[self.power] if alpha is None else alpha
        return alpha_entmax(scores_BHQK, value, dim=-1, mask=mask)

    def kernel(
        self, query_BHQE: Tensor, key_BHKE: Tensor, value_BHKE: Tensor, has_pattern: bool,
        dropout: float, padded_bias: bool,
    ) -> Choice:  # fmt: skip
        """Return the kernel for such tensors, and the reason."""
        heads = (query_BHQE, key_BHKE, value_BHKE)
        options = (has_pattern, self.alpha_per_query, padded_bias)
        return dispatch.attention(*heads, self.power, dropout, *options)

    def attend(
        self,
        query_BHQE: Tensor,
        key_BHKE: Tensor,
        value_BHKE: Tensor,
        context: ScoreContext,
        dropout: float,
    ) -> Tensor | None:
        """Return the context (B, H, Q, E), or None if no kernel is faster than forming weights."""
        mask, heads = context.mask, (query_BHQE, key_BHKE, value_BHKE)
        distances, layout = context.distances, context.layout
        is_equal = mask.key_lengths_B is None and mask.segments_BN is None  # in all sentences
        padded_bias = distances is not None and not is_equal
        if layout is None:
            chosen = self.kernel(*heads, mask.needs_dense, dropout, padded_bias)
        else:
            options = (self.alpha_per_query, layout.segments_BN is not None)
            chosen = dispatch.sparse_attention(query_BHQE, value_BHKE, self.power, *options)
        if query_BHQE.device.type != "meta":  # the meta device, used by dry runs
            _log_once(chosen)
        if chosen.kernel == dispatch.WEIGHTS:
            return None
        if chosen.kernel == dispatch.TORCH:
            return _torch_softmax(*heads, context, dropout)
        alpha, scale = self.row_alpha(context), query_BHQE.shape[3] ** -0.5
        if chosen.kernel == dispatch.TRITON:
            alpha_H = ALPHAS[self.power] if alpha is None else alpha.flatten()
            lengths_B, causal, offset = mask.key_lengths_B, mask.causal, mask.query_offset
            return triton_entmax_attention(
                *heads, alpha_H, lengths_B, causal, offset, dropout, None, distances, layout
            )
        if layout is not None:
            settings = Settings(layout, self.power, dropout, scale, distances)
            return sparse_attention(*heads, alpha, settings)
        visible = _visible(context, query_BHQE.shape[2], key_BHKE.shape[2])
        if chosen.kernel == dispatch.CPP_FEW:
            return attention_of_few(*heads, alpha, self.power, visible, scale, distances)
        return attention(*heads, alpha, self.power, visible, dropout, scale, distances)


def _visible(context: ScoreContext, n_queries: int, n_keys: int) -> Visible:
    mask = context.mask
    dense_BHQK = None
    if mask.needs_dense:
        dense_BHQK = mask.dense(n_queries, n_keys, context.queries_BHQE.device)
    return Visible(dense_BHQK, mask.key_lengths_B, mask.causal, mask.query_offset)


def _torch_softmax(
    query_BHQE: Tensor, key_BHKE: Tensor, value_BHKE: Tensor, context: ScoreContext, dropout: float
) -> Tensor:
    mask, distances, width = context.mask, context.distances, value_BHKE.shape[3]
    scale = None if query_BHQE.shape[3] == width else query_BHQE.shape[3] ** -0.5
    # torch's kernels without weights need one width
    query_BHQE, key_BHKE, value_BHKE = of_one_width(query_BHQE, key_BHKE, value_BHKE)
    if distances is None and mask.is_plain_causal and query_BHQE.shape[2] == key_BHKE.shape[2]:
        return scaled_dot_product_attention(
            query_BHQE, key_BHKE, value_BHKE, dropout_p=dropout, is_causal=True, scale=scale
        )[..., :width]
    dense = mask.dense(query_BHQE.shape[2], key_BHKE.shape[2], query_BHQE.device)
    if distances is not None:  # equal for all sentences
        bias = query_BHQE.new_zeros(1, 1, query_BHQE.shape[2], key_BHKE.shape[2])
        if dense is not None:
            bias = bias.masked_fill(~dense, -torch.inf)
        dense = distances.biased(bias, mask.query_offset).to(query_BHQE.dtype)
    return scaled_dot_product_attention(
        query_BHQE, key_BHKE, value_BHKE, attn_mask=dense, dropout_p=dropout, scale=scale
    )[..., :width]


def _log_once(chosen: Choice) -> None:
    """Log the kernel once, except for few queries (decoding) and under torch.compile."""
    if torch.compiler.is_compiling() or chosen.kernel == dispatch.CPP_FEW or chosen in _LOGGED:
        return
    _LOGGED.add(chosen)
    if chosen.reason != dispatch.SHORT_ROWS:
        is_custom = chosen.kernel in (dispatch.CPP, dispatch.TRITON)
        log.info("attention: %s", f"{chosen.kernel} kernels" if is_custom else chosen)
