"""Which keys may be attended to in a model: `Visible` with a pattern, and caches.

Axes: B batch, H heads, Q and K numbers of queries and keys, N positions of a self-attention.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import KW_ONLY, dataclass, field, replace

import torch
from torch import Tensor

from headwise.attention.pattern import Pattern
from headwise.compilation import may_keep_tensors
from headwise.ops.attention.layout import BlockLayout
from headwise.ops.visible import Visible


@dataclass(frozen=True)
class Mask(Visible):
    """Which keys may be attended to, as a small structure.

    Fused and block-sparse code reads the fields; the dense form is built on demand.

    Attributes:
        pattern: a further restriction, or None.
        n_prefix: number of CLS tokens at the start, which have no position. Documents cannot be
            combined with them.
    """

    pattern: Pattern | None = None
    _: KW_ONLY
    n_prefix: int = 0
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
    def has_pattern(self) -> bool:
        """Whether there is a pattern."""
        return self.pattern is not None

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
            return super().dense(n_queries, n_keys, device)
        size = (n_queries, n_keys)
        if size not in self._dense:
            self._dense[size] = super().dense(n_queries, n_keys, device)
        return self._dense[size]

    def _masks(self, n_queries: int, n_keys: int, device: torch.device) -> list[Tensor]:
        masks = super()._masks(n_queries, n_keys, device)
        if self.pattern is not None:
            queries_Q = torch.arange(n_queries, device=device) + self.query_offset
            allowed = self.pattern.allowed(queries_Q, n_keys, self.causal, self.key_lengths_B)
            if allowed is not None:
                masks.append(allowed[(None,) * (4 - allowed.dim())].expand(-1, -1, -1, n_keys))
        return masks
