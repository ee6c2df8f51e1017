"""Activations of the YUBERT note other than softmax and ymish.

They have no yaml, because the note proposes no model in which every head is unnormalised.
`headwise.attention.mixed` selects them by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch.nn import functional

from headwise.attention.elementwise import Elementwise
from headwise.attention.place import Place
from headwise.errors import refuse


def _leaky_relu(scores: Tensor) -> Tensor:
    return functional.leaky_relu(scores, negative_slope=0.1)


ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "selu": torch.selu,  # lambda 1.0507009873554805, alpha 1.6732632423543772
    "elu": functional.elu,  # alpha 1
    "leaky_relu": _leaky_relu,
    "swish": functional.silu,  # x * sigmoid(x)
}


class Activation(Elementwise):
    """One of `ACTIVATIONS` of the scaled scores.

    Args:
        place: site, layer and sizes.
        name: key of `ACTIVATIONS`.
        rows: as in `Elementwise`. "l2" first divides the scores by their norm; nearly all are then
            so small that these functions are almost linear, with one slope per sign.
    """

    def __init__(self, place: Place, name: str, rows: str = "sqrt") -> None:
        super().__init__(place, rows)
        if name not in ACTIVATIONS:
            raise refuse("name", name, ACTIVATIONS)
        self.name = name

    def activate(self, scores_BHQK: Tensor, typical_size: Tensor) -> Tensor:
        """Apply the activation to every score."""
        return ACTIVATIONS[self.name](scores_BHQK)
