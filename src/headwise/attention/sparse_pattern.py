"""Base class of the factorised patterns of Child et al. (2019).

Each is a pair of sets: the near keys, A1 of the paper, and the far keys, A2. Two steps, one through
each, reach every key from every later query (from every query without causality).

Axes: B batch, H heads, Q and K numbers of queries and keys, N positions.
"""

from __future__ import annotations

import functools
from collections.abc import Hashable
from typing import ClassVar

import torch
from torch import Tensor

from headwise.attention.pattern import Pattern
from headwise.attention.place import Place
from headwise.compilation import constant_in_graphs
from headwise.errors import refuse, require
from headwise.ops.attention.layout import BlockLayout, Part
from headwise.ops.attention.rule import Rule

COMBINATIONS = ("interleaved", "merged", "heads")
LOCAL, MERGED, INTERLEAVED = "local", "merged", "interleaved"


class SparsePattern(Pattern):
    """Near keys, far keys, and their assignment to layers and heads.

    The query's own position is always allowed, so that every query has a key. Cross-attention is
    not restricted (see `Pattern`), so `pattern=` can be set for the whole model.

    Args:
        place: site, layer and sizes.
        stride: l of the paper.
        combine: "merged" (the union in every head, eq. 7), "interleaved" (near keys in layers
            1, 3, ..., far ones in 2, 4, ..., eq. 6) or "heads" (set per head by `heads`, eq. 8).
        heads: with combine "heads": "local" (near keys), the subclass's name of the far keys,
            "merged" or "interleaved"; head number n uses the n-th, and a shorter list is repeated.
            None: near and far alternate.
        block_sparse_from: minimum number of positions for block-sparse self-attention, whose time
            and memory grow as N · (stride + N / stride). Recorded weights, cached decoding, and
            layouts of more than `max_share` of all pairs form and mask all pairs.
    """

    far_name: ClassVar[str]
    max_share: ClassVar[float] = 0.5  # slots per position; above this, a layout is hardly faster

    def __init__(
        self,
        place: Place,
        stride: int = 8,
        combine: str = "merged",
        heads: list[str] | None = None,
        block_sparse_from: int = 256,
    ) -> None:
        super().__init__(place)
        require(stride >= 1, "stride", "at least 1", stride)
        require(block_sparse_from >= 1, "block_sparse_from", "at least 1", block_sparse_from)
        if combine not in COMBINATIONS:
            raise refuse("combine", combine, COMBINATIONS)
        if heads is not None:
            require(combine == "heads", "heads", f"null with combine={combine}", heads)
            require(len(heads) > 0, "heads", "a list of at least one name", heads)
        self.restricts = place.kind != "cross"
        self.stride = stride
        self.block_sparse_from = block_sparse_from
        self.near_H, self.far_H = self._assign(combine, heads)

    def _assign(
        self, combine: str, heads: list[str] | None
    ) -> tuple[tuple[bool, ...], tuple[bool, ...]]:
        """Return for each head whether it has the near keys, and whether it has the far keys."""
        if combine != "heads":
            heads = [combine]
        elif heads is None:
            heads = [LOCAL, self.far_name]
        layer_name = LOCAL if self.place.layer % 2 else self.far_name
        shares = {LOCAL: (True, False), self.far_name: (False, True), MERGED: (True, True)}
        shares[INTERLEAVED] = shares[layer_name]
        for name in heads:
            if name not in shares:
                raise refuse("heads", name, shares)
        pairs = [shares[heads[(n - 1) % len(heads)]] for n in self.place.head_numbers]
        return tuple(near for near, _ in pairs), tuple(far for _, far in pairs)

    @property
    def key(self) -> Hashable:
        """Everything that determines the mask; layers with equal keys share one mask."""
        return (type(self), self.stride, self.near_H, self.far_H, self.block_sparse_from)

    def near(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Return A1 without causality: bool, for positions that broadcast."""
        raise NotImplementedError

    def far(self, queries: Tensor, keys: Tensor, key_lengths_B: Tensor | None) -> Tensor:
        """Return A2 without causality, (B or 1, H or 1, ...), for positions (Q or 1, K or 1).

        `key_lengths_B` is None in a causal decoder.
        """
        raise NotImplementedError

    def allowed(
        self, query_positions_Q: Tensor, n_keys: int, causal: bool, key_lengths_B: Tensor | None
    ) -> Tensor:
        """See `Pattern.allowed`; (B or 1, H or 1, Q, K)."""
        queries_Q1 = query_positions_Q[:, None]
        keys_K = torch.arange(n_keys, device=query_positions_Q.device)
        allowed = (queries_Q1 == keys_K)[None, None]
        if any(self.near_H):
            allowed = allowed | head_mask(self.near(queries_Q1, keys_K)[None, None], self.near_H)
        if any(self.far_H):
            lengths_B = None if causal else _lengths(key_lengths_B, n_keys, keys_K.device)
            allowed = allowed | head_mask(self.far(queries_Q1, keys_K, lengths_B), self.far_H)
        return allowed

    def layout(
        self, n_positions: int, causal: bool, key_lengths_B: Tensor | None, device: torch.device
    ) -> BlockLayout | None:
        """See `Pattern.layout`."""
        n_slots = self.n_slots(n_positions, causal)
        if n_positions < self.block_sparse_from or n_slots > self.max_share * n_positions:
            return None
        lengths_B = _lengths(key_lengths_B, n_positions, device)
        parts = tuple(self.parts(n_positions, causal, lengths_B))
        masks = functools.partial(self.masks, causal)
        rule = functools.partial(self.rule, n_positions, causal, lengths_B)
        return BlockLayout(self.stride, n_positions, causal, lengths_B, parts, masks, rule)

    def n_slots(self, n_positions: int, causal: bool) -> int:
        """Return the number of slots K of the layout for `n_positions`."""
        raise NotImplementedError

    def parts(self, n_positions: int, causal: bool, lengths_B: Tensor) -> list[Part]:
        """Return the parts of the layout for sentences of `lengths_B` (B or 1,).

        They are padded to `n_positions`.
        """
        raise NotImplementedError

    def masks(self, causal: bool, blocks: Tensor, n_blocks: int, lengths_B: Tensor) -> list[Tensor]:
        """See `BlockLayout.masks`."""
        raise NotImplementedError

    def rule(self, n_positions: int, causal: bool, lengths_B: Tensor) -> Rule:
        """Return the pattern for the same sentences as a rule for kernels on a GPU."""
        raise NotImplementedError


def head_mask(allowed: Tensor, has_H: tuple[bool, ...]) -> Tensor:
    """Return `allowed` (B or 1, H or 1, ...), False in heads where `has_H` is False."""
    if all(has_H):
        return allowed
    some_H = per_head(has_H, torch.bool, allowed.device)
    return allowed & some_H.view(1, -1, *(1,) * (allowed.dim() - 2))


def is_real(positions: Tensor, lengths_B: Tensor) -> Tensor:
    """Return which positions are inside the sentences: bool, (B or 1, 1, ...)."""
    lengths = lengths_B.view(-1, 1, *(1,) * positions.dim())
    return (positions >= 0) & (positions < lengths)


def _lengths(key_lengths_B: Tensor | None, n_keys: int, device: torch.device) -> Tensor:
    if key_lengths_B is not None:
        return key_lengths_B
    return torch.full((1,), n_keys, device=device)  # a copy would wait for a GPU


@constant_in_graphs
def per_head(values_H: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return one constant per head as a tensor, copied to a device once."""
    return _on_device(values_H, dtype, device)


@functools.lru_cache(maxsize=256)  # (False, True) == (0, 1): the type distinguishes them
def _on_device(values_H: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.tensor(values_H, dtype=dtype, device=device)
