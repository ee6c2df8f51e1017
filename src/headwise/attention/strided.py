"""The strided pattern (Child et al. 2019, section 4): a window, and every stride-th position.

Axes: B batch, H heads.
"""

from __future__ import annotations

from torch import Tensor

from headwise.attention.factorised import FactorisedPattern
from headwise.ops.attention.pattern_rule import COLUMN, NO_WINDOW, POSITION, Rule


class Strided(FactorisedPattern):
    """Keys at most `stride` away, and keys a multiple of `stride` away.

    Causal: A1_i = {max(0, i - l), ..., i}, A2_i = {j <= i : (i - j) mod l = 0}. Otherwise
    both are symmetric. It suits data with a period of about the stride; for text the paper uses
    `fixed`.

    Args:
        place, stride, combine, heads, block_sparse_from: see `FactorisedPattern`; the far keys are
            called "strided".
    """

    far_name = "strided"

    def rule(self, n_positions: int, causal: bool, lengths_B: Tensor) -> Rule:
        """Return the window, and a query's column as its label."""
        windows = tuple(self.stride if near else NO_WINDOW for near in self.near_H)
        return Rule(self.stride, windows, tuple(COLUMN if far else POSITION for far in self.far_H))
