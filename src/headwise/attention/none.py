"""The pattern that restricts nothing. Others stand beside it, one file and one yaml each."""

from __future__ import annotations

from torch import Tensor

from headwise.attention.base import Pattern


class NoPattern(Pattern):
    """Every key that padding and causality leave may be attended to."""

    restricts = False

    def allowed(self, query_positions_Q: Tensor, n_keys: int, causal: bool) -> Tensor | None:
        """None: no restriction."""
        return None
