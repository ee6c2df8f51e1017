"""Elementwise weights, and the scale of their rows.

Axes: B batch, H heads, Q queries, K keys.

If the weight of a key is a function of its own score only, the sum of a row is not fixed: the
output grows with the number of keys unless rows are rescaled.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from headwise.attention.normaliser import Normaliser, ScoreContext
from headwise.attention.place import Place
from headwise.errors import refuse
from headwise.precision import full_precision

ROWS = ("sqrt", "l2", "none")
MIN_NORM = 1e-9


def n_allowed(scores_BHQK: Tensor, mask: Tensor | None) -> Tensor:
    """Return the number of keys of each query, (B or 1, H or 1, Q or 1, 1), at least 1.

    Args:
        scores_BHQK: determines K, dtype and device.
        mask: bool (B or 1, H or 1, Q or 1, K), True = may attend; None: all allowed.
    """
    if mask is None:
        return scores_BHQK.new_full((1, 1, 1, 1), scores_BHQK.shape[-1])
    return mask.sum(-1, keepdim=True).clamp(min=1).to(scores_BHQK.dtype)


def unit_rows(values_BHQK: Tensor) -> Tensor:
    """Divide rows by their L2 norm over keys, clamped to at least 1e-9.

    The square is clamped, not the root: the derivative of the root is infinite at 0, so the
    gradient of a row of zeros would be NaN.
    """
    squares = (values_BHQK * values_BHQK).sum(-1, keepdim=True)
    return values_BHQK / squares.clamp(min=MIN_NORM**2).sqrt()


class Elementwise(Normaliser):
    """Weights that are a function of each score: subclasses define `activate`.

    Computed in float32 (float64 for float64 scores) and cast back at the end. Masked scores and
    their weights are set to 0; a query without a key gets zeros and zero gradients.

    Args:
        place: site, layer and sizes.
        rows: "sqrt" divides the weights by the square root of the number of keys of the query;
            "l2" divides a row of scores or weights (see `l2_acts_on`) by its L2 norm over keys;
            "none" does not rescale.

    Attributes:
        l2_acts_on: scores or weights.
    """

    is_distribution = False
    l2_acts_on: ClassVar[str] = "scores"

    def __init__(self, place: Place, rows: str = "sqrt") -> None:
        super().__init__(place)
        if rows not in ROWS:
            raise refuse("rows", rows, ROWS)
        self.rows = rows

    def activate(self, scores_BHQK: Tensor, typical_size: Tensor) -> Tensor:
        """Return the function of each score.

        Args:
            scores_BHQK: float32 or float64, 0 where masked; rows have norm 1 if "l2" acts on them.
            typical_size: typical size of a score, broadcastable to the scores: in rows of norm 1
                1 / sqrt(number of keys), else 1.
        """
        raise NotImplementedError

    def forward(self, scores_BHQK: Tensor, context: ScoreContext) -> Tensor:
        """Return weights (B, H, Q, K), of any sign."""
        mask = context.dense_mask(scores_BHQK)
        working = full_precision(scores_BHQK)
        n_keys = n_allowed(working, mask)
        typical_size = torch.ones_like(n_keys)
        masked = None if mask is None else ~mask
        if masked is not None:
            working = working.masked_fill(masked, 0.0)
        if self.rows == "l2" and self.l2_acts_on == "scores":
            working, typical_size = unit_rows(working), n_keys.rsqrt()
        weights = self.activate(working, typical_size)
        if masked is not None:
            weights = weights.masked_fill(masked, 0.0)
        if self.rows == "l2" and self.l2_acts_on == "weights":
            weights = unit_rows(weights)
        elif self.rows == "sqrt":
            weights = weights * n_keys.rsqrt()
        return weights.to(scores_BHQK.dtype)
