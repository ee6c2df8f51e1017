"""Base class of patterns, which restrict the keys that a query may attend to.

Axes: B batch, H heads, Q and K numbers of queries and keys, N positions.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import ClassVar

import torch
from torch import Tensor

from headwise.attention.place import Variant
from headwise.ops.attention.layout import BlockLayout
from headwise.ops.attention.pattern_rule import Rule


class Pattern(Variant):
    """A restriction of the keys in addition to padding and causality (Child et al. 2019).

    A subclass implements `rule`, from which dense masks, block layouts and the lists of GPU kernels
    follow, or `allowed` alone: then all (N, N) scores are formed and masked.

    Only self-attention can be restricted: in cross-attention, queries and keys are positions of
    different sequences, and in beam search several queries may share one row of keys.

    Attributes:
        restricts: whether it restricts anything at its place; if not, it is skipped. It must be
            False at site cross.
        block_sparse_from: minimum number of positions for which only the slots of the rule's
            layout are computed.
        max_share: largest number of slots per position; above, a layout is hardly faster.
    """

    restricts: bool = True
    block_sparse_from: int = 256
    max_share: ClassVar[float] = 0.5

    @property
    def key(self) -> Hashable:
        """Patterns with equal keys have as many heads and allow the same pairs: one mask serves."""
        return self

    def rule(self, n_positions: int, causal: bool, lengths_B: Tensor) -> Rule | None:
        """Return the pattern as a rule, or None (the default): then `allowed` is implemented.

        Args:
            n_positions: N.
            causal: whether later keys are excluded, which the rule need not do.
            lengths_B: numbers of keys before padding, int64 (B or 1,).
        """
        return None

    def allowed(
        self, query_positions_Q: Tensor, n_keys: int, causal: bool, key_lengths_B: Tensor | None
    ) -> Tensor | None:
        """Return bool broadcastable to (B, H, Q, K), True = may attend; None: no restriction.

        The caller combines it with padding and causality.
        """
        rule = self.rule(n_keys, causal, _lengths(key_lengths_B, n_keys, query_positions_Q.device))
        if rule is None:
            raise NotImplementedError(f"{type(self).__name__} needs a method `rule` or `allowed`")
        return rule.dense(query_positions_Q, n_keys)

    def layout(
        self, n_positions: int, causal: bool, key_lengths_B: Tensor | None, device: torch.device
    ) -> BlockLayout | None:
        """Return a layout that computes only allowed pairs of self-attention over all positions.

        None if there is no rule or a layout is not faster.
        """
        if n_positions < self.block_sparse_from:
            return None
        lengths_B = _lengths(key_lengths_B, n_positions, device)
        rule = self.rule(n_positions, causal, lengths_B)
        layout = rule and BlockLayout(rule, n_positions, causal, lengths_B)
        return layout if layout and layout.n_slots <= self.max_share * n_positions else None


class NoPattern(Pattern):
    """Every key that padding and causality allow may be attended to."""

    restricts = False

    def allowed(
        self, query_positions_Q: Tensor, n_keys: int, causal: bool, key_lengths_B: Tensor | None
    ) -> Tensor | None:
        """Return None: no restriction."""
        return None


def _lengths(key_lengths_B: Tensor | None, n_keys: int, device: torch.device) -> Tensor:
    if key_lengths_B is not None:
        return key_lengths_B
    return torch.full((1,), n_keys, device=device)  # a copy would wait for a GPU
