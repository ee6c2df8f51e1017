"""The defaults of the groups pattern and scaling: no restriction, no scaling."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from headwise.attention.normaliser import Scaling
from headwise.attention.pattern import Pattern


class NoPattern(Pattern):
    """Every key that padding and causality allow may be attended to."""

    restricts = False

    def allowed(
        self, query_positions_Q: Tensor, n_keys: int, causal: bool, key_lengths_B: Tensor | None
    ) -> Tensor | None:
        """Return None: no restriction."""
        return None


class NoScaling(Scaling):
    """Scores are the scaled dot products of Vaswani et al. (2017)."""

    scales = False

    @classmethod
    def unlearned(cls, settings: Mapping[str, Any]) -> Mapping[str, Any]:
        return settings
