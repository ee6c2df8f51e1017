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
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn import functional

from headwise.ops.attention.rule import COLUMN, NO_WINDOW, Rule
from headwise.ops.attention.triton_blocks import PatternTiles, tiles


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
    """Layout of the scores of one self-attention under a rule.

    Attributes:
        rule: which keys.
        n_positions: N.
        causal: whether no query attends to later positions.
        lengths_B: int64, (B or 1,).
        segments_BN: document of each position; only keys of the query's are allowed. None: all.
    """

    rule: Rule
    n_positions: int
    causal: bool
    lengths_B: Tensor
    segments_BN: Tensor | None = None
    _tiles: dict[int, PatternTiles] = field(
        init=False, default_factory=dict, repr=False, compare=False
    )

    @property
    def stride(self) -> int:
        """Number of positions of a block."""
        return self.rule.stride

    @property
    def n_blocks(self) -> int:
        """Number of blocks M, the last of them maybe incomplete."""
        return -(-self.n_positions // self.stride)

    @property
    def n_slots(self) -> int:
        """Number of slots K of each query."""
        return sum(self.sizes(range(self.n_blocks)))

    @property
    def _n_before(self) -> int:
        """Number of blocks before the query's into which windows extend."""
        return -(-max(*self.rule.windows, 0) // self.stride)

    @property
    def _n_after(self) -> int:
        return 0 if self.causal else self._n_before

    @property
    def _has_columns(self) -> bool:
        return COLUMN in self.rule.labels

    @property
    def _has_near(self) -> bool:
        return max(self.rule.windows) != NO_WINDOW or set(self.rule.labels) != {COLUMN}

    @functools.cached_property
    def parts(self) -> tuple[Part, ...]:
        """Slots for neighbours, for columns and for keys for every query, concatenated along K."""
        parts: list[Part] = []
        if self._has_near:
            parts.append(Neighbours(self.stride, self._n_before, self._n_after))
        if self._has_columns:
            parts.append(Columns(self.stride))
        if self.rule.every_BHN is not None:
            parts.append(Gathered(self))
        return tuple(parts)

    @property
    def n_cell_blocks(self) -> int:
        """Number of blocks, from the first on, with keys for every query."""
        limit = self.rule.every_blocks
        return self.n_blocks if limit is None else min(limit, self.n_blocks)

    @functools.cached_property
    def cells_BHK(self) -> Tensor:
        """Positions of the keys for every query, as many of each block; N in empty slots."""
        assert self.rule.every_BHN is not None
        missing = self.n_blocks * self.stride - self.n_positions
        padded = functional.pad(self.rule.every_BHN, (0, missing))
        every = padded.view(*padded.shape[:2], -1, self.stride)[:, :, : self.n_cell_blocks]
        first = every.to(torch.uint8).argsort(dim=-1, descending=True, stable=True)
        first = first[..., : self.rule.n_every]
        starts_M1 = torch.arange(self.n_cell_blocks, device=first.device)[:, None] * self.stride
        cells = torch.where(every.gather(-1, first), starts_M1 + first, self.n_positions)
        return cells.flatten(2)

    def masks_of(self, blocks: range, batch: slice = slice(None)) -> list[Tensor]:
        """Return for each part which slots of some blocks are allowed.

        Bool (B or 1, H or 1, M, L, slots); causal ones end after the last of these blocks. A key
        that is in several slots of a query is allowed in one of them.

        Args:
            blocks: of the queries.
            batch: sentences.
        """
        rule, lengths_B = (
            self.rule,
            self.lengths_B if len(self.lengths_B) == 1 else self.lengths_B[batch],
        )
        if rule.every_BHN is not None and len(rule.every_BHN) > 1:
            rule = replace(rule, every_BHN=rule.every_BHN[batch])
        device, stride = lengths_B.device, self.stride
        of_queries = torch.arange(blocks.start, blocks.stop, device=device)[:, None, None]
        queries = of_queries * stride + torch.arange(stride, device=device)[:, None]  # (M, L, 1)
        n_blocks, masks = self.n_blocks_for(blocks), []
        if self._has_near:
            width = (self._n_before + 1 + self._n_after) * stride
            around = torch.arange(width, device=device) - self._n_before * stride
            keys = of_queries * stride + around  # (M, 1, slots)
            masks.append(rule.allows(queries, keys) & self._sees(queries, keys, lengths_B))
        if self._has_columns:
            of_keys = torch.arange(n_blocks, device=device)
            keys = of_keys * stride + torch.arange(stride, device=device)[:, None]  # (L, slots)
            allowed = rule.allows(queries, keys) & self._sees(queries, keys, lengths_B)
            masks.append(allowed & ~self._is_near(of_queries, of_keys))
        if self.rule.every_BHN is not None:
            cells = self.cells_BHK if len(self.cells_BHK) == 1 else self.cells_BHK[batch]
            cells = cells[..., None, None, : self.parts[-1].n_slots(n_blocks)]
            of_keys = torch.div(cells, stride, rounding_mode="floor")
            allowed = (cells < self.n_positions) & ~self._is_near(of_queries, of_keys)
            # a later block is near, or there is no window, and then no part for the query's
            is_before = of_keys <= of_queries if self._has_near else cells <= queries
            allowed = allowed & (cells < lengths_B.view(-1, 1, 1, 1, 1))
            allowed = allowed & is_before if self.causal else allowed
            if self._has_columns:
                allowed = allowed & (cells % stride != queries % stride)
            masks.append(allowed.expand(-1, -1, -1, stride, -1))
        return masks

    def _sees(self, queries: Tensor, keys: Tensor, lengths_B: Tensor) -> Tensor:
        """Return which keys are real and, if causal, not after the query."""
        is_real = (keys >= 0) & (keys < lengths_B.view(-1, 1, 1, 1, 1))
        return is_real & (keys <= queries) if self.causal else is_real

    def _is_near(self, of_queries: Tensor, of_keys: Tensor) -> Tensor:
        """Return which blocks of keys are in the part for neighbours."""
        ahead = of_keys - of_queries
        if not self._has_near:
            return torch.zeros_like(ahead, dtype=torch.bool)
        return (ahead >= -self._n_before) & (ahead <= self._n_after)

    def n_blocks_for(self, blocks: range) -> int:
        """Return the number of blocks of keys for some blocks of queries."""
        return blocks.stop if self.causal else self.n_blocks

    def sizes(self, blocks: range) -> list[int]:
        """Return the number of slots of each part for some blocks of queries."""
        return [part.n_slots(self.n_blocks_for(blocks)) for part in self.parts]

    def tiles(self, block: int) -> PatternTiles:
        """Return the rule for square blocks of this size; cached, for all layers of a stack."""
        if block not in self._tiles:
            settings = (self.n_positions, self.causal, self.lengths_B, block)
            self._tiles[block] = tiles(self.rule, *settings)
        return self._tiles[block]

    @functools.cached_property
    def allowed_BHNK(self) -> Tensor:
        """The masks of all positions, bool (B or 1, H or 1, N, K)."""
        masks = self.masks_of(range(self.n_blocks))
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
        layout: has their positions, block by block.
    """

    layout: BlockLayout

    def scores(self, query_BHNE: Tensor, key_BHNE: Tensor) -> Tensor:
        """See `Part.scores`."""
        return query_BHNE @ self._gather(key_BHNE).transpose(-1, -2)

    def context(self, weights_BHNK: Tensor, value_BHNE: Tensor) -> Tensor:
        """See `Part.context`."""
        return weights_BHNK @ self._gather(value_BHNE)

    def n_slots(self, n_blocks: int) -> int:
        """See `Part.n_slots`."""
        return min(n_blocks, self.layout.n_cell_blocks) * self.layout.rule.n_every

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
        cells_BHK = self.layout.cells_BHK.clamp(max=self.layout.n_positions - 1)
        return cells_BHK[..., None].expand(batch, heads, -1, width)


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
