"""Block-sparse attention with the maps of the family on a CPU, without saving the weights.

As `cpu.py`, for the slots of a `BlockLayout`: scores, masks and weights exist for a few blocks of
queries at a time, so that memory grows linearly with the number of positions, and time as N · K.
Matrix products are torch's, rows are solved by the C++ kernels. It is no torch operator, as a
layout is no argument of one: compiled and transformed calls form weights.

Axes: B batch, H heads, N positions, M blocks, L positions of a block, K slots, E head width, C
rows of a chunk.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from headwise.ops.attention.cpu import part_of, steps
from headwise.ops.attention.distances import Distances
from headwise.ops.attention.layout import (
    BlockLayout,
    KeyStates,
    Part,
    in_blocks,
    sliced,
    slots_of_parts,
)
from headwise.ops.draws import Draws, draw_seed
from headwise.ops.family import Power, beta_of, check_alpha
from headwise.ops.maps.cpu import Rows
from headwise.ops.register import raise_second_order
from headwise.ops.visible import EVERYTHING

CHUNK_SCORES = 1 << 20  # scores at a time: larger matrices, fewer calls


@dataclass(frozen=True)
class Settings:
    """Settings of one call.

    Attributes:
        layout: which keys.
        power: the map.
        dropout: rate on the weights.
        scale: of the scores.
        distances: the bias, or None. Its slopes get no gradient.
    """

    layout: BlockLayout
    power: Power
    dropout: float
    scale: float
    distances: Distances | None = None


def sparse_attention(
    query_BHNE: Tensor,
    key_BHNE: Tensor,
    value_BHNE: Tensor,
    alpha: Tensor | None,
    settings: Settings,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Return the context (B, H, N, E): dropout(map(scale · q kᵀ + bias)) v over allowed keys.

    Args:
        query_BHNE, key_BHNE, value_BHNE: float32 or bfloat16, on a CPU, all of one type; values
            may have another width.
        alpha: float32, four axes that broadcast to (B, H, N, 1); only for `Power.ANY`.
        settings: see there.
        generator: from which the seed of dropout is drawn; None: torch's for the CPU.

    Raises:
        ValueError: α is outside of [1, 2].
    """
    check_alpha(alpha)
    seed = int(draw_seed(generator)) if settings.dropout else 0
    arguments = (query_BHNE, key_BHNE, value_BHNE, alpha, settings, seed)
    context: Tensor = _Attention.apply(*arguments)  # type: ignore[no-untyped-call]
    return context


class _Attention(torch.autograd.Function):
    """Saves its arguments, and maximum and threshold of every row."""

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Tensor:
        with torch.autocast("cpu", enabled=False):  # the types are already chosen
            context, threshold = forward(*arguments)
        ctx.save_for_backward(*arguments[:4], threshold)
        ctx.settings = arguments[4:]
        return context

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        with_alpha = ctx.needs_input_grad[3]
        arguments = (grad, *ctx.saved_tensors, *ctx.settings, with_alpha)
        *heads, grad_alpha = _Gradients.apply(*arguments)  # type: ignore[no-untyped-call]
        return *heads, grad_alpha if with_alpha else None, None, None


class _Gradients(torch.autograd.Function):
    """Not differentiable."""

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> tuple[Tensor, ...]:
        with torch.autocast("cpu", enabled=False):
            return backward(*arguments)

    backward = staticmethod(raise_second_order)


