"""ymish (YUBERT note): damps scores near 0; large ones keep size and sign.

The note gives the preceding step, scores divided by their L2 norm over keys, and the aims:
background keys should matter less, positive and negative scores keep their values, gradients do
not vanish. It does not define the function, and we know no other source. This is a
**reconstruction**: mish, x · tanh(softplus(x)), made odd.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import softplus

from headwise.attention.elementwise import Elementwise
from headwise.attention.place import Place
from headwise.errors import require


def ymish(scores: Tensor) -> Tensor:
    """Return x · tanh(softplus(|x|)): odd, with slope 0.6 at 0, at most 1.0885, tending to 1."""
    return scores * torch.tanh(softplus(scores.abs()))


def ymish_dead_zone(scores: Tensor, typical_size: Tensor, kappa: float, theta: float) -> Tensor:
    """Return x · tanh(softplus(kappa · (|x| / typical_size - theta))), almost 0 below theta.

    In rows of norm 1 `typical_size` is 1 / sqrt(number of keys), and |x| is mostly so small that
    plain ymish multiplies all keys by 0.6; only the dead zone separates the background.
    """
    return scores * torch.tanh(softplus(kappa * (scores.abs() / typical_size - theta)))


class Ymish(Elementwise):
    """ymish of the scores; see the module docstring for its relation to the note.

    Args:
        place: site, layer and sizes.
        rows: "l2" (the note) first divides the scores by their L2 norm over keys; "sqrt" divides
            the weights by the square root of the number of keys of the query; "none" does not
            rescale. The note adds 1e-9 to the quotient, which does not prevent a division by 0;
            here the norm is clamped to at least 1e-9.
        dead_zone: damp scores below a threshold (not in the note).
        kappa: steepness at the edge of the dead zone, above 0.
        theta: edge of the dead zone, in typical sizes of a score (see `ymish_dead_zone`), >= 0.
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

    def activate(self, scores_BHQK: Tensor, typical_size: Tensor) -> Tensor:
        """Return weights with the signs of their scores."""
        if self.dead_zone:
            return ymish_dead_zone(scores_BHQK, typical_size, self.kappa, self.theta)
        return ymish(scores_BHQK)
