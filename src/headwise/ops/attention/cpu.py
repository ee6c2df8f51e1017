"""Attention with softmax or α-entmax on CPU, without saving the weights.

Scores, weights and their gradients are computed for a few rows at a time: memory grows with the
number of queries and keys, not with their product. Saved for the backward pass are two numbers per
row, the maximum and the threshold, from which the weights are recomputed without a search. Dropout
uses a counter-based generator, so no mask is saved either.

The operator is `headwise::attention`. Axes: B batch, H heads, Q and K numbers of queries and
keys, E head width, N heads of a chunk.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from headwise.ops.attention.distances import Distances, slopes_of
from headwise.ops.cpp.call import DTYPES, readable
from headwise.ops.draws import Draws, draw_seed
from headwise.ops.family import Power, beta_of, check_alpha
from headwise.ops.maps import cpu as cpu_maps
from headwise.ops.register import register_pair
from headwise.ops.visible import Visible

CHUNK_SCORES = 1 << 19  # scores at a time: amortises calls, fits into the caches


def attention(
    query_BHQE: Tensor,
    key_BHKE: Tensor,
    value_BHKE: Tensor,
    alpha: Tensor | None,
    power: Power,
    visible: Visible,
    dropout: float,
    scale: float,
    distances: Distances | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Return the context (B, H, Q, E): dropout(map(scale · q kᵀ + bias)) v.

    Args:
        query_BHQE, key_BHKE, value_BHKE: float32 or bfloat16, on CPU, all of one dtype; values
            may have another width.
        alpha: float32, four axes that broadcast to (B, H, Q, 1); only for `Power.ANY`.
        power: the map.
        visible: which keys a query may attend to; a mask has four axes.
        dropout: rate on the weights.
        scale: of the scores.
        distances: the bias, or None. Its slopes get no gradient.
        generator: from which the seed of dropout is drawn; None: torch's for the CPU.

    Raises:
        ValueError: α is outside [1, 2].
        TypeError: a tensor has another dtype.
    """
    # the device is meta in estimates
    seed = draw_seed(generator).to(query_BHQE.device) if dropout else None
    slopes, n_prefix = slopes_of(distances)
    context: Tensor = _OPERATOR(
        query_BHQE, key_BHKE, value_BHKE, alpha, visible.mask, visible.lengths_B, seed,
        slopes, int(power), visible.is_causal, visible.query_offset, dropout, scale, n_prefix,
    )[0]  # fmt: skip
    return context


@dataclass(frozen=True)
class _Chunk:
    """Some queries of one head, or whole heads of one sentence, or whole sentences."""

    batch: slice
    heads: slice
    queries: slice
    flat: slice  # of B · H
    n_keys: int  # keys that any of the queries may attend to
    visible: Visible
    first_row: int

    def part(self, values: Tensor) -> Tensor:
        """Return the chunk's part of values that broadcast against (B, H, Q, ·)."""
        return _part(values, self.batch, self.heads, self.queries)

    def draws(self, seed: Tensor | None, rate: float) -> Draws | None:
        return None if seed is None else Draws(int(seed), rate, self.first_row)


def _part(values: Tensor, *axes: slice) -> Tensor:
    """Slice the first axes, except for those of size 1, which broadcast."""
    for axis, part in enumerate(axes):
        if values.shape[axis] > 1:
            values = values.narrow(axis, part.start, part.stop - part.start)
    return values