def forward(
    query: Tensor, key: Tensor, value: Tensor, alpha: Tensor | None,
    settings: Settings, seed: int,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return the context, and maximum and threshold of every row in blocks (B, H, M, L, 2)."""
    call = _Call(query, alpha, settings)
    keys, values = settings.layout.key_states(key), settings.layout.key_states(value)
    # not a view: users could not modify it in place
    context = query.new_empty(*query.shape[:3], value.shape[3])
    context_BHMLE = call.in_blocks(context)
    threshold_BHML2 = query.new_empty((*context_BHMLE.shape[:4], 2), dtype=torch.float32)
    rows = call.rows(seed, threshold_BHML2)
    (buffer,) = call.buffers(1)
    for chunk in call.chunks():
        scores_BHCK = call.scores(chunk, call.scaled_queries(chunk), keys, buffer)
        rows.restrict(chunk.allowed_BHCK, chunk.first_row)
        rows.forward(scores_BHCK, scores_BHCK, chunk.first_row)
        chunk.combine(scores_BHCK, values, chunk.of_queries(context_BHMLE))
    if context.shape[2] % settings.layout.stride:  # then the blocks are a copy
        context.copy_(call.positions(context_BHMLE))
    return context, threshold_BHML2


def backward(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, alpha: Tensor | None,
    threshold_BHML2: Tensor, settings: Settings, seed: int, with_alpha: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Return the gradients of query, key, value, and α (or empty)."""
    call, layout = _Call(query, alpha, settings), settings.layout
    grad_BHMLE = call.in_blocks(grad)
    keys, values = layout.key_states(key), layout.key_states(value)
    shape = call.query_BHMLE.shape
    grad_q_BHMLE = query.new_empty(shape)
    grad_k, grad_v = (
        KeyStates(*(torch.zeros(x.shape, dtype=torch.float32) for x in states))
        for states in (keys, values)
    )
    grad_alpha = query.new_zeros((*shape[:4], int(with_alpha)), dtype=torch.float32)
    rows = call.rows(seed, threshold_BHML2, grad_alpha)
    buffer, *others = call.buffers(3)
    for chunk in call.chunks():
        queries_BHMLE, of_context = call.scaled_queries(chunk), chunk.of_queries(grad_BHMLE)
        scores_BHCK = call.scores(chunk, queries_BHMLE, keys, buffer)
        grad_w, weights = (part_of(buffer, scores_BHCK.shape) for buffer in others)
        chunk.multiply(of_context, values, grad_w)
        rows.restrict(chunk.allowed_BHCK, chunk.first_row)
        rows.backward(scores_BHCK, grad_w, scores_BHCK, chunk.first_row, weights)
        chunk.combine(scores_BHCK, keys, chunk.of_queries(grad_q_BHMLE))
        chunk.spread(scores_BHCK, queries_BHMLE, grad_k)
        chunk.spread(weights, of_context, grad_v)
    return (
        call.positions(grad_q_BHMLE.mul_(settings.scale)),
        layout.total(grad_k).to(key.dtype),
        layout.total(grad_v).to(value.dtype),
        call.positions(grad_alpha).sum_to_size(alpha.shape)
        if with_alpha and alpha is not None
        else grad_alpha,
    )


@dataclass(frozen=True)
class _Chunk:
    """Some blocks of one head, or whole heads of one sentence, or whole sentences.

    Attributes:
        batch, heads, blocks: which.
        parts: of the slots of these blocks.
        allowed_BHCK: which slots are allowed.
        first_row: index of the first query among all B · H · M · L.
    """

    batch: slice
    heads: slice
    blocks: range
    parts: list[Part]
    allowed_BHCK: Tensor
    first_row: int

    def of_queries(self, states_BHMLE: Tensor) -> Tensor:
        """Return the chunk's part of states of queries."""
        blocks = slice(self.blocks.start, self.blocks.stop)
        return states_BHMLE[self.batch, self.heads, blocks]

    def multiply(self, query_BHMLE: Tensor, keys: KeyStates, out_BHCK: Tensor) -> None:
        """Write the products of queries with the keys in their slots."""
        for part, out, of_keys in self._parts(out_BHCK, keys):
            # a transposed view of contiguous keys: products of others copy them transposed
            _put(out, part.grouped(query_BHMLE), of_keys.contiguous().mT)

    def combine(self, weights_BHCK: Tensor, values: KeyStates, out_BHMLE: Tensor) -> None:
        """Write the weighted sums of the values in the slots of each query.

        The sums of the parts are added in float32.
        """
        is_half, sums_BHMLE = out_BHMLE.dtype is not torch.float32, out_BHMLE
        if is_half:
            sums_BHMLE = torch.empty(out_BHMLE.shape, dtype=torch.float32)
        for number, (part, weights, of_keys) in enumerate(self._parts(weights_BHCK, values)):
            _put(part.grouped(sums_BHMLE), weights, of_keys, adds=number > 0)
        if is_half:
            out_BHMLE.copy_(sums_BHMLE)

    def spread(self, weights_BHCK: Tensor, query_BHMLE: Tensor, sums: KeyStates) -> None:
        """Add to the sums of each key the weighted queries that have it in a slot."""
        for part, weights, of_keys in self._parts(weights_BHCK, sums):
            _put(of_keys, weights.mT, part.grouped(query_BHMLE), adds=True)

    def _parts(self, slots_BHCK: Tensor, keys: KeyStates) -> Iterator[tuple[Part, Tensor, Tensor]]:
        """Yield parts, their slots (B, H, G, R, K) and states of keys (B, H, G, K, E), as views."""
        keys = keys.sliced(self.batch, self.heads)
        n_batch, n_heads, _, n_slots = slots_BHCK.shape
        slots_BHMLK = slots_BHCK.view(n_batch, n_heads, len(self.blocks), -1, n_slots)
        slots = slots_of_parts(self.parts, slots_BHMLK)
        for part, of_part in zip(self.parts, slots, strict=True):
            yield part, of_part, part.keys(keys)


def _put(out: Tensor, left: Tensor, right: Tensor, adds: bool = False) -> None:
    """Write the product of matrices to `out`, a view, or add it to its content."""
    if out.shape[:3].numel() == 1 and out.dtype is left.dtype:  # one matrix: no temporary product
        out, left, right = out[0, 0, 0], left[0, 0, 0], right[0, 0, 0]
        torch.addmm(out, left, right, beta=int(adds), out=out)
    else:
        (out.add_ if adds else out.copy_)(left @ right)


class _Call:
    """One call: settings, and the queries in blocks."""

    def __init__(self, query: Tensor, alpha: Tensor | None, settings: Settings) -> None:
        self.settings, self.layout = settings, settings.layout
        self.query_BHMLE = self.in_blocks(query)
        beta = beta_of(alpha)
        if beta is not None:
            beta = self.in_blocks(beta.expand(*query.shape[:3], 1))
        self.beta_BHML1 = beta

    def rows(self, seed: int, threshold: Tensor, grad_alpha: Tensor | None = None) -> Rows:
        """Return the rows of all blocks (B, H, M · L); numbers per row are in blocks too."""
        n_batch, n_heads, n_blocks, stride, _ = self.query_BHMLE.shape
        shape = (n_batch, n_heads, n_blocks * stride, self.layout.n_slots)
        draws = Draws(seed, self.settings.dropout) if self.settings.dropout else None
        beta = None if self.beta_BHML1 is None else self.beta_BHML1.flatten(2, 3)
        threshold = threshold.flatten(2, 3)
        grad_alpha = None if grad_alpha is None else grad_alpha.flatten(2, 3)
        return Rows(shape, beta, self.settings.power, EVERYTHING, draws, threshold, grad_alpha)

    def in_blocks(self, states_BHNE: Tensor) -> Tensor:
        """Return states in blocks (B, H, M, L, E)."""
        return in_blocks(states_BHNE, self.layout.stride)

    def positions(self, blocks_BHMLE: Tensor) -> Tensor:
        """Return states of blocks as those of positions (B, H, N, E)."""
        return blocks_BHMLE.flatten(2, 3)[:, :, : self.layout.n_positions]

    def chunks(self) -> Iterator[_Chunk]:
        """Yield chunks of at most `CHUNK_SCORES` scores, or of one block."""
        n_batch, n_heads, n_blocks, stride, _ = self.query_BHMLE.shape
        step, of_head = self.step, self.step * self.block_scores  # if a chunk has all blocks
        step_h = 1 if step < n_blocks else max(1, min(n_heads, CHUNK_SCORES // of_head))
        step_b = 1 if step_h < n_heads else max(1, CHUNK_SCORES // (of_head * n_heads))
        for batch in steps(n_batch, step_b):
            for few in steps(n_blocks, step):
                blocks = range(few.start, few.stop)
                parts, allowed_BHCK = self.layout.parts(blocks), self.layout.allowed(blocks, batch)
                for heads in steps(n_heads, step_h):
                    some_BHCK = sliced(allowed_BHCK, slice(None), heads)
                    head = batch.start * n_heads + heads.start
                    first_row = (head * n_blocks + blocks.start) * stride
                    yield _Chunk(batch, heads, blocks, parts, some_BHCK, first_row)

    @property
    def step(self) -> int:
        """The number of blocks of a chunk: of all heads, if it is the number of all blocks."""
        return max(1, min(self.layout.n_blocks, CHUNK_SCORES // self.block_scores))

    @property
    def block_scores(self) -> int:
        """The number of scores of the last block of a head, which has most slots."""
        return self.layout.stride * self.layout.n_slots

    def buffers(self, n: int) -> list[Tensor]:
        """Return buffers for the slots of a chunk."""
        n_scores = self.step * self.block_scores
        n_scores = max(
            n_scores, min(CHUNK_SCORES, self.query_BHMLE[..., 0].numel() * self.layout.n_slots)
        )
        return [self.query_BHMLE.new_empty(n_scores) for _ in range(n)]

    def scaled_queries(self, chunk: _Chunk) -> Tensor:
        """Return the chunk's queries, scaled: cheaper than scaling the scores."""
        return chunk.of_queries(self.query_BHMLE) * self.settings.scale

    def scores(self, chunk: _Chunk, query_BHMLE: Tensor, keys: KeyStates, buffer: Tensor) -> Tensor:
        """Write the scores of a chunk to `buffer`, and return them as (B, H, C, K)."""
        n_rows, n_slots = chunk.allowed_BHCK.shape[2:]
        scores_BHCK = part_of(buffer, (*query_BHMLE.shape[:2], n_rows, n_slots))
        chunk.multiply(query_BHMLE, keys, scores_BHCK)
        distances = self.settings.distances
        if distances is not None:
            of_heads = Distances(distances.slopes_H[chunk.heads], distances.n_prefix)
            first = chunk.blocks.start * self.layout.stride
            positions_BHCK = sliced(
                self.layout.key_positions(chunk.blocks), chunk.batch, chunk.heads
            )
            scores_BHCK.copy_(of_heads.biased(scores_BHCK, first, positions_BHCK))
        return scores_BHCK
