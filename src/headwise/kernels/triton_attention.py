"""Fused α-entmax attention on a GPU: nothing of the size Q x K is kept, forward or backward.

One family of Triton kernels serves encoder, decoder and cross-attention, with an α of each head,
its gradient, and dropout on the weights. Where the keys are few, the scores of some queries stay
on the chip (`triton_forward`); else they are formed anew in each pass over the
keys (`triton_streaming`), as AdaSplash does (Gonçalves et al. 2025). Kept for the way back are
two numbers a query, the context weighted by p^(2-α) in place of p, and one byte a block of
LIST x LIST scores, so that blocks without a weight are passed over.

Triton is imported at the first call. With TRITON_INTERPRET=1 the kernels run on a CPU, slowly.

Letters: B batch, H heads, Q and K numbers of queries and keys, E head width.
"""

from __future__ import annotations

import torch
from torch import Tensor

from headwise.kernels import triton_operators
from headwise.kernels.problem import POWERS, Distances, Power, slopes_of
from headwise.kernels.triton_device import TYPES, device_refusal

HEAD_DIMS = (8, 128)


def refusal(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    pattern: bool = False,
    alpha_per_query: bool = False,
) -> str | None:
    """Why the kernels cannot take a call, in words for the log; None: they can.

    Reads nothing but shapes, types and devices, and may be asked in every step.

    Args:
        query, key, value: as for `triton_entmax_attention`.
        pattern: keys are restricted by more than padding on the right and causality.
        alpha_per_query: α is not one number a head.
    """
    reason = device_refusal(query.device)
    if reason is not None:
        return reason
    if pattern:
        return "a pattern restricts the keys beyond padding and causality"
    if alpha_per_query:
        return "α depends on the query"
    return _shape_refusal(query, key, value)


def holds_rows(key: Tensor) -> bool:
    """Whether the scores of a query stay on the chip, or are formed anew in each pass."""
    return triton_operators.blocks(key.shape[2], key.shape[3], key.element_size())[0]


def _shape_refusal(query: Tensor, key: Tensor, value: Tensor) -> str | None:
    if query.dtype not in TYPES or not query.dtype == key.dtype == value.dtype:
        return (
            "queries, keys and values must share one type of float16, bfloat16 and float32, got "
            f"{query.dtype}, {key.dtype}, {value.dtype}"
        )
    n_batch, n_heads, _, head_dim = query.shape
    if key.shape != value.shape or key.shape != (n_batch, n_heads, key.shape[2], head_dim):
        return (
            "queries must be (B, H, Q, E), keys and values (B, H, K, E), got "
            f"{tuple(query.shape)}, {tuple(key.shape)}, {tuple(value.shape)}"
        )
    least, most = HEAD_DIMS
    if not least <= head_dim <= most:
        return f"heads must be {least} to {most} wide, got {head_dim}"
    if 0 in query.shape or 0 in key.shape:
        return "there are no queries or no keys"
    return None


def triton_entmax_attention(
    query_BHQE: Tensor,
    key_BHKE: Tensor,
    value_BHKE: Tensor,
    alpha_H: Tensor | float,
    key_lengths_B: Tensor | None = None,
    causal: bool = False,
    query_offset: int = 0,
    dropout: float = 0.0,
    scale: float | None = None,
    distances: Distances | None = None,
) -> Tensor:
    """Context Σ p v with p = α-entmax(scale q·k + bias), without the weights in memory.

    Never waits for the device, and gives the same bits every time. Dropout draws two words a
    query from torch's generator of the device; which weights it drops depends on these and on
    the number of the key alone.

    Args:
        query_BHQE, key_BHKE, value_BHKE: one type of float16, bfloat16 and float32. The last axis
            is read fastest where its stride is 1; any other strides are taken as they are.
        alpha_H: α of every head, (H,) or a scalar, in [1, 2], held to the range in silence; or one
            number, which gets no gradient. The numbers 1.5 and 2 have ways of their own.
        key_lengths_B: real keys of each row of the batch, padding on the right; None: all.
        causal: query i sees the keys up to i + query_offset.
        query_offset: position of the first query.
        dropout: rate on the weights.
        scale: on the scores, above 0; None: 1/sqrt(E).
        distances: the bias; None: there is none. Its slopes get no gradient.

    Returns:
        (B, H, Q, E) in the type of the values, laid out in memory as (B, Q, H, E). Queries without
        a key get zeros, and give zero gradients. Differentiable once in queries, keys, values, α.

    Raises:
        ValueError: what `refusal` says of the tensors; numbers outside of their range.
    """
    reason = refusal(query_BHQE, key_BHKE, value_BHKE)
    if reason is not None:
        raise ValueError(reason)
    if not 0 <= dropout < 1:
        raise ValueError(f"dropout must be in [0, 1), got {dropout}")
    if scale is None:
        scale = query_BHQE.shape[-1] ** -0.5
    if scale <= 0:
        raise ValueError(f"scale must be above 0, got {scale}")
    n_batch, n_heads, n_queries, _ = query_BHQE.shape
    power = Power.ANY
    if isinstance(alpha_H, Tensor):
        alpha_H = alpha_H.float().expand(n_heads).contiguous()
    else:
        if not 1 <= alpha_H <= 2:
            raise ValueError(f"alpha must be in [1, 2], got {alpha_H}")
        if alpha_H > 1:  # these kernels have no way of softmax's own
            power = POWERS.get(alpha_H, Power.ANY)
        alpha_H = torch.full((n_heads,), alpha_H, device=query_BHQE.device)
    if key_lengths_B is not None:
        key_lengths_B = key_lengths_B.expand(n_batch).contiguous()
    row_keys = None
    if dropout:
        row_keys = torch.randint(
            -triton_operators.WORD // 2,
            triton_operators.WORD // 2,
            (2, n_batch, n_heads, n_queries),
            dtype=torch.int32,
            device=query_BHQE.device,
        )
    query, key, value = (
        tensor if tensor.stride(-1) == 1 else tensor.contiguous()
        for tensor in (query_BHQE, key_BHKE, value_BHKE)
    )
    slopes, n_prefix = slopes_of(distances)
    context: Tensor = triton_operators.forward(
        query, key, value, alpha_H, key_lengths_B, row_keys, slopes,
        int(power), causal, query_offset, dropout, scale, n_prefix,
    )[0]  # fmt: skip
    return context
