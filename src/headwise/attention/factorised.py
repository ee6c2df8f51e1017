"""Base class of the factorised patterns of Child et al. (2019).

Each is a pair of sets: the near keys, A1 of the paper, and the far keys, A2. Two steps, one through
each, reach every key from every later query (from every query without causality).

Axes: B batch, H heads, Q and K numbers of queries and keys, N positions.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import ClassVar

from headwise.attention.pattern import Pattern
from headwise.attention.place import Place
from headwise.errors import refuse, require

COMBINATIONS = ("interleaved", "merged", "heads")
LOCAL, MERGED, INTERLEAVED = "local", "merged", "interleaved"


class FactorisedPattern(Pattern):
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
            grows as N · (stride + c · N / stride), with c = 1, and `summary_cells` of `Fixed`.
            Recorded weights, cached decoding, and layouts of more than `max_share` of all pairs
            form and mask all pairs.
    """

    far_name: ClassVar[str]

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
