"""Parts of a block layout: some of the slots of each query, and the keys in them.

Axes: B batch, H heads, N positions, M blocks, L positions of a block (the stride), K slots of a
layout, E head width, S matrices.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn import functional


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

    def keys(self, blocks_M11: Tensor, n_blocks: int) -> Tensor:
        """Return the position of the key in each slot of these blocks, or another, of no key.

        Broadcastable to (M, L, slots) or (B, H, M, L, slots).
        """
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


class _InPlace:
    """Keys that are read where they are."""

    def gather(self, blocks_BHMLE: Tensor) -> Tensor:
        return blocks_BHMLE

    def scatter(self, gathered: Tensor, blocks_BHMLE: Tensor) -> None:
        """Nothing was copied."""


@dataclass(frozen=True)
class Neighbours(_InPlace):
    """The block of the query, some blocks before it and some after it.

    Slot p of a query in block b holds the key at (b - n_before) · stride + p.
    """

    stride: int
    n_before: int
    n_after: int

    def scores(self, query_BHNE: Tensor, key_BHNE: Tensor) -> Tensor:
        blocks = in_blocks(query_BHNE, self.stride)
        scores = blocks @ self._around(key_BHNE).transpose(-1, -2)
        return scores.flatten(2, 3)[:, :, : query_BHNE.shape[2]]

    def context(self, weights_BHNK: Tensor, value_BHNE: Tensor) -> Tensor:
        context = in_blocks(weights_BHNK, self.stride) @ self._around(value_BHNE)
        return context.flatten(2, 3)[:, :, : value_BHNE.shape[2]]

    def n_slots(self, n_blocks: int) -> int:
        return (self.n_before + 1 + self.n_after) * self.stride

    def keys(self, blocks_M11: Tensor, n_blocks: int) -> Tensor:
        around = torch.arange(self.n_slots(n_blocks), device=blocks_M11.device)
        return (blocks_M11 - self.n_before) * self.stride + around

    def products(self, blocks: range, n_blocks: int) -> Iterator[Product]:
        for ahead in sorted(range(-self.n_before, self.n_after + 1), key=abs):
            place = self.n_before + ahead
            first, stop = max(blocks.start, -ahead), min(blocks.stop, n_blocks - ahead)
            if first < stop:
                slots = slice(place * self.stride, (place + 1) * self.stride)
                of_queries = slice(first - blocks.start, stop - blocks.start)
                yield Product(slots, of_queries, slice(first + ahead, stop + ahead))

    def rows(self, states_BHMLE: Tensor) -> Tensor:
        return states_BHMLE

    def columns(self, gathered: Tensor, keys: slice) -> Tensor:
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
        query, key = (self._columns(states) for states in (query_BHNE, key_BHNE))
        scores = query @ key.transpose(-1, -2)
        return scores.transpose(2, 3).flatten(2, 3)[:, :, : query_BHNE.shape[2]]

    def context(self, weights_BHNK: Tensor, value_BHNE: Tensor) -> Tensor:
        context = self._columns(weights_BHNK) @ self._columns(value_BHNE)
        return context.transpose(2, 3).flatten(2, 3)[:, :, : value_BHNE.shape[2]]

    def n_slots(self, n_blocks: int) -> int:
        return n_blocks

    def keys(self, blocks_M11: Tensor, n_blocks: int) -> Tensor:
        of_keys = torch.arange(n_blocks, device=blocks_M11.device)
        in_block_L1 = torch.arange(self.stride, device=blocks_M11.device)[:, None]
        return (of_keys * self.stride + in_block_L1)[None]

    def products(self, blocks: range, n_blocks: int) -> Iterator[Product]:
        yield Product(slice(0, n_blocks), slice(0, len(blocks)), slice(0, n_blocks))

    def rows(self, states_BHMLE: Tensor) -> Tensor:
        return states_BHMLE.transpose(2, 3)

    def columns(self, gathered: Tensor, keys: slice) -> Tensor:
        return gathered[:, :, keys].transpose(2, 3)

    def _columns(self, states_BHNE: Tensor) -> Tensor:
        return in_blocks(states_BHNE, self.stride).transpose(2, 3)


@dataclass(frozen=True)
class Gathered:
    """The same keys for all queries of a head, as many of each block.

    Attributes:
        positions_BHK: of the keys, (B or 1, H or 1, K), block by block; N in empty slots.
        n_of_block: number of slots of a block.
    """

    positions_BHK: Tensor
    n_of_block: int

    def scores(self, query_BHNE: Tensor, key_BHNE: Tensor) -> Tensor:
        return query_BHNE @ self._gather(key_BHNE).transpose(-1, -2)

    def context(self, weights_BHNK: Tensor, value_BHNE: Tensor) -> Tensor:
        return weights_BHNK @ self._gather(value_BHNE)

    def n_slots(self, n_blocks: int) -> int:
        return min(n_blocks * self.n_of_block, self.positions_BHK.shape[-1])

    def keys(self, blocks_M11: Tensor, n_blocks: int) -> Tensor:
        return self.positions_BHK[..., None, None, : self.n_slots(n_blocks)]

    def products(self, blocks: range, n_blocks: int) -> Iterator[Product]:
        keys = slice(0, self.n_slots(n_blocks))
        yield Product(keys, slice(0, len(blocks)), keys)

    def gather(self, blocks_BHMLE: Tensor) -> Tensor:
        return self._gather(blocks_BHMLE.flatten(2, 3))

    def scatter(self, gathered: Tensor, blocks_BHMLE: Tensor) -> None:
        states_BHNE = blocks_BHMLE.flatten(2, 3)  # a view
        states_BHNE.scatter_add_(2, self._index(states_BHNE), gathered)

    def rows(self, states_BHMLE: Tensor) -> Tensor:
        return states_BHMLE.flatten(2, 3)[:, :, None]

    def columns(self, gathered: Tensor, keys: slice) -> Tensor:
        return gathered[:, :, None, keys]

    def _gather(self, states_BHNE: Tensor) -> Tensor:
        return states_BHNE.gather(2, self._index(states_BHNE))

    def _index(self, states_BHNE: Tensor) -> Tensor:
        batch, heads, n_positions, width = states_BHNE.shape
        positions_BHK = self.positions_BHK.clamp(max=n_positions - 1)
        return positions_BHK[..., None].expand(batch, heads, -1, width)


def in_blocks(states_BHNE: Tensor, stride: int) -> Tensor:
    """Return the states as (B, H, blocks, stride, E); the last block is zero-padded."""
    batch, heads, length, width = states_BHNE.shape
    missing = -length % stride
    if missing:
        states_BHNE = functional.pad(states_BHNE, (0, 0, 0, missing))
    return states_BHNE.reshape(batch, heads, -1, stride, width)
