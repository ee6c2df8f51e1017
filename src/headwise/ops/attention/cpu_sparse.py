"""Block-sparse attention with the maps of the family on a CPU, without saving the weights.

As `cpu.py`, for the slots of a `BlockLayout`: scores, masks and weights exist for a few
blocks of queries at a time, so that memory grows linearly with the number of positions, and time as
N · (L + N / L). Matrix products are torch's, rows are solved by the C++ kernels.

Axes: B batch, H heads, N positions, M blocks, L positions of a block, K slots, E head width, C
rows of a chunk.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from headwise.ops.attention.cpu import part_of, steps
from headwise.ops.attention.distances import Distances
from headwise.ops.attention.layout import BlockLayout, concatenated
from headwise.ops.attention.layout_parts import Part, Product, in_blocks
from headwise.ops.draws import Draws, draw_seed
from headwise.ops.family import Power, beta_of, check_alpha
from headwise.ops.maps.cpu import Rows
from headwise.ops.register import raise_second_order
from headwise.ops.visible import EVERYTHING

CHUNK_SCORES = 1 << 20  # scores at a time: long columns for products, little overhead of calls


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
    call = _Call(query, key, alpha, settings)
    values = call.gathered(call.in_blocks(value))
    # not a view: users could not modify it in place
    context = query.new_empty(*query.shape[:3], value.shape[3])
    context_BHMLE = call.in_blocks(context)
    threshold_BHML2 = query.new_empty((*context_BHMLE.shape[:4], 2), dtype=torch.float32)
    rows = call.rows(seed, threshold_BHML2)
    (buffer,) = call.buffers(1)
    for chunk in call.chunks():
        scores_BHCK = call.scores(chunk, call.scaled_queries(chunk), buffer)
        rows.restrict(chunk.allowed_BHCK, chunk.first_row)
        rows.forward(scores_BHCK, scores_BHCK, chunk.first_row)
        chunk.combine(scores_BHCK, values, chunk.part(context_BHMLE))
    if context.shape[2] % settings.layout.stride:  # then the blocks are a copy
        context.copy_(call.positions(context_BHMLE))
    return context, threshold_BHML2


def backward(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, alpha: Tensor | None,
    threshold_BHML2: Tensor, settings: Settings, seed: int, with_alpha: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Return the gradients of query, key, value, and α (or empty)."""
    call = _Call(query, key, alpha, settings)
    grad_BHMLE, values = call.in_blocks(grad), call.gathered(call.in_blocks(value))
    shape = call.query_BHMLE.shape
    grad_q_BHMLE = query.new_empty(shape)
    grad_k, grad_v = call.sums(call.query_BHMLE), call.sums(grad_BHMLE)
    grad_alpha = query.new_zeros((*shape[:4], int(with_alpha)), dtype=torch.float32)
    rows = call.rows(seed, threshold_BHML2, grad_alpha)
    buffer, *others = call.buffers(3)
    for chunk in call.chunks():
        queries_BHMLE, of_context = call.scaled_queries(chunk), chunk.part(grad_BHMLE)
        scores_BHCK = call.scores(chunk, queries_BHMLE, buffer)
        grad_w, weights = (part_of(buffer, scores_BHCK.shape) for buffer in others)
        chunk.multiply(of_context, values, grad_w)
        rows.restrict(chunk.allowed_BHCK, chunk.first_row)
        rows.backward(scores_BHCK, grad_w, scores_BHCK, chunk.first_row, weights)
        chunk.combine(scores_BHCK, call.keys, chunk.part(grad_q_BHMLE))
        chunk.spread(scores_BHCK, queries_BHMLE, grad_k)
        chunk.spread(weights, of_context, grad_v)
    return (
        call.positions(grad_q_BHMLE.mul_(settings.scale)),
        call.total(grad_k).to(key.dtype),
        call.total(grad_v).to(value.dtype),
        call.positions(grad_alpha).sum_to_size(alpha.shape)
        if with_alpha and alpha is not None
        else grad_alpha,
    )


