"""Base class of patterns, which restrict the keys that a query may attend to.

Axes: B batch, H heads, Q and K numbers of queries and keys, N positions.
"""

from __future__ import annotations

from collections.abc import Hashable

import torch
from torch import Tensor

from headwise.attention.place import Variant
from headwise.ops.attention.layout import BlockLayout


class Pattern(Variant):
    """A restriction of the keys in addition to padding and causality (Child et al. 2019).

    Only self-attention can be restricted: in cross-attention, queries and keys are positions of
    different sequences, and in beam search several queries may share one row of keys.

    Attributes:
        restricts: whether it restricts anything at its place; if not, it is skipped. It must be
            False at site cross.
    """

    restricts: bool = True

    @property
    def key(self) -> Hashable:
        """Patterns with equal keys allow the same pairs, so that layers can share one mask."""
        return self

    def allowed(
        self, query_positions_Q: Tensor, n_keys: int, causal: bool, key_lengths_B: Tensor | None
    ) -> Tensor | None:
        """Return bool broadcastable to (B, H, Q, K), True = may attend; None: no restriction.

        The caller combines it with padding and causality.
        """
        raise NotImplementedError

    def layout(
        self, n_positions: int, causal: bool, key_lengths_B: Tensor | None, device: torch.device
    ) -> BlockLayout | None:
        """Return a layout that computes only allowed pairs of self-attention over all positions.

        None (the default) if there is none or it is not faster: then all (N, N) scores are
        formed and masked. A layout allows the same pairs as `allowed`, padding and causality.
        """
        return None
