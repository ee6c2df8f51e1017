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
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional

from headwise.ops.attention.layout_parts import Columns, Gathered, Neighbours, Part
from headwise.ops.attention.pattern_rule import COLUMN, NO_WINDOW, Rule, per_head
from headwise.ops.attention.triton_blocks import PatternTiles, pattern_tiles


@dataclass(frozen=True)
class BlockLayout:
    """Layout of the scores of one self-attention under a rule.

    Attributes:
        rule: which keys.
        n_positions: N.
        causal: whether no query attends to later positions.
        key_lengths_B: int64, (B or 1,).
        segments_BN: document of each position; only keys of the query's are allowed. None: all.
        keys_BN: bool, False for keys that no query sees, beside lengths; read by `tiles` alone.
    """

    rule: Rule
    n_positions: int
    causal: bool
    key_lengths_B: Tensor
    segments_BN: Tensor | None = None
    keys_BN: Tensor | None = None
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
        rule, n_blocks = self.rule, self.n_blocks
        n_around = (self._n_before + 1 + self._n_after) * self.stride if self._has_near else 0
        n_columns = n_blocks if COLUMN in rule.labels else 0
        n_cells = min(n_blocks, rule.every_blocks or n_blocks) * min(rule.n_every, self.stride)
        return n_around + n_columns + n_cells

    @property
    def _n_before(self) -> int:
        """Number of blocks before the query's into which windows extend."""
        return -(-max(0, *self.rule.windows) // self.stride)

    @property
    def _n_after(self) -> int:
        return 0 if self.causal else self._n_before

    @property
    def _has_near(self) -> bool:
        return max(self.rule.windows) != NO_WINDOW or set(self.rule.labels) != {COLUMN}

    @functools.cached_property
    def parts(self) -> tuple[Part, ...]:
        """Slots for neighbours, for columns and for keys for every query, concatenated along K."""
        parts: list[Part] = []
        if self._has_near:
            parts.append(Neighbours(self.stride, self._n_before, self._n_after))
        if COLUMN in self.rule.labels:
            parts.append(Columns(self.stride))
        if self.rule.every_BHN is not None:
            parts.append(Gathered(self._cells(self.rule.every_BHN), self.rule.n_every))
        return tuple(parts)

    def _cells(self, every_BHN: Tensor) -> Tensor:
        """Return the positions of the keys for every query, as many of each block, else N."""
        padded = functional.pad(every_BHN, (0, self.n_blocks * self.stride - self.n_positions))
        blocks_BHML = padded.view(*padded.shape[:2], -1, self.stride)
        every_BHML = blocks_BHML[:, :, : self.rule.every_blocks]
        if every_BHN.device.type == "cpu":  # reading values is free there
            n_most = int(every_BHML.sum(-1).amax())
            if n_most > self.rule.n_every or every_BHML.sum() < blocks_BHML.sum():
                raise ValueError(
                    f"n_every={self.rule.n_every}, every_blocks={self.rule.every_blocks} of the "
                    f"rule are too few: a block has {n_most} keys for every query"
                )
        order = every_BHML.to(torch.uint8).argsort(dim=-1, descending=True, stable=True)
        order = order[..., : self.rule.n_every]
        starts_M1 = torch.arange(order.shape[2], device=order.device)[:, None] * self.stride
        positions = torch.where(every_BHML.gather(-1, order), starts_M1 + order, self.n_positions)
        return positions.flatten(2)

    def masks_of(self, blocks: range, batch: slice = slice(None)) -> list[Tensor]:
        """Return for each part which slots of some blocks are allowed, of some sentences.

        Bool (B or 1, H or 1, M, L, slots); causal ones end after the last of these blocks. A key
        that is in several slots of a query is allowed in the first part that has it.
        """
        key_lengths_B, every_BHN = _some(self.key_lengths_B, batch), self.rule.every_BHN
        device, masks = key_lengths_B.device, []
        blocks_M11 = torch.arange(blocks.start, blocks.stop, device=device)[:, None, None]
        queries = blocks_M11 * self.stride + torch.arange(self.stride, device=device)[:, None]
        for part in self.parts:
            keys = part.keys(blocks_M11, self.n_blocks_for(blocks))
            if isinstance(part, Gathered):
                keys = _some(keys, batch)
            ahead = torch.div(keys[..., :1, :], self.stride, rounding_mode="floor") - blocks_M11
            is_before = ahead <= 0
            if isinstance(part, Neighbours):
                allowed, is_before = self._near
            elif isinstance(part, Columns):
                is_column = tuple(label == COLUMN for label in self.rule.labels)
                allowed = per_head(is_column, torch.bool, device).view(-1, 1, 1, 1)
            elif COLUMN in self.rule.labels:
                allowed, is_before = keys % self.stride != queries % self.stride, keys <= queries
            else:
                allowed = torch.ones((), dtype=torch.bool, device=device)
            if every_BHN is not None and not isinstance(part, Gathered):
                nearest = keys.clamp(0, self.n_positions - 1)
                allowed = allowed | _some(every_BHN, batch)[..., nearest]
            allowed = allowed & (keys >= 0) & (keys < key_lengths_B.view(-1, 1, 1, 1, 1))
            if self.causal:
                allowed = allowed & is_before
            if self._has_near and not isinstance(part, Neighbours):
                allowed = allowed & ((ahead < -self._n_before) | (ahead > self._n_after))
            masks.append(allowed.expand(-1, -1, len(blocks), self.stride, -1))
        return masks

    @functools.cached_property
    def _near(self) -> tuple[Tensor, Tensor]:
        """Which neighbours a query sees by window and label (H or 1, 1, L, slots); which precede.

        Equal for all blocks.
        """
        n_slots, device = self.parts[0].n_slots(self.n_blocks), self.key_lengths_B.device
        keys_1K = torch.arange(n_slots, device=device)[None]
        queries_L1 = (
            torch.arange(self.stride, device=device)[:, None] + self._n_before * self.stride
        )
        return self.rule.related(queries_L1, keys_1K)[:, None], keys_1K <= queries_L1

    def n_blocks_for(self, blocks: range) -> int:
        """Return the number of blocks of keys for some blocks of queries."""
        return blocks.stop if self.causal else self.n_blocks

    def sizes(self, blocks: range) -> list[int]:
        """Return the number of slots of each part for some blocks of queries."""
        return [part.n_slots(self.n_blocks_for(blocks)) for part in self.parts]

    def tiles(self, block: int) -> PatternTiles:
        """Return the rule for square blocks of this size; cached, for all layers of a stack."""
        if block not in self._tiles:
            self._tiles[block] = pattern_tiles(
                self.rule, self.n_positions, self.causal, self.key_lengths_B, block,
                self.segments_BN, self.keys_BN,
            )  # fmt: skip
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


def concatenated(masks: list[Tensor]) -> Tensor:
    """Concatenate masks (B or 1, H or 1, M, L, slots) along the slots."""
    batch, heads = (max(mask.shape[axis] for mask in masks) for axis in (0, 1))
    return torch.cat([mask.expand(batch, heads, -1, -1, -1) for mask in masks], dim=-1)


def _some(values: Tensor, batch: slice) -> Tensor:
    """Return the values of some sentences, if they differ by sentence."""
    return values[batch] if len(values) > 1 else values