def _chunks(shape: tuple[int, int, int, int], visible: Visible) -> Iterator[_Chunk]:
    n_batch, n_heads, n_queries, n_keys = shape
    head_scores = max(1, n_queries * n_keys)
    step_q = _queries_at_once(shape)
    step_h = 1 if step_q < n_queries else min(n_heads, max(1, CHUNK_SCORES // head_scores))
    step_b = 1 if step_h < n_heads else max(1, CHUNK_SCORES // (head_scores * n_heads))
    for batch in steps(n_batch, step_b):
        longest, lengths_B = n_keys, None
        if visible.lengths_B is not None:
            lengths_B = visible.lengths_B[batch]
            longest = min(n_keys, max(1, int(lengths_B.max())))
        for heads in steps(n_heads, step_h):
            flat = slice(
                batch.start * n_heads + heads.start, (batch.stop - 1) * n_heads + heads.stop
            )
            for queries in steps(n_queries, step_q):
                n_visible = longest
                if visible.is_causal:
                    n_visible = min(n_visible, visible.query_offset + queries.stop)
                mask = visible.mask
                if mask is not None:
                    mask = _part(mask, batch, heads, queries, slice(0, n_visible))
                offset = visible.query_offset + queries.start
                chunk_visible = Visible(mask, lengths_B, visible.is_causal, offset)
                first_row = flat.start * n_queries + queries.start
                yield _Chunk(batch, heads, queries, flat, n_visible, chunk_visible, first_row)


def _queries_at_once(shape: tuple[int, int, int, int]) -> int:
    """Return the number of queries per head and chunk for scores (B, H, Q, K)."""
    _, _, n_queries, n_keys = shape
    if n_queries * n_keys <= CHUNK_SCORES:
        return max(1, n_queries)
    return max(1, CHUNK_SCORES // n_keys)


def steps(n: int, step: int) -> Iterator[slice]:
    """Yield slices of `step`, the last of them maybe shorter, up to `n`."""
    for first in range(0, n, step):
        yield slice(first, min(first + step, n))


def _by_head(values_BHNE: Tensor) -> Tensor:
    return values_BHNE.flatten(0, 1)


def as_visible(
    mask: Tensor | None, lengths: Tensor | None, n_batch: int, is_causal: bool, offset: int
) -> Visible:
    """Return mask and lengths in the form that the kernels read."""
    if mask is not None:
        mask = readable(mask)
    if lengths is not None:
        lengths = lengths.to(torch.int64).expand(n_batch).contiguous()
    return Visible(mask, lengths, is_causal, offset)


def _shape(query: Tensor, key: Tensor) -> tuple[int, int, int, int]:
    n_batch, n_heads, n_queries, _ = query.shape
    return n_batch, n_heads, n_queries, key.shape[2]


def forward(
    query: Tensor, key: Tensor, value: Tensor, alpha: Tensor | None, mask: Tensor | None,
    lengths: Tensor | None, seed: Tensor | None, slopes: Tensor | None,
    power: int, is_causal: bool, offset: int, dropout: float, scale: float, n_prefix: int,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return the context, and maximum and threshold of every row (B, H, Q, 2)."""
    shape = _shape(query, key)
    check_alpha(alpha)
    beta = beta_of(alpha)
    query_NQE, key_NKE, value_NKE = (_by_head(values) for values in (query, key, value))
    threshold = query.new_empty((*shape[:3], 2), dtype=torch.float32)
    # not a view: users could not modify it in place
    context = query.new_empty(*query.shape[:3], value.shape[3])
    context_NQE = _by_head(context)
    (buffer,) = _buffers(shape, query, 1)
    for chunk in _chunks(shape, as_visible(mask, lengths, shape[0], is_causal, offset)):
        scores = _scores(query_NQE, key_NKE, chunk, scale, buffer, slopes, n_prefix)
        cpu_maps.forward(
            scores, None if beta is None else chunk.part(beta), Power(power), chunk.visible, scores,
            chunk.part(threshold), chunk.draws(seed, dropout),
        )  # fmt: skip
        torch.bmm(
            scores.flatten(0, 1), value_NKE[chunk.flat, : chunk.n_keys],
            out=context_NQE[chunk.flat, chunk.queries],
        )  # fmt: skip
    return context, threshold


def _buffers(shape: tuple[int, int, int, int], like: Tensor, n: int) -> list[Tensor]:
    n_scores = min(shape[0] * shape[1] * shape[2] * shape[3], max(CHUNK_SCORES, shape[3]))
    return [like.new_empty(n_scores) for _ in range(n)]


def _scores(
    query_NQE: Tensor, key_NKE: Tensor, chunk: _Chunk, scale: float, buffer: Tensor,
    slopes: Tensor | None, n_prefix: int,
) -> Tensor:  # fmt: skip
    """Write the scores of a chunk to `buffer`, and return them as (B, H, Q, K)."""
    chunk_NQE = query_NQE[chunk.flat, chunk.queries]
    shape = (len(chunk_NQE), chunk_NQE.shape[1], chunk.n_keys)
    scores_NQK = buffer[: shape[0] * shape[1] * shape[2]].view(shape)
    keys_NEK = key_NKE[chunk.flat, : chunk.n_keys].transpose(1, 2)
    n_batch = chunk.batch.stop - chunk.batch.start
    scores_BHQK = scores_NQK.view(n_batch, shape[0] // n_batch, *shape[1:])
    if slopes is not None:
        distances = Distances(slopes[chunk.heads], n_prefix)
        zeros = slopes.new_zeros(1, 1, *shape[1:])
        scores_BHQK.copy_(distances.biased(zeros, chunk.visible.query_offset))
    _matmul_to(scores_NQK, chunk_NQE, keys_NEK, scale, slopes is not None)
    return scores_BHQK


def _matmul_to(
    out: Tensor, left: Tensor, right: Tensor, scale: float, accumulate: bool = False
) -> None:
    """Write the scaled matmul to `out`, or add it to `out`."""
    if not (scale or accumulate):  # in bfloat16 oneDNN leaves `out` unwritten with both factors 0
        out.zero_()
        return
    torch.baddbmm(out, left, right, beta=int(accumulate), alpha=scale, out=out)


def _matmul_add(total: Tensor, left: Tensor, right: Tensor, scale: float) -> None:
    """Add the scaled matmul, computed in the dtype of its operands."""
    with torch.autocast("cpu", enabled=False):  # the dtypes are already chosen
        total.add_(left @ right, alpha=scale)


def backward(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor,
    alpha: Tensor | None, mask: Tensor | None, lengths: Tensor | None, seed: Tensor | None,
    slopes: Tensor | None, threshold: Tensor, power: int, is_causal: bool, offset: int,
    dropout: float, scale: float, n_prefix: int, with_alpha: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Return the gradients of query, key, value, and α (or empty)."""
    shape = _shape(query, key)
    beta, threshold = beta_of(alpha), threshold.contiguous()
    query_NQE, key_NKE, value_NKE, grad_NQE = map(_by_head, (query, key, value, grad))
    grad_q_NQE = query_NQE.new_empty(query_NQE.shape)
    has_one_chunk = _queries_at_once(shape) >= shape[2]  # per head
    dtype = key.dtype if has_one_chunk else torch.float32  # chunks are not summed in half precision
    grad_k_NKE = key_NKE.new_zeros(key_NKE.shape, dtype=dtype)
    grad_v_NKE = value_NKE.new_zeros(value_NKE.shape, dtype=dtype)
    grad_alpha = query.new_zeros((*shape[:3], 1) if with_alpha else 0, dtype=torch.float32)
    buffer, *others = _buffers(shape, query, 3)
    for chunk in _chunks(shape, as_visible(mask, lengths, shape[0], is_causal, offset)):
        scores = _scores(query_NQE, key_NKE, chunk, scale, buffer, slopes, n_prefix)
        chunk_NQE = grad_NQE[chunk.flat, chunk.queries]
        grad_w, weights = (part[: scores.numel()].view(scores.shape) for part in others)
        values_NEK = value_NKE[chunk.flat, : chunk.n_keys].transpose(1, 2)
        torch.bmm(chunk_NQE, values_NEK, out=grad_w.flatten(0, 1))
        chunk_beta = None if beta is None else chunk.part(beta)
        rows = cpu_maps.backward_from_scores(
            scores, chunk.part(threshold), grad_w, weights, chunk_beta, Power(power), chunk.visible,
            chunk.draws(seed, dropout), with_alpha,
        )  # fmt: skip
        if with_alpha:
            chunk.part(grad_alpha).copy_(rows)
        grad_z_NQK, weights_NQK = scores.flatten(0, 1), weights.flatten(0, 1)
        keys = (chunk.flat, slice(0, chunk.n_keys))
        write = _matmul_to if has_one_chunk else _matmul_add
        _matmul_to(grad_q_NQE[chunk.flat, chunk.queries], grad_z_NQK, key_NKE[keys], scale)
        write(grad_v_NKE[keys], weights_NQK.transpose(1, 2), chunk_NQE, 1.0)
        queries_NQE = query_NQE[chunk.flat, chunk.queries]
        write(grad_k_NKE[keys], grad_z_NQK.transpose(1, 2), queries_NQE, scale)
    return (
        grad_q_NQE.view(query.shape),
        grad_k_NKE.to(key.dtype).view(key.shape),
        grad_v_NKE.to(value.dtype).view(value.shape),
        grad_alpha if alpha is None or not with_alpha else grad_alpha.sum_to_size(alpha.shape),
    )


def _fake(query: Tensor, key: Tensor, value: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    context = query.new_empty(*query.shape[:3], value.shape[3])
    return context, query.new_empty((*query.shape[:3], 2), dtype=torch.float32)


def _fake_backward(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, alpha: Tensor | None, *rest: Any
) -> tuple[Tensor, ...]:
    contiguous = torch.contiguous_format
    heads = (torch.empty_like(x, memory_format=contiguous) for x in (query, key, value))
    shape = alpha.shape if alpha is not None and rest[-1] else 0
    return *heads, query.new_empty(shape, dtype=torch.float32)


_OPERATOR = register_pair(
    "attention",
    "Tensor query BHQE, Tensor key BHKE, Tensor value BHKF, Tensor? alpha *BHQ1 float32, "
    "Tensor? mask *BHQK bool, Tensor? lengths *B int64 int32, Tensor? seed - int64, "
    "Tensor? slopes H float32",
    "int power, bool is_causal, int offset, float dropout, float scale, int n_prefix",
    "BHQF",
    "Tensor threshold BHQ2 float32",
    4,
    forward,
    _fake,
    backward,
    _fake_backward,
    DTYPES,
)
