"""Attention with softmax or α-entmax on CPU, without saving the weights.

Scores, weights and their gradients are computed for a few rows at a time: memory grows with the
number of queries and keys, not with their product. Saved for the backward pass are two numbers per
row, the maximum and the threshold, from which the weights are recomputed without a search. Dropout
uses a counter-based generator, so no mask is saved either.

The operator is `headwise::attention`. Axes: B batch, H heads, Q and K numbers of queries and
keys, E head width, N heads of all sentences (B · H), G those of keys.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from headwise.ops.attention.distances import Distances, slopes_of
from headwise.ops.attention.widths import group_size
from headwise.ops.cpp.call import DTYPES
from headwise.ops.draws import Draws, draw_seed
from headwise.ops.family import Power, beta_of, check_alpha
from headwise.ops.maps.cpu import Rows
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
            may have another width. Keys and values may have fewer heads, which divide H:
            consecutive heads of queries share them.
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
        query_BHQE, key_BHKE, value_BHKE, alpha, visible.mask, visible.key_lengths_B, seed,
        slopes, int(power), visible.causal, visible.query_offset, dropout, scale, n_prefix,
    )[0]  # fmt: skip
    return context


class _Chunk(NamedTuple):
    """Whole heads, or some queries of one head.

    Attributes:
        heads: of B · H.
        key_heads: the heads of keys that they share.
        queries: of each head.
        keys: those that any of the queries may attend to.
        first_row: index of the first query among all B · H · Q.
    """

    heads: slice
    key_heads: slice
    queries: slice
    keys: slice
    first_row: int


class _Call:
    """One call: its rows, and the scores of some of them at a time.

    Args:
        threshold, grad_alpha: see `Rows`.
        query: this and the rest as for the operator.
    """

    def __init__(
        self, threshold: Tensor, grad_alpha: Tensor | None, query: Tensor, key: Tensor,
        alpha: Tensor | None, mask: Tensor | None, key_lengths: Tensor | None,
        seed: Tensor | None, slopes: Tensor | None,
        power: int, causal: bool, query_offset: int, dropout: float, scale: float, n_prefix: int,
    ) -> None:  # fmt: skip
        n_batch, n_heads, n_queries, _ = query.shape
        self.shape = (n_batch, n_heads, n_queries, key.shape[2])
        self.group = group_size(query, key)
        self.query_NQE, self.key_GKE = query.flatten(0, 1), key.flatten(0, 1)
        self.scale = scale
        self.slopes, self.n_prefix = slopes, n_prefix
        self.visible = Visible(key_lengths, causal, query_offset=query_offset, mask=mask)
        draws = None if seed is None else Draws(int(seed), dropout)
        self.rows = Rows(
            self.shape, beta_of(alpha), Power(power), self.visible, draws, threshold, grad_alpha
        )

    @property
    def has_whole_heads(self) -> bool:
        """Whether no head is divided into several chunks."""
        return self.shape[2] * self.shape[3] <= CHUNK_SCORES

    @property
    def has_whole_groups(self) -> bool:
        """Whether no heads that share keys are divided into several chunks."""
        return self.group * self.shape[2] * self.shape[3] <= CHUNK_SCORES

    def chunks(self) -> Iterator[_Chunk]:
        """Yield chunks of at most `CHUNK_SCORES` scores, or of one query."""
        n_batch, n_heads, n_queries, n_keys = self.shape
        step_n, step_q = 1, min(max(1, n_queries), max(1, CHUNK_SCORES // max(1, n_keys)))
        if self.has_whole_groups:
            step_n = CHUNK_SCORES // max(1, n_queries * n_keys) // self.group * self.group
        lengths = [n_keys] * n_batch
        if self.visible.key_lengths_B is not None:
            lengths = self.visible.key_lengths_B.expand(n_batch).tolist()
        for heads in steps(n_batch * n_heads, step_n):
            sentences = lengths[heads.start // n_heads : (heads.stop - 1) // n_heads + 1]
            longest = min(n_keys, max(1, *sentences))
            key_heads = slice(heads.start // self.group, (heads.stop - 1) // self.group + 1)
            for queries in steps(n_queries, step_q):
                stop = longest
                if self.visible.causal:
                    stop = min(stop, self.visible.query_offset + queries.stop)
                first_row = heads.start * n_queries + queries.start
                yield _Chunk(heads, key_heads, queries, slice(0, stop), first_row)

    def buffers(self, n: int) -> list[Tensor]:
        """Return buffers for the scores of a chunk."""
        n_scores = min(math.prod(self.shape), max(CHUNK_SCORES, self.shape[3]))
        return [self.query_NQE.new_empty(n_scores) for _ in range(n)]

    def scores(self, chunk: _Chunk, buffer: Tensor) -> Tensor:
        """Write the scores of a chunk to `buffer`, and return them as (N, Q, K)."""
        query_NQE = self.query_NQE[chunk.heads, chunk.queries]
        keys_GKE = self.key_GKE[chunk.key_heads, chunk.keys]
        scores_NQK = part_of(buffer, (*query_NQE.shape[:2], keys_GKE.shape[1]))
        if self.slopes is not None:
            slopes_N = self.slopes.repeat(self.shape[0])[chunk.heads]
            zeros = slopes_N.new_zeros(1, 1, *scores_NQK.shape[1:])
            first = self.visible.query_offset + chunk.queries.start
            scores_NQK.copy_(Distances(slopes_N, self.n_prefix).biased(zeros, first)[0])
        scores, queries = by_key_head(chunk, scores_NQK, query_NQE)
        _matmul_to(scores, queries, keys_GKE.mT, self.scale, self.slopes is not None)
        return scores_NQK


def steps(n: int, step: int) -> Iterator[slice]:
    """Yield slices of `step`, the last of them maybe shorter, up to `n`."""
    for first in range(0, n, step):
        yield slice(first, min(first + step, n))


def by_key_head(chunk: _Chunk, *states_NQE: Tensor) -> list[Tensor]:
    """Return states of the queries of a chunk as (key heads, queries of all that share one, ·)."""
    n_key_heads = chunk.key_heads.stop - chunk.key_heads.start
    shape = (n_key_heads, (chunk.heads.stop - chunk.heads.start) // n_key_heads)
    return [x.reshape(*shape, *x.shape[1:]).flatten(1, 2) for x in states_NQE]


def part_of(buffer: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Return the start of a buffer as a tensor."""
    return buffer[: math.prod(shape)].view(shape)


