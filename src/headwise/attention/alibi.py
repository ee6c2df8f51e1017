"""Attention with linear biases (ALiBi, Press et al. 2022): a penalty on distance."""

from __future__ import annotations

import torch
from torch import Tensor

from headwise.attention.place import Place
from headwise.attention.positions import PlacePositions, Positions
from headwise.errors import require
from headwise.ops.attention.distances import Distances
from headwise.precision import full_precision


def slopes(n_heads: int) -> list[float]:
    """Return the slopes of the paper, section 3: 2^(-8/n), 2^(-16/n), … for n heads.

    If n is not a power of 2: the slopes for the next lower power p, then every second slope for 2p,
    as in the authors' code.
    """
    power = 1 << (n_heads.bit_length() - 1)
    first = [2 ** (-8 * i / power) for i in range(1, power + 1)]
    between = [2 ** (-4 * i / power) for i in range(1, 2 * power + 1, 2)]
    return first + between[: n_heads - power]


class ALiBi(Positions):
    """Subtract slope · |i - j| from the score of query i and key j; nothing is learned.

    The paper's models are causal. In an encoder the penalty is the same on both sides, so that
    heads cannot distinguish earlier positions from later ones.

    Args:
        heads: numbers of the heads that have a slope, from 1; null: all. Other heads get no bias.
    """

    biases = True

    def __init__(self, heads: list[int] | None = None) -> None:
        is_valid = heads is None or (heads and sorted(set(heads)) == heads and heads[0] >= 1)
        require(bool(is_valid), "heads", "null or increasing head numbers from 1", heads)
        self.heads = heads

    def at(self, place: Place) -> PlacePositions | None:
        """See `Positions.at`.

        Raises:
            ConfigError: the model has no head with such a number.
        """
        if place.kind == "cross":
            return None
        n_heads = place.d_model // place.head_dim
        numbers = self.heads if self.heads is not None else list(range(1, n_heads + 1))
        require(numbers[-1] <= n_heads, "positions.heads", f"at most {n_heads}", numbers[-1])
        slope_of = dict(zip(numbers, slopes(len(numbers)), strict=True))
        return Slopes([slope_of.get(number, 0.0) for number in place.head_numbers])


class Slopes(PlacePositions):
    """The slopes of one place."""

    def __init__(self, slopes_H: list[float]) -> None:
        super().__init__()
        self.register_buffer("slopes_H", torch.tensor(slopes_H), persistent=False)

    def distances(self, n_prefix: int) -> Distances:
        slopes_H: Tensor = self.get_buffer("slopes_H")
        return Distances(full_precision(slopes_H), n_prefix)
