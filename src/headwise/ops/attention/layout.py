"""Self-attention computed only for the pairs of a sparse pattern (Child et al. 2019).

Positions are split into blocks of `stride`. Scores have shape (B, H, N, K), where K counts slots
of a layout, not keys: each query has slots for the keys it may attend to and some more, which are
masked. Memory and time grow as N · K; with a stride near sqrt(N) and few keys for every query, K is
near sqrt(N) too.

The slots of a query are of three kinds: one part for each block near its own, one for its column,
and one for the keys that every query sees. With a stride of 4, a window of 4 and causality, the
slots of query 9 (block 2, column 1) have these keys:

    near: 4 5 6 7 | 8 9 10 11    column: 1 5 9

Of these 4, 10 and 11 are masked, and 5 and 9 in the column, as they have a slot already.

In each part, groups of queries share their keys (those of a block, of a column, or all queries), so
that the scores are one matrix product per group.

Axes: B batch, H heads, N positions, M blocks, L positions of a block (the stride), K slots, E head
width, X any width, G groups of queries, R queries of a group.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from headwise.ops.attention.pattern_rule import COLUMN, NO_WINDOW, Rule, per_head
from headwise.ops.attention.triton_blocks import PatternTiles, pattern_tiles

NEAR, EVERY = "near", "every"  # kinds of parts, beside `COLUMN`


class KeyStates(NamedTuple):
    """States of the keys, their gradients or their positions, as the parts of a layout read them.

    Attributes:
        blocks_BHMLX: of all blocks, and of `n_around` more without keys before and after them.
        every_BHKX: of the keys for every query; any state in empty slots.
    """

    blocks_BHMLX: Tensor
    every_BHKX: Tensor

    def sliced(self, batch: slice, heads: slice = slice(None)) -> KeyStates:
        """Return those of some heads of some sentences; see `sliced`."""
        return KeyStates(*(sliced(states, batch, heads) for states in self))


class Part(NamedTuple):
    """Some of the slots of the queries of some blocks, and the keys in them.

    Attributes:
        kind: `NEAR` (a block at one distance: the queries of a block are a group), `COLUMN` (those
            of a column are) or `EVERY` (all are).
        span: which of `KeyStates.blocks_BHMLX`, or of `KeyStates.every_BHKX`.
        n_slots: K.
    """

    kind: str
    span: slice
    n_slots: int

    def keys(self, states: KeyStates) -> Tensor:
        """Return a view of the states of the keys of each group, (B, H, G, K, X)."""
        if self.kind == EVERY:
            return states.every_BHKX[:, :, None, self.span]
        return self.grouped(states.blocks_BHMLX[:, :, self.span])

    def grouped(self, states_BHMLX: Tensor) -> Tensor:
        """Return states in blocks by group (B, H, G, R, X); a view if blocks are contiguous."""
        if self.kind == EVERY:
            return states_BHMLX.flatten(2, 3)[:, :, None]
        return states_BHMLX.transpose(2, 3) if self.kind == COLUMN else states_BHMLX

    def by_position(self, grouped_BHGRX: Tensor) -> Tensor:
        """Return the result of `grouped` by position, (B, H, M · L, X)."""
        if self.kind == COLUMN:
            grouped_BHGRX = grouped_BHGRX.transpose(2, 3)
        return grouped_BHGRX.flatten(2, 3)

    def in_slots(self, numbers: KeyStates) -> Tensor:
        """Return numbers of the keys in the slots of each query, broadcastable to (B, H, M, L, K).

        Args:
            numbers: of the keys, X = 1.
        """
        return self.keys(numbers)[..., 0].unsqueeze(-3 if self.kind == COLUMN else -2)


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
        return sum(part.n_slots for part in self.parts(self.all_blocks))

    @property
    def all_blocks(self) -> range:
        """All blocks."""
        return range(self.n_blocks)

    @property
    def n_around(self) -> int:
        """Number of blocks before the query's into which windows extend."""
        return -(-max(0, *self.rule.windows) // self.stride)

    @property
    def _has_near(self) -> bool:
        """Whether a query has near parts: for a window, or for itself or its block by label."""
        return max(self.rule.windows) != NO_WINDOW or set(self.rule.labels) != {COLUMN}

    def parts(self, blocks: range) -> list[Part]:
        """Return the parts of the slots of the queries of some blocks, in their order along K."""
        rule, stride, n_around, parts = self.rule, self.stride, self.n_around, []
        n_key_blocks = blocks.stop if self.causal else self.n_blocks
        if self._has_near:
            for shift in range(n_around + 1 if self.causal else 2 * n_around + 1):
                span = slice(blocks.start + shift, blocks.stop + shift)
                parts.append(Part(NEAR, span, stride))
        if COLUMN in rule.labels:
            parts.append(Part(COLUMN, slice(n_around, n_around + n_key_blocks), n_key_blocks))
        n_every = min(n_key_blocks, rule.every_blocks or n_key_blocks) * min(rule.n_every, stride)
        if n_every:
            parts.append(Part(EVERY, slice(n_every), n_every))
        return parts

    def key_states(self, states_BHNX: Tensor) -> KeyStates:
        """Return states of all positions, of all sentences, as those of keys."""
        index_BHK1, width = self._every_index_BHK1, states_BHNX.shape[3]
        n_batch, n_heads = (max(states_BHNX.shape[i], index_BHK1.shape[i]) for i in (0, 1))
        index_BHKX = index_BHK1.expand(n_batch, n_heads, -1, width)
        every_BHKX = states_BHNX.expand(n_batch, n_heads, -1, -1).gather(2, index_BHKX)
        return KeyStates(in_blocks(states_BHNX, self.stride, self.n_around), every_BHKX)

    def total(self, sums: KeyStates) -> Tensor:
        """Return sums over keys by position (B, H, N, X); changes them."""
        first = self.n_around * self.stride
        total_BHNX = sums.blocks_BHMLX.flatten(2, 3)[:, :, first : first + self.n_positions]
        index_BHKX = self._every_index_BHK1.expand_as(sums.every_BHKX)
        return total_BHNX.scatter_add_(2, index_BHKX, sums.every_BHKX)

    @functools.cached_property
    def positions(self) -> KeyStates:
        """The positions of the keys, int64, X = 1; below 0 or from N on where there are none."""
        n_around, n_blocks, stride = self.n_around, self.n_blocks, self.stride
        span = -n_around * stride, (n_blocks + n_around) * stride
        positions = torch.arange(*span, device=self.key_lengths_B.device)
        return KeyStates(positions.view(1, 1, -1, stride, 1), self._every_BHK[..., None])

    @functools.cached_property
    def _every_BHK(self) -> Tensor:
        """The positions of the keys for every query: `n_every` slots a block, N in empty ones."""
        every_BHN = self.rule.every_BHN
        if every_BHN is None:
            return self.key_lengths_B.new_zeros(1, 1, 0, dtype=torch.int64)
        blocks_BHML = in_blocks(every_BHN[..., None], self.stride)[..., 0]
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

    @functools.cached_property
    def _every_index_BHK1(self) -> Tensor:
        """The same positions as an index: of any key in empty slots."""
        return self._every_BHK.clamp(max=self.n_positions - 1)[..., None]

    @functools.cached_property
    def _documents(self) -> KeyStates:
        """The documents of the keys, X = 1."""
        assert self.segments_BN is not None
        return self.key_states(self.segments_BN[:, None, :, None])

    def allowed(self, blocks: range, batch: slice = slice(None)) -> Tensor:
        """Return which slots of the queries of some blocks are allowed, of some sentences.

        Bool (B or 1, H or 1, M · L, K); causal ones end after the last of these blocks. A key that
        is in several slots of a query is allowed in the first part that has it.
        """
        rule, causal, stride, masks = self.rule, self.causal, self.stride, []
        lengths_B1111 = sliced(self.key_lengths_B.view(-1, 1, 1, 1, 1), batch)
        last, device = self.n_positions - 1, lengths_B1111.device
        blocks_M11 = torch.arange(blocks.start, blocks.stop, device=device)[:, None, None]
        queries = blocks_M11 * stride + torch.arange(stride, device=device)[:, None]
        positions = self.positions.sliced(batch)
        for part in self.parts(blocks):
            keys, is_near = part.in_slots(positions), part.kind == NEAR
            if is_near:  # equal for all blocks
                first, of_first = queries[:1], keys[0, 0, :1]
                allowed, is_before = rule.related(first, of_first), of_first <= first
            else:
                ahead = torch.div(keys[..., :1, :], stride, rounding_mode="floor") - blocks_M11
                # of the query's own block, at most the query itself remains: the others are near
                allowed, is_before = lengths_B1111.new_ones((), dtype=torch.bool), ahead <= 0
            if part.kind == COLUMN:
                is_column = tuple(label == COLUMN for label in rule.labels)
                allowed = per_head(is_column, torch.bool, device).view(-1, 1, 1, 1)
            elif part.kind == EVERY and COLUMN in rule.labels:  # those of its column are there
                allowed, is_before = keys % stride != queries % stride, keys <= queries
            if rule.every_BHN is not None and part.kind != EVERY:
                allowed = allowed | sliced(rule.every_BHN, batch)[..., keys[0, 0].clamp(0, last)]
            exists = (keys >= 0) & (keys < lengths_B1111)  # for all heads
            if causal:
                exists = exists & is_before
            if self._has_near and not is_near:  # near keys are in the near parts
                exists = exists & (ahead.abs() > self.n_around)
            if self.segments_BN is not None:
                of_keys = part.in_slots(self._documents.sliced(batch))
                of_queries = self.segments_BN[batch, queries.clamp(max=last)][:, None]
                exists = exists & (of_keys == of_queries)
            masks.append((allowed & exists).expand(-1, -1, len(blocks), stride, -1))
        return concatenated(masks).flatten(2, 3)

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
        return self.allowed(self.all_blocks)[:, :, : self.n_positions]

    @property
    def key_positions_BHNK(self) -> Tensor:
        """The positions of the keys in the slots of all queries, as of `key_positions`."""
        return self.key_positions(self.all_blocks)[:, :, : self.n_positions]

    def key_positions(self, blocks: range) -> Tensor:
        """Return the position of the key in each slot, (B or 1, H or 1, M · L, K).

        Below 0 or from N on in empty slots.
        """
        keys = [part.in_slots(self.positions) for part in self.parts(blocks)]
        keys = [x.expand(-1, -1, len(blocks), self.stride, -1) for x in keys]
        return concatenated(keys).flatten(2, 3)

    def scores(self, query_BHNE: Tensor, key_BHNE: Tensor) -> Tensor:
        """Return scores (B, H, N, K)."""
        query_BHMLE, keys = in_blocks(query_BHNE, self.stride), self.key_states(key_BHNE)
        scores = [
            part.by_position(part.grouped(query_BHMLE) @ part.keys(keys).mT)
            for part in self.parts(self.all_blocks)
        ]
        return torch.cat(scores, -1)[:, :, : self.n_positions]

    def context(self, weights_BHNK: Tensor, value_BHNE: Tensor) -> Tensor:
        """Return the context (B, H, N, E)."""
        parts, values = self.parts(self.all_blocks), self.key_states(value_BHNE)
        slots = slots_of_parts(parts, in_blocks(weights_BHNK, self.stride))
        contexts = [
            part.by_position(weights_BHGRK @ part.keys(values))
            for part, weights_BHGRK in zip(parts, slots, strict=True)
        ]
        return functools.reduce(torch.add, contexts)[:, :, : self.n_positions]


def in_blocks(states_BHNX: Tensor, stride: int, n_around: int = 0) -> Tensor:
    """Return the states as (B, H, blocks, stride, X), with zeros for missing positions.

    Args:
        states_BHNX: of all positions.
        stride: number of positions of a block.
        n_around: number of blocks of zeros before and after them.
    """
    n_batch, n_heads, n_positions, width = states_BHNX.shape
    n_before, n_after = n_around * stride, n_around * stride + -n_positions % stride
    if n_after:
        states_BHNX = pad(states_BHNX, (0, 0, n_before, n_after))
    return states_BHNX.reshape(n_batch, n_heads, -1, stride, width)


def slots_of_parts(parts: list[Part], slots_BHMLK: Tensor) -> list[Tensor]:
    """Return values of the slots of parts by group, (B, H, G, R, K), as views."""
    split = torch.split(slots_BHMLK, [part.n_slots for part in parts], dim=-1)
    return [part.grouped(of_part) for part, of_part in zip(parts, split, strict=True)]


def concatenated(masks: list[Tensor]) -> Tensor:
    """Concatenate (B or 1, H or 1, M, L, slots) along the slots."""
    batch, heads = (max(mask.shape[axis] for mask in masks) for axis in (0, 1))
    return torch.cat([mask.expand(batch, heads, -1, -1, -1) for mask in masks], dim=-1)


def sliced(values_BH: Tensor, batch: slice, heads: slice = slice(None)) -> Tensor:
    """Return the values (B or 1, H or 1, ...) of some sentences and heads; axes of 1 stay."""
    values_BH = values_BH[batch] if values_BH.shape[0] > 1 else values_BH
    return values_BH[:, heads] if values_BH.shape[1] > 1 else values_BH
