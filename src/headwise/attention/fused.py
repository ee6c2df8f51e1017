"""Which kernel computes attention without forming the weights, if any.

Letters: B batch, H heads, Q and K numbers of queries and keys, E head width.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from headwise.attention.parts import Normaliser, ScoreContext
from headwise.kernels import native, native_attention
from headwise.kernels.cpu_attention import attention
from headwise.kernels.native_attention import attention_of_few
from headwise.kernels.problem import ALPHAS, Power, Visible
from headwise.kernels.triton_attention import refusal, triton_entmax_attention
from headwise.kernels.triton_device import is_interpreted

# Rows of fewer keys, padding counted, are done sooner with their weights kept, unless there is
# dropout to save. The results of both ways differ by rounding.
KEYS_WORTH_IT = 128

_SAID: set[str] = set()
log = logging.getLogger(__name__)


class FusedNormaliser(Normaliser):
    """A normaliser of the entmax family: the kernels know its map.

    Attributes:
        power: which map.
    """

    is_fused = True
    power: ClassVar[Power]

    def row_alpha(self, context: ScoreContext) -> Tensor | None:
        """α, float32, four axes that broadcast to (B, H, Q, 1); None where `power` says it."""
        return None

    def attend(
        self,
        query_BHQE: Tensor,
        key_BHKE: Tensor,
        value_BHKE: Tensor,
        context: ScoreContext,
        dropout: float,
    ) -> Tensor | None:
        """Context (B, H, Q, E)."""
        return fused_attention(
            query_BHQE, key_BHKE, value_BHKE, context, dropout, self.power, self.row_alpha
        )


def fused_attention(
    query_BHQE: Tensor,
    key_BHKE: Tensor,
    value_BHKE: Tensor,
    context: ScoreContext,
    dropout: float,
    power: Power,
    row_alpha: Callable[[ScoreContext], Tensor | None],
) -> Tensor | None:
    """Context (B, H, Q, E) by the best kernel at hand, or None where forming weights is as good.

    Args:
        query_BHQE, key_BHKE, value_BHKE: of one type.
        context: the mask.
        dropout: share of the weights that is dropped.
        power: the map.
        row_alpha: as of `FusedNormaliser`; asked only where a kernel takes it.
    """
    n_queries, n_keys, scale = query_BHQE.shape[2], key_BHKE.shape[2], query_BHQE.shape[3] ** -0.5
    if dropout == 0 and native_attention.takes(query_BHQE, key_BHKE, value_BHKE):
        # not announced: who translates is told nothing of kernels
        visible, alpha = _visible(context, n_queries, n_keys), row_alpha(context)
        return attention_of_few(query_BHQE, key_BHKE, value_BHKE, alpha, power, visible, scale)
    if _suits_native(query_BHQE, n_keys, dropout, power):
        _announce("attention: C++ kernels")
        visible, alpha = _visible(context, n_queries, n_keys), row_alpha(context)
        return attention(query_BHQE, key_BHKE, value_BHKE, alpha, power, visible, dropout, scale)
    if power is Power.EXP:
        return _torch_softmax(query_BHQE, key_BHKE, value_BHKE, context, dropout)
    if query_BHQE.device.type == "cpu" and not is_interpreted():
        return None
    alpha = row_alpha(context)
    per_query = alpha is not None and alpha.numel() > alpha.shape[1]
    mask = context.mask
    reason = refusal(query_BHQE, key_BHKE, value_BHKE, mask.pattern is not None, per_query)
    if reason is not None:
        _announce(f"attention: weights are formed, as {reason}")
        return None
    _announce("attention: Triton kernels")
    return triton_entmax_attention(
        query_BHQE, key_BHKE, value_BHKE, ALPHAS[power] if alpha is None else alpha.flatten(),
        mask.key_lengths_B, mask.causal, mask.query_offset, dropout,
    )  # fmt: skip


def _suits_native(query_BHQE: Tensor, n_keys: int, dropout: float, power: Power) -> bool:
    if not native.takes(query_BHQE):
        if query_BHQE.device.type == "cpu" and query_BHQE.dtype is torch.float32:
            _announce(f"attention: torch alone, no C++ kernels ({native.reason_without()})")
        return False
    if dropout > 0 or query_BHQE.dtype is torch.bfloat16:
        return True  # torch's softmax is slow in both cases too
    return power is not Power.EXP and n_keys >= KEYS_WORTH_IT


def _visible(context: ScoreContext, n_queries: int, n_keys: int) -> Visible:
    mask = context.mask
    dense_BHQK = None
    if mask.pattern is not None:
        dense_BHQK = mask.dense(n_queries, n_keys, context.queries_BHQE.device)
    return Visible(dense_BHQK, mask.key_lengths_B, mask.causal, mask.query_offset)


def _torch_softmax(
    query_BHQE: Tensor, key_BHKE: Tensor, value_BHKE: Tensor, context: ScoreContext, dropout: float
) -> Tensor:
    mask = context.mask
    if mask.is_plain_causal and query_BHQE.shape[2] == key_BHKE.shape[2]:
        return scaled_dot_product_attention(
            query_BHQE, key_BHKE, value_BHKE, dropout_p=dropout, is_causal=True
        )
    dense = mask.dense(query_BHQE.shape[2], key_BHKE.shape[2], query_BHQE.device)
    return scaled_dot_product_attention(
        query_BHQE, key_BHKE, value_BHKE, attn_mask=dense, dropout_p=dropout
    )


def _announce(line: str) -> None:
    """Say once which kernel is in use; a graph that is being compiled says nothing."""
    if not torch.compiler.is_compiling() and line not in _SAID:
        _SAID.add(line)
        log.info(line)
