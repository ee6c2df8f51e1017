"""Which keys may be attended to.

Axes: B batch, H heads, Q and K numbers of queries and keys, N positions of a self-attention.
"""

from __future__ import annotations

import functools
from collections.abc import Hashable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from headwise.attention.pattern import Pattern
from headwise.compilation import may_keep_tensors
from headwise.ops.attention.layout import BlockLayout


@dataclass(frozen=True)
class Mask:
    """Which keys may be attended to, as a small structure.

    Fused and block-sparse code reads the fields; the dense form is built on demand.

    Attributes:
        key_lengths_B: number of real keys of each row (padding is on the right), or None.
        causal: whether a query attends only to keys up to its own position.
        pattern: a further restriction, or None.
        query_offset: position of the first query (the length of the cached prefix).
        n_prefix: number of CLS tokens at the start, which have no position.
        segments_BN: document of each position, in order from 0; positions of different documents
            do not attend to each other. Only for self-attention without a cache and without
            CLS tokens. None: one document.
    """

    key_lengths_B: Tensor | None = None
    causal: bool = False
    pattern: Pattern | None = None
    query_offset: int = 0
    n_prefix: int = 0
    segments_BN: Tensor | None = None
    _dense: dict[tuple[int, int], Tensor | None] = field(
        init=False, default_factory=dict, repr=False, compare=False
    )
    _layouts: dict[int, BlockLayout | None] = field(
        init=False, default_factory=dict, repr=False, compare=False
    )
    _restricted: dict[Hashable, Mask] = field(
        init=False, default_factory=dict, repr=False, compare=False
    )

    @property
    def is_plain_causal(self) -> bool:
        """Whether the mask is causal from position 0 on, with no other restriction."""
        alone = self.key_lengths_B is None and not self.needs_dense
        return self.causal and alone and self.query_offset == 0

    @property
    def needs_dense(self) -> bool:
        """Whether keys are restricted beyond padding and causality."""
        return self.pattern is not None or self.segments_BN is not None

    def restricted(self, pattern: Pattern) -> Mask:
        """Return this mask with `pattern`; cached by the key of the pattern."""
        if pattern.key not in self._restricted:
            self._restricted[pattern.key] = replace(self, pattern=pattern)
        return self._restricted[pattern.key]

    def layout(self, n_queries: int, n_keys: int, device: torch.device) -> BlockLayout | None:
        """Return the block-sparse layout of the pattern, or None if there is none.

        It needs every position as query and key, so there is none in cached decoding. Cached
        after the first call.
        """
        if self.pattern is None or n_queries != n_keys:
            return None
        layouts = self._layouts if may_keep_tensors() else {}
        if n_keys not in layouts:
            layout = self.pattern.layout(n_keys, self.causal, self.key_lengths_B, device)
            layouts[n_keys] = layout and replace(layout, segments_BN=self.segments_BN)
        return layouts[n_keys]

    def dense(self, n_queries: int, n_keys: int, device: torch.device) -> Tensor | None:
        """Return bool (B or 1, H or 1, Q or 1, K), True = may attend; None: all allowed.

        Cached after the first call, for all layers of a stack; not while torch traces or compiles,
        as a dictionary would fix the sizes, and compilers merge equal operations.
        """
        if torch.compiler.is_compiling() or not may_keep_tensors():
            return self._make_dense(n_queries, n_keys, device)
        size = (n_queries, n_keys)
        if size not in self._dense:
            self._dense[size] = self._make_dense(n_queries, n_keys, device)
        return self._dense[size]

    def n_visible(self, n_queries: int, n_keys: int, device: torch.device) -> Tensor:
        """Return the number of keys that are allowed without the pattern, (B or 1, Q)."""
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

    def _make_dense(self, n_queries: int, n_keys: int, device: torch.device) -> Tensor | None:
        keys_K = torch.arange(n_keys, device=device)
        queries_Q = torch.arange(n_queries, device=device) + self.query_offset
        parts: list[Tensor] = []  # four axes each, the last has length K
        if self.key_lengths_B is not None:
            parts.append((keys_K < self.key_lengths_B[:, None])[:, None, None, :])
        if self.causal and n_keys > self.query_offset + 1:
            parts.append((keys_K <= queries_Q[:, None])[None, None])
        if self.segments_BN is not None:
            of_queries_BQ = self._segments_of_queries(n_queries)
            parts.append(same_document(of_queries_BQ, self.segments_BN[:, :n_keys]))
        if self.pattern is not None:
            allowed = self.pattern.allowed(queries_Q, n_keys, self.causal, self.key_lengths_B)
            if allowed is not None:
                parts.append(allowed[(None,) * (4 - allowed.dim())].expand(-1, -1, -1, n_keys))
        return functools.reduce(torch.logical_and, parts) if parts else None


def same_document(of_queries_BQ: Tensor, of_keys_BK: Tensor) -> Tensor:
    """Return which queries and keys are of one document, from its numbers, (B, 1, Q, K)."""
    return (of_queries_BQ[:, :, None] == of_keys_BK[:, None])[:, None]