@dataclass(frozen=True)
class _Chunk:
    """Some blocks of one head, or whole heads of one sentence, or whole sentences."""

    batch: slice
    heads: slice
    blocks: range
    allowed_BHCK: Tensor
    products: list[tuple[int, Part, Product]]  # with the number of the part; slots of all parts
    first_row: int

    def part(self, states_BHMLE: Tensor) -> Tensor:
        """Return the chunk's part of states of queries."""
        blocks = slice(self.blocks.start, self.blocks.stop)
        return states_BHMLE[self.batch, self.heads, blocks]

    def rows(self, states_BHMLE: Tensor) -> Tensor:
        """Return the chunk's part of states of queries as rows (B, H, C, E)."""
        return self.part(states_BHMLE).flatten(2, 3)

    def multiply(self, query_BHMLE: Tensor, keys: list[Tensor], out_BHCK: Tensor) -> None:
        """Write the products of queries with the keys in their slots; other slots are masked."""
        for rows, out, columns in self._matrices(query_BHMLE, out_BHCK, keys):
            _put(out, rows.contiguous(), columns.contiguous().mT, 0)

    def combine(self, weights_BHCK: Tensor, values: list[Tensor], out_BHMLE: Tensor) -> None:
        """Write the weighted sums of the values in the slots of each query, summed in float32."""
        is_half, sums_BHMLE = out_BHMLE.dtype is not torch.float32, out_BHMLE
        if is_half:
            sums_BHMLE = torch.empty(out_BHMLE.shape, dtype=torch.float32)
        matrices = self._matrices(sums_BHMLE, weights_BHCK, values)
        for number, (out, weights, columns) in enumerate(matrices):
            _put(out, weights, columns.contiguous(), min(number, 1))
        if is_half:
            out_BHMLE.copy_(sums_BHMLE)

    def spread(self, weights_BHCK: Tensor, query_BHMLE: Tensor, sums: list[Tensor]) -> None:
        """Add to the sums of each key the weighted queries that have it in a slot."""
        for rows, weights, columns in self._matrices(query_BHMLE, weights_BHCK, sums):
            _put(columns, weights.mT, rows, 1)

    def _matrices(
        self, query_BHMLE: Tensor, slots_BHCK: Tensor, keys: list[Tensor]
    ) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Yield states of queries, slots, and states of keys for each product, as views."""
        slots_BHMLK = slots_BHCK.view(*query_BHMLE.shape[:4], -1)
        for number, part, (slots, blocks, of_keys) in self.products:
            yield (
                part.rows(query_BHMLE[:, :, blocks]),
                part.rows(slots_BHMLK[:, :, blocks, :, slots]),
                part.columns(keys[number][self.batch, self.heads], of_keys),
            )


def _put(out: Tensor, left: Tensor, right: Tensor, beta: int) -> None:
    """Write the product of matrices to `out`, a view, or add it (`beta` 1) to its content."""
    if out.shape[:3].numel() == 1 and out.dtype is left.dtype:  # one matrix: no temporary product
        out, left, right = out[0, 0, 0], left[0, 0, 0], right[0, 0, 0]
        torch.addmm(out, left, right, beta=beta, out=out)
    else:
        (out.add_ if beta else out.copy_)(left @ right)


class _Call:
    """One call: settings, and the tensors in blocks."""

    def __init__(
        self, query: Tensor, key: Tensor, alpha: Tensor | None, settings: Settings
    ) -> None:
        self.settings, self.layout = settings, settings.layout
        self.query_BHMLE = self.in_blocks(query)
        self.keys = self.gathered(self.in_blocks(key))
        beta = beta_of(alpha)
        if beta is not None:
            beta = self.in_blocks(beta.expand(*query.shape[:3], 1))
        self.beta_BHML1 = beta

    def rows(self, seed: int, threshold: Tensor, grad_alpha: Tensor | None = None) -> Rows:
        """Return the rows of all blocks (B, H, M · L); numbers per row are in blocks too."""
        shape = (*self.query_BHMLE.flatten(2, 3).shape[:3], self.layout.n_slots)
        draws = Draws(seed, self.settings.dropout) if self.settings.dropout else None
        numbers = (self.beta_BHML1, threshold, grad_alpha)
        beta, *others = (None if values is None else values.flatten(2, 3) for values in numbers)
        return Rows(shape, beta, self.settings.power, EVERYTHING, draws, *others)

    def in_blocks(self, states_BHNE: Tensor) -> Tensor:
        """Return states in blocks (B, H, M, L, E)."""
        return in_blocks(states_BHNE, self.layout.stride)

    def positions(self, blocks_BHMLE: Tensor) -> Tensor:
        """Return states of blocks as those of positions (B, H, N, E)."""
        return blocks_BHMLE.flatten(2, 3)[:, :, : self.layout.n_positions]

    def gathered(self, blocks_BHMLE: Tensor) -> list[Tensor]:
        """Return the states from which each part of the layout takes its keys."""
        return [part.gather(blocks_BHMLE) for part in self.layout.parts]

    def sums(self, like_BHMLE: Tensor) -> list[Tensor]:
        """Return zeros in the form of `gathered`, float32, and at the end those of all blocks."""
        zeros_BHMLE = torch.zeros_like(like_BHMLE, dtype=torch.float32)
        return [*self.gathered(zeros_BHMLE), zeros_BHMLE]

    def total(self, sums: list[Tensor]) -> Tensor:
        """Return the sums of all parts by position (B, H, N, E)."""
        for part, gathered in zip(self.layout.parts, sums[:-1], strict=True):
            part.scatter(gathered, sums[-1])
        return self.positions(sums[-1])

    def chunks(self) -> Iterator[_Chunk]:
        """Yield chunks of at most `CHUNK_SCORES` scores, or of one block."""
        n_batch, n_heads, n_blocks, stride, _ = self.query_BHMLE.shape
        of_head = self.chunk_scores  # if a chunk has all blocks
        step_h = 1 if self.step < n_blocks else max(1, min(n_heads, CHUNK_SCORES // of_head))
        step_b = 1 if step_h < n_heads else max(1, CHUNK_SCORES // (of_head * n_heads))
        for batch in steps(n_batch, step_b):
            for few in steps(n_blocks, self.step):
                blocks = range(few.start, few.stop)
                masks = self.layout.masks_of(blocks, batch)
                allowed_BHCK = concatenated(masks).flatten(2, 3)
                products = list(self._products(blocks))
                segments_BN = self.layout.segments_BN
                if segments_BN is not None:
                    of_masks = slice(0, allowed_BHCK.shape[1])
                    chunk = _Chunk(batch, of_masks, blocks, allowed_BHCK, products, 0)
                    allowed_BHCK = allowed_BHCK & self._same_document(chunk, segments_BN)
                for heads in steps(n_heads, step_h):
                    some_BHCK = allowed_BHCK[:, heads if allowed_BHCK.shape[1] > 1 else slice(1)]
                    head = batch.start * n_heads + heads.start
                    first_row = (head * n_blocks + blocks.start) * stride
                    yield _Chunk(batch, heads, blocks, some_BHCK, products, first_row)

    @functools.cached_property
    def step(self) -> int:
        """The number of blocks of a chunk. In causal attention, more would waste products."""
        n_blocks = self.layout.n_blocks
        of_last = self._n_scores(range(n_blocks - 1, n_blocks))
        return max(1, min(n_blocks, CHUNK_SCORES // of_last))

    @functools.cached_property
    def chunk_scores(self) -> int:
        """The number of scores of one head in the largest chunk."""
        n_blocks = self.layout.n_blocks
        return self._n_scores(range(n_blocks - self.step, n_blocks))

    def _n_scores(self, blocks: range) -> int:
        """Return the number of scores of some blocks of one head."""
        return len(blocks) * self.layout.stride * sum(self.layout.sizes(blocks))

    def _products(self, blocks: range) -> Iterator[tuple[int, Part, Product]]:
        """Yield the products of all parts; their slots count from the first part's on."""
        start, n_blocks = 0, self.layout.n_blocks_for(blocks)
        sizes = self.layout.sizes(blocks)
        for number, (part, size) in enumerate(zip(self.layout.parts, sizes, strict=True)):
            for product in part.products(blocks, n_blocks):
                slots = slice(start + product.slots.start, start + product.slots.stop)
                yield number, part, product._replace(slots=slots)
            start += size

    def buffers(self, n: int) -> list[Tensor]:
        """Return buffers for the slots of a chunk."""
        n_scores = max(
            self.chunk_scores,
            min(CHUNK_SCORES, math.prod(self.query_BHMLE.shape[:2]) * self.chunk_scores),
        )
        return [self.query_BHMLE.new_empty(n_scores) for _ in range(n)]

    def scaled_queries(self, chunk: _Chunk) -> Tensor:
        """Return the chunk's queries, scaled: cheaper than scaling the scores."""
        return chunk.part(self.query_BHMLE) * self.settings.scale

    def scores(self, chunk: _Chunk, query_BHMLE: Tensor, buffer: Tensor) -> Tensor:
        """Write the scores of a chunk to `buffer`, and return them as (B, H, C, K)."""
        n_slots = chunk.allowed_BHCK.shape[-1]
        shape = (*query_BHMLE.shape[:2], chunk.allowed_BHCK.shape[2], n_slots)
        scores_BHCK = part_of(buffer, shape)
        chunk.multiply(query_BHMLE, self.keys, scores_BHCK)
        distances = self.settings.distances
        if distances is not None:
            of_heads = Distances(distances.slopes_H[chunk.heads], distances.n_prefix)
            first = chunk.blocks.start * self.layout.stride
            n_blocks, stride = self.query_BHMLE.shape[2:4]
            positions = torch.arange(n_blocks * stride, dtype=torch.float32)
            positions_BHCK = self._in_slots(chunk, positions.view(1, 1, -1, stride, 1))
            scores_BHCK.copy_(of_heads.biased(scores_BHCK, first, positions_BHCK))
        return scores_BHCK

    def _same_document(self, chunk: _Chunk, segments_BN: Tensor) -> Tensor:
        """Return whether the key in each slot is of the query's document (B, H, C, K)."""
        segments_B1ML1 = self.in_blocks(segments_BN[:, None, :, None].float())
        of_queries = chunk.rows(segments_B1ML1.expand(-1, chunk.heads.stop, -1, -1, -1))
        return self._in_slots(chunk, segments_B1ML1) == of_queries

    def _in_slots(self, chunk: _Chunk, values_B1ML1: Tensor) -> Tensor:
        """Return the value of the key in each slot of a chunk (B, H, C, K), 0 in empty slots."""
        n_batch, n_heads, _, stride, _ = self.query_BHMLE.shape
        keys = self.gathered(values_B1ML1.expand(n_batch, n_heads, -1, -1, -1))
        n_rows, n_heads = (part.stop - part.start for part in (chunk.batch, chunk.heads))
        ones = values_B1ML1.new_ones(n_rows, n_heads, len(chunk.blocks), stride, 1)
        out_BHCK = ones.new_zeros(n_rows, n_heads, *chunk.allowed_BHCK.shape[2:])
        chunk.multiply(ones, keys, out_BHCK)
        return out_BHCK
