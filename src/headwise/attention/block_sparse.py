"""Self-attention computed only for the pairs of a sparse pattern (Child et al. 2019).

Positions are split into blocks of `stride`. Scores have shape (B, H, N, K), where K counts slots
of a layout, not keys: each query has slots for the keys it may attend to and some more, which are
masked. With a stride near sqrt(N), K is of that order too, and time and memory grow as
N · sqrt(N).

Axes: B batch, H heads, N positions, K slots of a layout, E head width.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional


class Part(Protocol):
    """Some of the slots of a layout, and the keys in them."""

    def scores(self, query_BHNE: Tensor, key_BHNE: Tensor) -> Tensor:
        """Return the dot products (B, H, N, K) of each query with the keys in its slots."""
        ...

    def context(self, weights_BHNK: Tensor, value_BHNE: Tensor) -> Tensor:
        """Return the weighted sums (B, H, N, E) of the values in the slots of each query."""
        ...


@dataclass(frozen=True)
class BlockLayout:
    """Layout of the scores of one self-attention.

    Attributes:
        parts: the parts, concatenated along K, each with its number of slots.
        allowed_BHNK: bool, (B or 1, H or 1, N, K). A key that is in several slots of a query is
            allowed in at most one of them.
    """

    parts: tuple[tuple[Part, int], ...]
    allowed_BHNK: Tensor

    @classmethod
    def from_parts(cls, parts: Sequence[tuple[Part, Tensor]]) -> BlockLayout:
        """Build a layout from parts and their masks (B or 1, H or 1, N, slots)."""
        batch, heads = (max(allowed.shape[axis] for _, allowed in parts) for axis in (0, 1))
        masks = [allowed.expand(batch, heads, -1, -1) for _, allowed in parts]
        return cls(
            tuple((part, allowed.shape[-1]) for part, allowed in parts),
            torch.cat(masks, dim=-1),
        )

    def scores(self, query_BHNE: Tensor, key_BHNE: Tensor) -> Tensor:
        """Return scores (B, H, N, K)."""
        return torch.cat([part.scores(query_BHNE, key_BHNE) for part, _ in self.parts], dim=-1)

    def key_positions(self, n_positions: int) -> Tensor:
        """Return the position of the key in each slot (B or 1, H or 1, N, K), float32."""
        batch, heads = self.allowed_BHNK.shape[:2]
        ones = torch.ones(batch, heads, n_positions, 1, device=self.allowed_BHNK.device)
        return self.scores(ones, ones.cumsum(2) - 1)

    def context(self, weights_BHNK: Tensor, value_BHNE: Tensor) -> Tensor:
        """Return the context (B, H, N, E)."""
        sizes = [n_slots for _, n_slots in self.parts]
        weights = torch.split(weights_BHNK, sizes, dim=-1)
        contexts = [
            part.context(part_BHNK, value_BHNE)
            for (part, _), part_BHNK in zip(self.parts, weights, strict=True)
        ]
        return functools.reduce(torch.add, contexts)


@dataclass(frozen=True)
class Neighbours:
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
class Columns:
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

    def _columns(self, states_BHNE: Tensor) -> Tensor:
        return in_blocks(states_BHNE, self.stride).transpose(2, 3)


@dataclass(frozen=True)
class Gathered:
    """The same keys for all queries of a head, by their positions (B or 1, H or 1, K)."""

    positions_BHK: Tensor

    def scores(self, query_BHNE: Tensor, key_BHNE: Tensor) -> Tensor:
        """See `Part.scores`."""
        return query_BHNE @ self._gather(key_BHNE).transpose(-1, -2)

    def context(self, weights_BHNK: Tensor, value_BHNE: Tensor) -> Tensor:
        """See `Part.context`."""
        return weights_BHNK @ self._gather(value_BHNE)

    def _gather(self, states_BHNE: Tensor) -> Tensor:
        batch, heads, _, width = states_BHNE.shape
        index = self.positions_BHK[..., None].expand(batch, heads, -1, width)
        return states_BHNE.gather(2, index)


def in_blocks(states_BHNE: Tensor, stride: int) -> Tensor:
    """Return the states as (B, H, blocks, stride, E); the last block is zero-padded."""
    batch, heads, length, width = states_BHNE.shape
    missing = -length % stride
    if missing:
        states_BHNE = functional.pad(states_BHNE, (0, 0, 0, missing))
    return states_BHNE.reshape(batch, heads, -1, stride, width)
