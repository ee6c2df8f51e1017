"""Self-attention computed only for the pairs of a sparse pattern (Child et al. 2019).

Positions are split into blocks of `stride`. Scores have shape (B, H, N, K), where K counts slots
of a layout, not keys: each query has slots for the keys it may attend to and some more, which are
masked. With a stride near sqrt(N), K is of that order too, and time and memory grow as
N · sqrt(N).

Axes: B batch, H heads, N positions, M blocks, L positions of a block (the stride), K slots of a
layout, E head width, S matrices.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn import functional

from headwise.ops.attention.rule import Rule
from headwise.ops.attention.triton_blocks import PatternTiles


class Product(NamedTuple):
    """One product of matrices: of some blocks of queries and the keys in some slots.

    Attributes:
        slots: of the part.
        blocks: of the queries.
        keys: of the blocks of keys, or of what `Part.gather` returns.
    """

    slots: slice
    blocks: slice
    keys: slice


class Part(Protocol):
    """Some of the slots of a layout, and the keys in them.

    `scores` and `context` are for all positions. For the blocks of a chunk, the kernel forms
    `products` of `rows` and `columns`, which are views.
    """

    def scores(self, query_BHNE: Tensor, key_BHNE: Tensor) -> Tensor:
        """Return the dot products (B, H, N, K) of each query with the keys in its slots."""
        ...

    def context(self, weights_BHNK: Tensor, value_BHNE: Tensor) -> Tensor:
        """Return the weighted sums (B, H, N, E) of the values in the slots of each query."""
        ...

    def n_slots(self, n_blocks: int) -> int:
        """Return the number of slots for keys in the first `n_blocks`."""
        ...

    def products(self, blocks: range, n_blocks: int) -> Iterator[Product]:
        """Return the products of these blocks with the first `n_blocks`; the rest is masked.

        The first product has all queries.
        """
        ...

    def gather(self, blocks_BHMLE: Tensor) -> Tensor:
        """Return the states from which `columns` takes its keys, at most one copy."""
        ...

    def scatter(self, gathered: Tensor, blocks_BHMLE: Tensor) -> None:
        """Add states in the form of `gather` to their positions; nothing if it does not copy."""
        ...

    def rows(self, states_BHMLE: Tensor) -> Tensor:
        """Return the states of queries as matrices (B, H, S, rows, E)."""
        ...

    def columns(self, gathered: Tensor, keys: slice) -> Tensor:
        """Return the states of keys as matrices (B, H, S, keys, E)."""
        ...


@dataclass(frozen=True)
class BlockLayout:
    """Layout of the scores of one self-attention.

    Attributes:
        stride: number of positions of a block.
        n_positions: N.
        causal: whether no query attends to later positions.
        lengths_B: int64, (B or 1,).
        parts: concatenated along K.
        masks: (blocks (M,), number of blocks of keys, lengths) -> for each part, bool (B or 1,
            H or 1, M, L, slots). A key that is in several slots of a query is allowed in at most
            one of them.
        rule: () -> the same restriction for kernels on a GPU.
        segments_BN: document of each position; only keys of the query's are allowed. None: all.
    """

    stride: int
    n_positions: int
    causal: bool
    lengths_B: Tensor
    parts: tuple[Part, ...]
    masks: Callable[[Tensor, int, Tensor], list[Tensor]]
    rule: Callable[[], Rule]
    segments_BN: Tensor | None = None
    _tiles: dict[int, PatternTiles] = field(
        init=False, default_factory=dict, repr=False, compare=False
    )

    @property
    def n_blocks(self) -> int:
        """Number of blocks M, the last of them maybe incomplete."""
        return -(-self.n_positions // self.stride)

    def masks_of(self, blocks: range, lengths_B: Tensor) -> list[Tensor]:
        """Return the masks of some blocks; causal ones end after the last of these blocks."""
        indices = torch.arange(blocks.start, blocks.stop, device=lengths_B.device)
        return self.masks(indices, self.n_blocks_for(blocks), lengths_B)

    def n_blocks_for(self, blocks: range) -> int:
        """Return the number of blocks of keys for some blocks of queries."""
        return blocks.stop if self.causal else self.n_blocks

    def sizes(self, blocks: range) -> list[int]:
        """Return the number of slots of each part for some blocks of queries."""
        return [part.n_slots(self.n_blocks_for(blocks)) for part in self.parts]

    def tiles(self, block: int) -> PatternTiles:
        """Return the rule for square blocks of this size; cached, for all layers of a stack."""
        if block not in self._tiles:
            self._tiles[block] = self.rule().tiles(self.causal, self.lengths_B, block)
        return self._tiles[block]

    @functools.cached_property
    def allowed_BHNK(self) -> Tensor:
        """The masks of all positions, bool (B or 1, H or 1, N, K)."""
        masks = self.masks_of(range(self.n_blocks), self.lengths_B)
        allowed_BHNK = concatenated(masks).flatten(2, 3)[:, :, : self.n_positions]
        if self.segments_BN is None:
            return allowed_BHNK
        segments_B1N1 = self.segments_BN[:, None, :, None].float()
        return allowed_BHNK & (self._in_slots(segments_B1N1, allowed_BHNK) == segments_B1N1)

    def scores(self, query_BHNE: Tensor, key_BHNE: Tensor) -> Tensor:
        """Return scores (B, H, N, K)."""
        return torch.cat([part.scores(query_BHNE, key_BHNE) for part in self.parts], dim=-1)

    def key_positions(self, n_positions: int) -> Tensor:
        """Return the position of the key in each slot (B or 1, H or 1, N, K), float32."""
        positions_N = torch.arange(n_positions, device=self.allowed_BHNK.device)
        return self._in_slots(positions_N[None, None, :, None].float(), self.allowed_BHNK)

    def _in_slots(self, values_B1N1: Tensor, allowed_BHNK: Tensor) -> Tensor:
        """Return the value of the key in each slot (B or 1, H or 1, N, K), 0 in empty slots."""
        batch = max(len(values_B1N1), len(allowed_BHNK))
        values_BHN1 = values_B1N1.expand(batch, allowed_BHNK.shape[1], -1, -1)
        return self.scores(torch.ones_like(values_BHN1), values_BHN1)

    def context(self, weights_BHNK: Tensor, value_BHNE: Tensor) -> Tensor:
        """Return the context (B, H, N, E)."""
        weights = torch.split(weights_BHNK, self.sizes(range(self.n_blocks)), dim=-1)
        contexts = [
            part.context(part_BHNK, value_BHNE)
            for part, part_BHNK in zip(self.parts, weights, strict=True)
        ]
        return functools.reduce(torch.add, contexts)


class _InPlace:
    """Keys that are read where they are."""

    def gather(self, blocks_BHMLE: Tensor) -> Tensor:
        """See `Part.gather`."""
        return blocks_BHMLE

    def scatter(self, gathered: Tensor, blocks_BHMLE: Tensor) -> None:
        """See `Part.scatter`."""


@dataclass(frozen=True)
class Neighbours(_InPlace):
    """The block of the query, some blocks before it and some after it.

    Slot p of a query in block b holds the key at (b - n_before) · stride + p.
    """

    stride: int
    n_before: int
    n_after: int

    def scores(self, query_BHNE: Tensor, key_BHNE: Tensor) -> Tensor:
        """See `Part.scores`."""
        blocks = in_blocks(query_BHNE, self.stride)
        scores = blocks @ self._around(key_BHNE).transpose(-1, -2)
        return scores.flatten(2, 3)[:, :, : query_BHNE.shape[2]]

    def context(self, weights_BHNK: Tensor, value_BHNE: Tensor) -> Tensor:
        """See `Part.context`."""
        context = in_blocks(weights_BHNK, self.stride) @ self._around(value_BHNE)
        return context.flatten(2, 3)[:, :, : value_BHNE.shape[2]]

    def n_slots(self, n_blocks: int) -> int:
        """See `Part.n_slots`."""
        return (self.n_before + 1 + self.n_after) * self.stride

    def products(self, blocks: range, n_blocks: int) -> Iterator[Product]:
        """See `Part.products`."""
        for ahead in sorted(range(-self.n_before, self.n_after + 1), key=abs):
            place = self.n_before + ahead
            first, stop = max(blocks.start, -ahead), min(blocks.stop, n_blocks - ahead)
            if first < stop:
                slots = slice(place * self.stride, (place + 1) * self.stride)
                of_queries = slice(first - blocks.start, stop - blocks.start)
                yield Product(slots, of_queries, slice(first + ahead, stop + ahead))

    def rows(self, states_BHMLE: Tensor) -> Tensor:
        """See `Part.rows`."""
        return states_BHMLE

    def columns(self, gathered: Tensor, keys: slice) -> Tensor:
        """See `Part.columns`."""
        return gathered[:, :, keys]

    def _around(self, states_BHNE: Tensor) -> Tensor:
        """Return the states of each block and its neighbours (B, H, blocks, K, E)."""
        blocks = in_blocks(states_BHNE, self.stride)
        if self.n_before == self.n_after == 0:
            return blocks
        n_blocks = blocks.shape[2]
        padded = functional.pad(blocks, (0, 0, 0, 0, self.n_before, self.n_after))
        n_around = self.n_before + 1 + self.n_after
        return torch.cat([padded[:, :, first : first + n_blocks] for first in range(n_around)], 3)


@dataclass(frozen=True)
class Columns(_InPlace):
    """All positions equal to the query's modulo `stride`; slot p holds the key in block p.

    With positions arranged in rows of `stride`, these are the column of the query; after a
    transposition each column is one dense attention.
    """

    stride: int

    def scores(self, query_BHNE: Tensor, key_BHNE: Tensor) -> Tensor:
        """See `Part.scores`."""
        query, key = (self._columns(states) for states in (query_BHNE, key_BHNE))
        scores = query @ key.transpose(-1, -2)
        return scores.transpose(2, 3).flatten(2, 3)[:, :, : query_BHNE.shape[2]]

    def context(self, weights_BHNK: Tensor, value_BHNE: Tensor) -> Tensor:
        """See `Part.context`."""
        context = self._columns(weights_BHNK) @ self._columns(value_BHNE)
        return context.transpose(2, 3).flatten(2, 3)[:, :, : value_BHNE.shape[2]]

    def n_slots(self, n_blocks: int) -> int:
        """See `Part.n_slots`."""
        return n_blocks

    def products(self, blocks: range, n_blocks: int) -> Iterator[Product]:
        """See `Part.products`."""
        yield Product(slice(0, n_blocks), slice(0, len(blocks)), slice(0, n_blocks))

    def rows(self, states_BHMLE: Tensor) -> Tensor:
        """See `Part.rows`."""
        return states_BHMLE.transpose(2, 3)

    def columns(self, gathered: Tensor, keys: slice) -> Tensor:
        """See `Part.columns`."""
        return gathered[:, :, keys].transpose(2, 3)

    def _columns(self, states_BHNE: Tensor) -> Tensor:
        return in_blocks(states_BHNE, self.stride).transpose(2, 3)


@dataclass(frozen=True)
class Gathered:
    """The same keys for all queries of a head, as many of each block.

    Attributes:
        positions_BHK: of the keys, (B or 1, H or 1, K), block by block.
        n_of_block: number of keys of one block.
    """

    positions_BHK: Tensor
    n_of_block: int

    def scores(self, query_BHNE: Tensor, key_BHNE: Tensor) -> Tensor:
        """See `Part.scores`."""
        return query_BHNE @ self._gather(key_BHNE).transpose(-1, -2)

    def context(self, weights_BHNK: Tensor, value_BHNE: Tensor) -> Tensor:
        """See `Part.context`."""
        return weights_BHNK @ self._gather(value_BHNE)

    def n_slots(self, n_blocks: int) -> int:
        """See `Part.n_slots`."""
        return n_blocks * self.n_of_block

    def products(self, blocks: range, n_blocks: int) -> Iterator[Product]:
        """See `Part.products`."""
        keys = slice(0, self.n_slots(n_blocks))
        yield Product(keys, slice(0, len(blocks)), keys)

    def gather(self, blocks_BHMLE: Tensor) -> Tensor:
        """See `Part.gather`."""
        return self._gather(blocks_BHMLE.flatten(2, 3))

    def scatter(self, gathered: Tensor, blocks_BHMLE: Tensor) -> None:
        """See `Part.scatter`."""
        blocks_BHMLE.flatten(2, 3).scatter_add_(2, self._index(gathered), gathered)

    def rows(self, states_BHMLE: Tensor) -> Tensor:
        """See `Part.rows`."""
        return states_BHMLE.flatten(2, 3)[:, :, None]

    def columns(self, gathered: Tensor, keys: slice) -> Tensor:
        """See `Part.columns`."""
        return gathered[:, :, None, keys]

    def _gather(self, states_BHNE: Tensor) -> Tensor:
        return states_BHNE.gather(2, self._index(states_BHNE))

    def _index(self, states_BHNE: Tensor) -> Tensor:
        batch, heads, _, width = states_BHNE.shape
        return self.positions_BHK[..., None].expand(batch, heads, -1, width)


def concatenated(masks: list[Tensor]) -> Tensor:
    """Concatenate masks (B or 1, H or 1, M, L, slots) along the slots."""
    batch, heads = (max(mask.shape[axis] for mask in masks) for axis in (0, 1))
    return torch.cat([mask.expand(batch, heads, -1, -1, -1) for mask in masks], dim=-1)


def in_blocks(states_BHNE: Tensor, stride: int) -> Tensor:
    """Return the states as (B, H, blocks, stride, E); the last block is zero-padded."""
    batch, heads, length, width = states_BHNE.shape
    missing = -length % stride
    if missing:
        states_BHNE = functional.pad(states_BHNE, (0, 0, 0, missing))
    return states_BHNE.reshape(batch, heads, -1, stride, width)