def forward(
    query: Tensor, key: Tensor, value: Tensor, alpha: Tensor | None, *settings: Any
) -> tuple[Tensor, Tensor]:
    """Return the context, and maximum and threshold of every row (B, H, Q, 2)."""
    check_alpha(alpha)
    # not a view: users could not modify it in place
    context, threshold = _fake(query, key, value)
    call = _Call(threshold, None, query, key, alpha, *settings)
    context_NQE, value_GKE = context.flatten(0, 1), value.flatten(0, 1)
    (buffer,) = call.buffers(1)
    for chunk in call.chunks():
        scores_NQK = call.scores(chunk, buffer)
        call.rows.forward(scores_NQK, scores_NQK, chunk.first_row)
        out_NQE = context_NQE[chunk.heads, chunk.queries]
        weights, out = by_key_head(chunk, scores_NQK, out_NQE)
        torch.bmm(weights, value_GKE[chunk.key_heads, chunk.keys], out=out)
    return context, threshold


def backward(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor,
    alpha: Tensor | None, mask: Tensor | None, key_lengths: Tensor | None, seed: Tensor | None,
    slopes: Tensor | None, threshold: Tensor, *numbers_and_with_alpha: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Return the gradients of query, key, value, and α (or empty)."""
    *numbers, with_alpha = numbers_and_with_alpha
    shape = (*query.shape[:3], 1) if with_alpha else (0,)
    grad_alpha = query.new_zeros(shape, dtype=torch.float32)
    settings = (mask, key_lengths, seed, slopes, *numbers)
    call = _Call(threshold.contiguous(), grad_alpha, query, key, alpha, *settings)
    value_GKE, grad_NQE = value.flatten(0, 1), grad.flatten(0, 1)
    grad_q_NQE = query.new_empty(call.query_NQE.shape)
    # of keys for each head if a group is in several chunks; these are not summed in half precision
    is_by_head = call.has_whole_heads and not call.has_whole_groups
    dtype, put = (key.dtype, _matmul_to) if call.has_whole_heads else (torch.float32, _matmul_add)
    n = len(call.query_NQE) if is_by_head else len(value_GKE)
    grad_k_NKE = key.new_zeros((n, *call.key_GKE.shape[1:]), dtype=dtype)
    grad_v_NKE = key.new_zeros((n, *value_GKE.shape[1:]), dtype=dtype)
    buffers = call.buffers(3)
    for chunk in call.chunks():
        queries, keys = (chunk.heads, chunk.queries), (chunk.key_heads, chunk.keys)
        scores_NQK = call.scores(chunk, buffers[0])
        grad_w_NQK, weights_NQK = (part_of(buffer, scores_NQK.shape) for buffer in buffers[1:])
        states = scores_NQK, grad_w_NQK, weights_NQK, grad_NQE[queries]
        grad_z, grad_w, weights, grad_of = by_key_head(chunk, *states)
        query_of, grad_q = by_key_head(chunk, call.query_NQE[queries], grad_q_NQE[queries])
        torch.bmm(grad_of, value_GKE[keys].mT, out=grad_w)
        call.rows.backward(scores_NQK, grad_w_NQK, scores_NQK, chunk.first_row, weights_NQK)
        _matmul_to(grad_q, grad_z, call.key_GKE[keys], call.scale)
        out = (chunk.heads if is_by_head else chunk.key_heads, chunk.keys)
        put(grad_v_NKE[out], weights.mT, grad_of, 1.0)
        put(grad_k_NKE[out], grad_z.mT, query_of, call.scale)
    return (
        grad_q_NQE.view(query.shape),
        _summed(grad_k_NKE, key),
        _summed(grad_v_NKE, value),
        grad_alpha if alpha is None or not with_alpha else grad_alpha.sum_to_size(alpha.shape),
    )


def _summed(grad_NKE: Tensor, like_BGKE: Tensor) -> Tensor:
    """Return gradients of heads of queries, or already of keys, as those of heads of keys."""
    n_group = len(grad_NKE) // max(1, like_BGKE.shape[:2].numel())
    if n_group > 1:
        grad_GHKE = grad_NKE.view(-1, n_group, *grad_NKE.shape[1:])
        grad_NKE = grad_GHKE.sum(1, dtype=torch.float32)
    return grad_NKE.to(like_BGKE.dtype).view(like_BGKE.shape)


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
    "Tensor query BHQE, Tensor key BGKE, Tensor value BGKF, Tensor? alpha *BHQ1 float32, "
    "Tensor? mask *BHQK bool, Tensor? key_lengths *B int64 int32, Tensor? seed - int64, "
    "Tensor? slopes H float32",
    "int power, bool causal, int query_offset, float dropout, float scale, int n_prefix",
    "BHQF",
    "Tensor threshold BHQ2 float32",
    4,
    forward,
    _fake,
    backward,
    _fake_backward,
    DTYPES,
)
