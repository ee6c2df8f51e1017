"""ymish (YUBERT note): scores near 0 are damped, large ones keep size and sign.

The note gives the step before it, scores divided by their L2 norm over keys, and what it is
for: keys of the background should matter less, positive and negative scores stay as they are,
gradients do not vanish. It does not define the function, and no other source of it is known. What
stands here is a **reconstruction**: mish, x · tanh(softplus(x)), made odd.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import softplus

from headwise.attention.place import Place
from headwise.attention.rows import Elementwise
from headwise.errors import require


def ymish(scores: Tensor) -> Tensor:
    """Tensor of x · tanh(softplus(|x|)): odd, slope 0.6 at 0, at the most 1.0885, and 1 far out."""
    return scores * torch.tanh(softplus(scores.abs()))


def ymish_dead_zone(scores: Tensor, typical: Tensor, kappa: float, theta: float) -> Tensor:
    """Tensor of x · tanh(softplus(kappa · (|x| / typical - theta))): next to nothing below theta.

    In rows of norm 1 `typical` is 1 / sqrt(number of keys). There |x| is mostly so small that
    plain ymish damps all keys alike, by 0.6, and only this tells the background apart.
    """
    return scores * torch.tanh(softplus(kappa * (scores.abs() / typical - theta)))


class Ymish(Elementwise):
    """ymish of the scores; see the module for what is the note's and what is ours.

    Args:
        place: site, layer and sizes.
        rows: "l2" (the note) divides the scores by their L2 norm over keys first; "sqrt" divides
            the weights by the root of the number of keys the query may see; "none" leaves them.
            The note adds 1e-9 to the quotient, where it protects from nothing; here the norm is
            held above 1e-9 instead.
        dead_zone: damp by the distance from a threshold (ours, not the note's).
        kappa: how steeply the damping ends at the edge of the dead zone, above 0.
        theta: its edge, in typical sizes of a score (see `ymish_dead_zone`), from 0 on.
    """

    def __init__(
        self,
        place: Place,
        rows: str = "l2",
        dead_zone: bool = False,
        kappa: float = 4.0,
        theta: float = 1.0,
    ) -> None:
        super().__init__(place, rows)
        require(0 < kappa < math.inf, "kappa", "above 0", kappa)
        require(0 <= theta < math.inf, "theta", "0 or more", theta)
        self.dead_zone = dead_zone
        self.kappa = float(kappa)
        self.theta = float(theta)

    def activate(self, scores_BHQK: Tensor, typical: Tensor) -> Tensor:
        """Weights of the sign of their scores."""
        if self.dead_zone:
            return ymish_dead_zone(scores_BHQK, typical, self.kappa, self.theta)
        return ymish(scores_BHQK)
