"""Attention of few queries by the C++ kernels, as in a step of decoding.

For so few rows, the overhead of matmuls exceeds the computation. Keys and values are read
in place, from a cache with spare capacity. Not differentiable.

The operator is `headwise::attention_of_few`. Axes: B batch, H heads, Q and K numbers of queries
and keys, E head width.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import Tensor

from headwise.ops.attention.distances import Distances, slopes_of
from headwise.ops.attention.widths import group_size
from headwise.ops.cpp import build, call
from headwise.ops.cpp.call import DTYPES, FLOAT, address, structure
from headwise.ops.family import Power, beta_of, check_alpha
from headwise.ops.maps.cpu import Rows
from headwise.ops.register import register
from headwise.ops.visible import Visible

MAX_QUERIES = 10  # per head; for more, matmuls are faster


AttendProblem: Any = structure("AttendProblem")


def supports(query_BHQE: Tensor, key_BHKE: Tensor, value_BHKE: Tensor) -> bool:
    """Return whether `attention_of_few` supports the tensors and is faster."""
    # a compiled graph would be specialised for the number of queries
    if torch.is_grad_enabled() or torch.compiler.is_compiling():
        return False
    if not (0 < query_BHQE.shape[2] <= MAX_QUERIES and call.supports(query_BHQE)):
        return False
    return _fit(query_BHQE, key_BHKE, value_BHKE)


def _fit(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """Return whether the tensors have one dtype and matching shapes."""
    tensors = (query, key, value)
    n_batch, n_heads, _, width = query.shape
    n_key_heads, n_keys = key.shape[1:3]
    fits = key.shape == (n_batch, n_key_heads, n_keys, width) and key.shape[:3] == value.shape[:3]
    fits = fits and n_key_heads > 0 and n_heads % n_key_heads == 0
    is_one_dtype = all(values.dtype is query.dtype for values in tensors)
    is_readable = all(values.stride(3) == 1 for values in tensors)
    return fits and is_one_dtype and is_readable and key.shape[2] > 0


def attention_of_few(
    query_BHQE: Tensor,
    key_BHKE: Tensor,
    value_BHKE: Tensor,
    alpha: Tensor | None,
    power: Power,
    visible: Visible,
    scale: float,
    distances: Distances | None = None,
) -> Tensor:
    """Return the context (B, H, Q, E): map(scale · q kᵀ + bias) v, with float32 scores.

    Args:
        query_BHQE, key_BHKE, value_BHKE: of one dtype, supported by `supports`; values may have
            another width. Keys and values may have fewer heads: consecutive heads share them.
        alpha: float32, four axes that broadcast to (B, H, Q, 1); only for `Power.ANY`.
        power: the map.
        visible: which keys a query may attend to; a mask has four axes.
        scale: of the scores.
        distances: the bias, or None.

    Raises:
        ValueError: α is outside [1, 2], or shapes do not match.
        TypeError: dtypes do not match.
    """
    slopes, n_prefix = slopes_of(distances)
    context_BQHE: Tensor = _OPERATOR(
        query_BHQE, key_BHKE, value_BHKE, alpha, visible.mask, visible.key_lengths_B, slopes,
        int(power), visible.causal, visible.query_offset, scale, n_prefix,
    )  # fmt: skip
    return context_BQHE.transpose(1, 2)


def attend(
    query: Tensor, key: Tensor, value: Tensor, alpha: Tensor | None, mask: Tensor | None,
    key_lengths: Tensor | None, slopes: Tensor | None,
    power: int, causal: bool, query_offset: int, scale: float, n_prefix: int,
) -> Tensor:  # fmt: skip
    """Compute the operator; return the context (B, Q, H, E)."""
    query, key, value = (x if x.stride(3) == 1 else x.contiguous() for x in (query, key, value))
    check_alpha(alpha)
    visible = Visible(key_lengths, causal, query_offset=query_offset, mask=mask)
    settings = (Power(power), visible, scale, slopes, n_prefix)
    return context_of(query, key, value, beta_of(alpha), *settings)


def context_of(
    query: Tensor, key: Tensor, value: Tensor, beta: Tensor | None, power: Power, visible: Visible,
    scale: float, slopes: Tensor | None = None, n_prefix: int = 0,
) -> Tensor:  # fmt: skip
    """Return the context (B, Q, H, E) for arguments as the kernel reads them; β is α - 1."""
    n_batch, n_heads, n_queries, width = query.shape
    scores = query.new_empty((n_batch, n_heads, n_queries, key.shape[2]), dtype=torch.float32)
    # zeros for a row without keys
    context = query.new_zeros((n_batch, n_queries, n_heads, value.shape[3]))
    rows = Rows(scores.shape, beta, power, visible)
    rows.set_rows(scores, scores)
    problem = AttendProblem(
        rows=rows.struct,
        query=address(query, DTYPES, is_strided=True),
        key=address(key, (query.dtype,), is_strided=True),
        value=address(value, (query.dtype,), is_strided=True),
        context=address(context, (query.dtype,)),
        width=width,
        value_width=value.shape[3],
        group=group_size(query, key),
        scale=scale,
        is_half=query.dtype is torch.bfloat16,
        n_prefix=n_prefix,
    )
    if slopes is not None:
        slopes = slopes.contiguous()  # a name that lives until the call
        problem.slopes = address(slopes, FLOAT, (n_heads,))
    problem.query_stride[:] = query.stride()[:3]
    problem.key_stride[:] = key.stride()[:3]
    problem.value_stride[:] = value.stride()[:3]
    build.functions().headwise_attend(ctypes.byref(problem))
    return context


def _fake(query: Tensor, key: Tensor, value: Tensor, *rest: Any) -> Tensor:
    n_batch, n_heads, n_queries, _ = query.shape
    return query.new_empty((n_batch, n_queries, n_heads, value.shape[3]))


_OPERATOR = register(
    "attention_of_few(Tensor query BHQE, Tensor key BGKE, Tensor value BGKF, "
    "Tensor? alpha *BHQ1 float32, Tensor? mask *BHQK bool, Tensor? key_lengths *B int64 int32, "
    "Tensor? slopes H float32, int power, bool causal, int query_offset, float scale, int n_prefix)"
    " -> Tensor",
    attend,
    _fake,
    DTYPES,
)
