"""Attention without weights in memory, by the kernel that `headwise.kernels.choice` names.

Letters: B batch, H heads, Q and K numbers of queries and keys, E head width.
"""

from __future__ import annotations

import logging
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from headwise.attention.parts import Normaliser, ScoreContext
from headwise.entmax import alpha_entmax
from headwise.entmax.function import REFERENCE
from headwise.kernels import choice
from headwise.kernels.choice import Choice
from headwise.kernels.cpu_attention import attention
from headwise.kernels.native_attention import attention_of_few
from headwise.kernels.problem import ALPHAS, Power, Visible
from headwise.kernels.triton_attention import triton_entmax_attention

_SAID: set[Choice] = set()
log = logging.getLogger(__name__)


class FusedNormaliser(Normaliser):
    """A normaliser of the entmax family: the kernels know its map.

    Attributes:
        power: which map.
        alpha_per_query: whether each query has an α of its own.
    """

    is_fused = True
    power: ClassVar[Power]
    alpha_per_query: bool = False

    def row_alpha(self, context: ScoreContext) -> Tensor | None:
        """α, float32, four axes that broadcast to (B, H, Q, 1); None where `power` says it."""
        return None

    def forward(self, scores_BHQK: Tensor, context: ScoreContext) -> Tensor:
        """Weights (B, H, Q, K); differentiable in the scores and in α."""
        alpha, mask = self.row_alpha(context), context.dense_mask(scores_BHQK)
        given = ALPHAS[self.power] if alpha is None else alpha
        return alpha_entmax(scores_BHQK, given, dim=-1, mask=mask)

    def kernel(
        self, query_BHQE: Tensor, key_BHKE: Tensor, value_BHKE: Tensor, has_pattern: bool,
        dropout: float, padded_bias: bool,
    ) -> Choice:  # fmt: skip
        """What computes attention of such tensors."""
        heads = (query_BHQE, key_BHKE, value_BHKE)
        facts = (has_pattern, self.alpha_per_query, padded_bias)
        return choice.attention(*heads, self.power, dropout, *facts, REFERENCE)

    def attend(
        self,
        query_BHQE: Tensor,
        key_BHKE: Tensor,
        value_BHKE: Tensor,
        context: ScoreContext,
        dropout: float,
    ) -> Tensor | None:
        """Context (B, H, Q, E), or None where forming weights is as good."""
        mask, heads = context.mask, (query_BHQE, key_BHKE, value_BHKE)
        distances = context.distances
        padded_bias = distances is not None and mask.key_lengths_B is not None
        found = self.kernel(*heads, mask.pattern is not None, dropout, padded_bias)
        if query_BHQE.device.type != "meta":  # where a dry run counts
            _announce(found)
        if found.kernel == choice.WEIGHTS:
            return None
        if found.kernel == choice.TORCH:
            return _torch_softmax(*heads, context, dropout)
        alpha, scale = self.row_alpha(context), query_BHQE.shape[3] ** -0.5
        if found.kernel == choice.TRITON:
            alpha_H = ALPHAS[self.power] if alpha is None else alpha.flatten()
            places = (mask.key_lengths_B, mask.causal, mask.query_offset)
            return triton_entmax_attention(*heads, alpha_H, *places, dropout, None, distances)
        visible = _visible(context, query_BHQE.shape[2], key_BHKE.shape[2])
        if found.kernel == choice.FEW:
            return attention_of_few(*heads, alpha, self.power, visible, scale, distances)
        return attention(*heads, alpha, self.power, visible, dropout, scale, distances)


def _visible(context: ScoreContext, n_queries: int, n_keys: int) -> Visible:
    mask = context.mask
    dense_BHQK = None
    if mask.pattern is not None:
        dense_BHQK = mask.dense(n_queries, n_keys, context.queries_BHQE.device)
    return Visible(dense_BHQK, mask.key_lengths_B, mask.causal, mask.query_offset)


def _torch_softmax(
    query_BHQE: Tensor, key_BHKE: Tensor, value_BHKE: Tensor, context: ScoreContext, dropout: float
) -> Tensor:
    mask, distances = context.mask, context.distances
    if distances is None and mask.is_plain_causal and query_BHQE.shape[2] == key_BHKE.shape[2]:
        return scaled_dot_product_attention(
            query_BHQE, key_BHKE, value_BHKE, dropout_p=dropout, is_causal=True
        )
    dense = mask.dense(query_BHQE.shape[2], key_BHKE.shape[2], query_BHQE.device)
    if distances is not None:  # the same for every sentence
        hidden = query_BHQE.new_zeros(1, 1, query_BHQE.shape[2], key_BHKE.shape[2])
        if dense is not None:
            hidden = hidden.masked_fill(~dense, -torch.inf)
        dense = distances.biased(hidden, mask.query_offset).to(query_BHQE.dtype)
    return scaled_dot_product_attention(
        query_BHQE, key_BHKE, value_BHKE, attn_mask=dense, dropout_p=dropout
    )


def _announce(found: Choice) -> None:
    """Log once which kernel is in use, but for searches and graphs that are being compiled."""
    if torch.compiler.is_compiling() or found.kernel == choice.FEW or found in _SAID:
        return
    _SAID.add(found)
    if found.reason != choice.SHORT_ROWS:
        is_ours = found.kernel in (choice.CPP, choice.TRITON)
        log.info("attention: %s", f"{found.kernel} kernels" if is_ours else found)
