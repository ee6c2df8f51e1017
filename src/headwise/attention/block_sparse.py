"""Self-attention over the pairs of a sparse pattern alone, as Child et al. (2019) compute it.

Positions stand in blocks of `stride`. Scores are laid out as (B, H, N, K) where K counts places
of a layout, not keys: each query has places for the keys it may see and some more, which the mask
leaves out. With a stride near the square root of N, so is K, and time and memory grow as
N · sqrt(N).

Letters: B batch, H heads, N positions, K places of a layout, E head width.
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
    """Some of the places of a layout: where the keys for them stand."""

    def scores(self, query_BHNE: Tensor, key_BHNE: Tensor) -> Tensor:
        """Products (B, H, N, K) of each query with the keys at its places."""
        ...

    def context(self, weights_BHNK: Tensor, value_BHNE: Tensor) -> Tensor:
        """Values (B, H, N, E) at the places of each query, summed with their weights."""
        ...


@dataclass(frozen=True)
class BlockLayout:
    """How the scores of one self-attention are laid out.

    Attributes:
        parts: side by side along K, each with its number of places.
        allowed_BHNK: bool, (B or 1, H or 1, N, K). A key that stands at several places of a query
            is allowed at one of them at most.
    """

    parts: tuple[tuple[Part, int], ...]
    allowed_BHNK: Tensor

    @classmethod
    def of(cls, parts: Sequence[tuple[Part, Tensor]]) -> BlockLayout:
        """From parts and what each allows, (B or 1, H or 1, N, its places)."""
        batch, heads = (max(allowed.shape[axis] for _, allowed in parts) for axis in (0, 1))
        side_by_side = [allowed.expand(batch, heads, -1, -1) for _, allowed in parts]
        return cls(
            tuple((part, allowed.shape[-1]) for part, allowed in parts),
            torch.cat(side_by_side, dim=-1),
        )

    def scores(self, query_BHNE: Tensor, key_BHNE: Tensor) -> Tensor:
        """Scores (B, H, N, K)."""
        return torch.cat([part.scores(query_BHNE, key_BHNE) for part, _ in self.parts], dim=-1)

    def key_positions(self, n_positions: int) -> Tensor:
        """Position of the key at each place, (B or 1, H or 1, N, K), float32."""
        batch, heads = self.allowed_BHNK.shape[:2]
        ones = torch.ones(batch, heads, n_positions, 1, device=self.allowed_BHNK.device)
        return self.scores(ones, ones.cumsum(2) - 1)

    def context(self, weights_BHNK: Tensor, value_BHNE: Tensor) -> Tensor:
        """Context (B, H, N, E)."""
        sizes = [n_places for _, n_places in self.parts]
        weights = torch.split(weights_BHNK, sizes, dim=-1)
        found = [
            part.context(own_BHNK, value_BHNE)
            for (part, _), own_BHNK in zip(self.parts, weights, strict=True)
        ]
        return functools.reduce(torch.add, found)


@dataclass(frozen=True)
class Neighbours:
    """The block of the query, some blocks before it and some after it.

    Place p of a query in block b holds the key at (b - n_before) · stride + p.
    """

    stride: int
    n_before: int
    n_after: int

    def scores(self, query_BHNE: Tensor, key_BHNE: Tensor) -> Tensor:
        """See `Part.scores`."""
        blocks = in_blocks(query_BHNE, self.stride)
        products = blocks @ self._around(key_BHNE).transpose(-1, -2)
        return products.flatten(2, 3)[:, :, : query_BHNE.shape[2]]

    def context(self, weights_BHNK: Tensor, value_BHNE: Tensor) -> Tensor:
        """See `Part.context`."""
        found = in_blocks(weights_BHNK, self.stride) @ self._around(value_BHNE)
        return found.flatten(2, 3)[:, :, : value_BHNE.shape[2]]

    def _around(self, states_BHNE: Tensor) -> Tensor:
        """For each block, the states of it and of its neighbours: (B, H, blocks, K, E)."""
        blocks = in_blocks(states_BHNE, self.stride)
        if self.n_before == self.n_after == 0:
            return blocks
        n_blocks = blocks.shape[2]
        padded = functional.pad(blocks, (0, 0, 0, 0, self.n_before, self.n_after))
        n_around = self.n_before + 1 + self.n_after
        return torch.cat([padded[:, :, first : first + n_blocks] for first in range(n_around)], 3)


@dataclass(frozen=True)
class Columns:
    """All positions with the remainder of the query by `stride`: place p holds block p's one.

    Written in rows of `stride`, these are the column of the query; transposed, each column is
    a dense attention of its own.
    """

    stride: int

    def scores(self, query_BHNE: Tensor, key_BHNE: Tensor) -> Tensor:
        """See `Part.scores`."""
        query, key = (self._columns(states) for states in (query_BHNE, key_BHNE))
        products = query @ key.transpose(-1, -2)
        return products.transpose(2, 3).flatten(2, 3)[:, :, : query_BHNE.shape[2]]

    def context(self, weights_BHNK: Tensor, value_BHNE: Tensor) -> Tensor:
        """See `Part.context`."""
        found = self._columns(weights_BHNK) @ self._columns(value_BHNE)
        return found.transpose(2, 3).flatten(2, 3)[:, :, : value_BHNE.shape[2]]

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
    """States (B, H, blocks, stride, E); zeros fill up the last block."""
    batch, heads, length, width = states_BHNE.shape
    missing = -length % stride
    if missing:
        states_BHNE = functional.pad(states_BHNE, (0, 0, 0, missing))
    return states_BHNE.reshape(batch, heads, -1, stride, width)
