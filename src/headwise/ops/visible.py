"""Which keys a query may attend to.

Axes: B batch, H heads, Q and K numbers of queries and keys, N positions of a self-attention.
"""

from __future__ import annotations

import functools
from dataclasses import KW_ONLY, dataclass, field

import torch
from torch import Tensor

from headwise.compilation import may_keep_tensors
from headwise.ops.attention.layout import BlockLayout
from headwise.ops.attention.pattern_rule import POSITION, Rule


@dataclass(frozen=True)
class Visible:
    """Which keys a query may attend to: those that no field excludes. By default, all.

    These are the forms that kernels read without a mask of every pair. A form is a field here, its
    part of `dense` and, where C++ kernels do not read it, of `needs_dense`: it reaches them as a
    mask (`with_mask`). `headwise.attention.mask.Mask` adds a pattern, and caches.

    Attributes:
        key_lengths_B: number of keys of each row of the batch before padding on the right, int64 or
            int32, (B,) or (1,); None: no padding.
        causal: whether a query attends only to keys up to its own position.
        query_offset: position of the first query (the length of the cached prefix).
        window: the largest distance of a key from the query's position; None: any.
        segments_BN: document of each position, in order from 0; positions of different documents
            do not attend to each other. Only for self-attention without a cache; None: one.
        mask: any other restriction: bool, broadcastable to (B, H, Q, K), True = may attend.
    """

    key_lengths_B: Tensor | None = None
    causal: bool = False
    _: KW_ONLY
    query_offset: int = 0
    window: int | None = None
    segments_BN: Tensor | None = None
    mask: Tensor | None = None
    _windows: dict[tuple[int, int], BlockLayout] = field(
        init=False, default_factory=dict, repr=False, compare=False
    )

    @property
    def key_mask_BK(self) -> Tensor | None:
        """The mask as one of keys, (B or 1, K), if it is equal for all heads and queries."""
        if self.mask is None or self.mask.shape[-3:-1].numel() != 1:
            return None
        return self.mask[:, 0, 0]

    @property
    def has_pattern(self) -> bool:
        """Whether a pattern of `headwise.attention.pattern` restricts the keys."""
        return False

    @property
    def needs_dense(self) -> bool:
        """Whether keys are restricted beyond padding, causality and a mask."""
        return self.has_pattern or self.window is not None or self.segments_BN is not None

    @property
    def is_plain_causal(self) -> bool:
        """Whether it is causal from position 0 on, with no other restriction."""
        alone = self.is_equal_in_batch and self.mask is None and not self.needs_dense
        return self.causal and alone and self.query_offset == 0

    @property
    def is_equal_in_batch(self) -> bool:
        """Whether padding and documents exclude the same keys, that is none, in all rows."""
        return self.key_lengths_B is None and self.segments_BN is None

    def dense(self, n_queries: int, n_keys: int, device: torch.device) -> Tensor | None:
        """Return bool (B or 1, H or 1, Q or 1, K or 1), True = may attend; None: all allowed."""
        masks = self._masks(n_queries, n_keys, device)
        return functools.reduce(torch.logical_and, masks) if masks else None

    def _masks(self, n_queries: int, n_keys: int, device: torch.device) -> list[Tensor]:
        """Return the restrictions as masks that broadcast to (B, H, Q, K)."""
        keys_K = torch.arange(n_keys, device=device)
        queries_Q = torch.arange(n_queries, device=device) + self.query_offset
        masks: list[Tensor] = []
        if self.key_lengths_B is not None:
            masks.append((keys_K < self.key_lengths_B[:, None])[:, None, None, :])
        if self.causal and n_keys > self.query_offset + 1:
            masks.append((keys_K <= queries_Q[:, None])[None, None])
        if self.window is not None:
            distances_QK = (
                keys_K - torch.arange(n_queries, device=device)[:, None]
            ) - self.query_offset
            masks.append((distances_QK.abs() <= self.window)[None, None])
        if self.segments_BN is not None:
            of_queries_BQ = self._segments_of_queries(n_queries)
            masks.append(same_document(of_queries_BQ, self.segments_BN[:, :n_keys]))
        if self.mask is not None:
            masks.append(self.mask)
        return masks

    def with_mask(self, n_queries: int, n_keys: int, device: torch.device) -> Visible:
        """Return the same with only padding, causality and a mask, as C++ kernels read it."""
        if not self.needs_dense:
            return self
        dense_BHQK = self.dense(n_queries, n_keys, device)
        return Visible(
            self.key_lengths_B, self.causal, query_offset=self.query_offset, mask=dense_BHQK
        )

    def window_layout(self, n_heads: int, n: int, device: torch.device) -> BlockLayout:
        """Return the block layout of the window in a self-attention of n positions.

        For kernels on GPUs. Cached, for all layers of a stack.
        """
        assert self.window is not None
        layouts = self._windows if may_keep_tensors() else {}
        if (n_heads, n) not in layouts:
            rule = Rule(max(1, self.window), (self.window,) * n_heads, (POSITION,) * n_heads)
            lengths_B = self.key_lengths_B
            lengths_B = torch.full((1,), n, device=device) if lengths_B is None else lengths_B
            others = self.segments_BN, self.key_mask_BK
            layouts[n_heads, n] = BlockLayout(rule, n, self.causal, lengths_B, *others)
        return layouts[n_heads, n]

    def n_visible(self, n_queries: int, n_keys: int, device: torch.device) -> Tensor:
        """Return the number of keys that padding, causality and documents allow, (B or 1, Q)."""
        visible_BQ = torch.full((1, n_queries), n_keys, device=device)
        if self.causal:
            visible_BQ = torch.arange(n_queries, device=device)[None] + self.query_offset + 1
        if self.key_lengths_B is not None:
            visible_BQ = torch.minimum(visible_BQ, self.key_lengths_B[:, None])
        if self.segments_BN is not None:
            of_queries_BQ = self._segments_of_queries(n_queries)
            before_BQ = torch.searchsorted(self.segments_BN, of_queries_BQ)
            end_BQ = torch.searchsorted(self.segments_BN, of_queries_BQ, right=True)
            visible_BQ = torch.minimum(visible_BQ, end_BQ) - before_BQ
        return visible_BQ

    def _segments_of_queries(self, n_queries: int) -> Tensor:
        assert self.segments_BN is not None
        return self.segments_BN[:, self.query_offset :][:, :n_queries].contiguous()


EVERYTHING = Visible()


def same_document(of_queries_BQ: Tensor, of_keys_BK: Tensor) -> Tensor:
    """Return which queries and keys are of one document, from its numbers, (B, 1, Q, K)."""
    return (of_queries_BQ[:, :, None] == of_keys_BK[:, None])[:, None]
