"""Weights without competition between keys, and how large a row of them may become.

Letters: B batch, H heads, Q queries, K keys.

Where a key's weight is a function of its own score, nothing holds the sum of a row: the output
grows with the number of keys unless the row is brought to a size that does not depend on it.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from headwise.attention.parts import Normaliser, ScoreContext
from headwise.attention.place import Place
from headwise.errors import refuse
from headwise.precision import full_precision

ROWS = ("sqrt", "l2", "none")
SMALLEST_NORM = 1e-9


def n_allowed(scores_BHQK: Tensor, mask: Tensor | None) -> Tensor:
    """Number of keys that each query may see, (B or 1, H or 1, Q or 1, 1), at the least 1.

    Args:
        scores_BHQK: gives the number of keys, the type and the device.
        mask: bool (B or 1, H or 1, Q or 1, K), True = may attend; None: all may.
    """
    if mask is None:
        return scores_BHQK.new_full((1, 1, 1, 1), scores_BHQK.shape[-1])
    return mask.sum(-1, keepdim=True).clamp(min=1).to(scores_BHQK.dtype)


def unit_rows(values_BHQK: Tensor) -> Tensor:
    """Rows divided by their L2 norm over keys, which counts as 1e-9 where it is smaller.

    The square is held above zero, not the root: at a row of zeros the root's slope is infinite
    and the gradient of the norm would be NaN.
    """
    squares = (values_BHQK * values_BHQK).sum(-1, keepdim=True)
    return values_BHQK / squares.clamp(min=SMALLEST_NORM**2).sqrt()


class Elementwise(Normaliser):
    """Weights that are a function of each score alone: a subclass says which, in `activate`.

    Computed in float32 (float64 for float64 scores) and cast back at the end. Masked scores are
    0 before the function and their weights are 0 after it; a query without a key gets zeros and
    zero gradients.

    Args:
        place: site, layer and sizes.
        rows: "sqrt" divides the weights by the root of the number of keys that the query may
            see; "l2" divides a row by its L2 norm over keys, of the scores or of the weights as
            `l2_acts_on` says; "none" leaves them.
    """

    is_distribution = False
    l2_acts_on: ClassVar[str] = "scores"  # or weights

    def __init__(self, place: Place, rows: str = "sqrt") -> None:
        super().__init__(place)
        if rows not in ROWS:
            raise refuse("rows", rows, ROWS)
        self.rows = rows

    def activate(self, scores_BHQK: Tensor, typical: Tensor) -> Tensor:
        """The function of each score.

        Args:
            scores_BHQK: float32 or float64, 0 where masked, rows of norm 1 if so chosen.
            typical: size of a score in a row of equal ones, broadcastable to the scores:
                1 / sqrt(number of keys) in rows of norm 1, else 1.
        """
        raise NotImplementedError

    def forward(self, scores_BHQK: Tensor, context: ScoreContext) -> Tensor:
        """Weights (B, H, Q, K), of any sign."""
        mask = context.dense_mask(scores_BHQK)
        working = full_precision(scores_BHQK)
        n_keys = n_allowed(working, mask)
        typical = torch.ones_like(n_keys)
        masked = None if mask is None else ~mask
        if masked is not None:
            working = working.masked_fill(masked, 0.0)
        if self.rows == "l2" and self.l2_acts_on == "scores":
            working, typical = unit_rows(working), n_keys.rsqrt()
        weights = self.activate(working, typical)
        if masked is not None:
            weights = weights.masked_fill(masked, 0.0)
        if self.rows == "l2" and self.l2_acts_on == "weights":
            weights = unit_rows(weights)
        elif self.rows == "sqrt":
            weights = weights * n_keys.rsqrt()
        return weights.to(scores_BHQK.dtype)
