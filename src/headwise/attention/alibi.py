"""Attention with linear biases (ALiBi, Press et al. 2022): a penalty on distance.

With a bias in half of the heads and none in the others it is NAPE (ASEntmax, arXiv 2506.16640,
section 4.2): the first see neighbours, the others any distance.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

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


def harmonic(n_heads: int) -> list[float]:
    """Return 1, 1/2, 1/3, … for n heads: also with few heads, all see more than neighbours."""
    return [1 / head for head in range(1, n_heads + 1)]


SLOPES = {"geometric": slopes, "harmonic": harmonic}


class ALiBi(Positions):
    """Subtract slope · |i - j| from the score of query i and key j; nothing is learned.

    The paper's models are causal. In an encoder the penalty is the same on both sides, so that
    heads cannot distinguish earlier positions from later ones.

    Args:
        heads: numbers of the heads that have a slope, from 1; null: all; "half": the first half.
            Other heads get no bias.
        slopes: "geometric", as in the paper, "harmonic" (1, 1/2, 1/3, …), or a list with one slope
            above 0 for each of these heads.
    """

    biases = True

    def __init__(
        self, heads: list[int] | str | None = None, slopes: list[float] | str = "geometric"
    ) -> None:
        if isinstance(heads, list):
            is_valid = bool(heads) and sorted(set(heads)) == heads and heads[0] >= 1
        else:
            is_valid = heads in (None, "half")
        require(is_valid, "heads", "null or increasing head numbers from 1, or half", heads)
        is_list = isinstance(slopes, list) and all(0 < slope < math.inf for slope in slopes)
        allowed = f"{', '.join(SLOPES)} or a list of numbers above 0"
        require(is_list or slopes in [*SLOPES], "slopes", allowed, slopes)
        self.heads, self.slopes = heads, slopes

    def at(self, place: Place) -> PlacePositions | None:
        """See `Positions.at`.

        Raises:
            ConfigError: the model has no head with such a number, or another number of heads than
                slopes.
        """
        if place.kind == "cross":
            return None
        n_heads = place.d_model // place.head_dim
        numbers = self.heads
        if not isinstance(numbers, list):
            numbers = list(range(1, (n_heads if numbers is None else (n_heads + 1) // 2) + 1))
        require(numbers[-1] <= n_heads, "positions.heads", f"at most {n_heads}", numbers[-1])
        values = self.slopes if isinstance(self.slopes, list) else SLOPES[self.slopes](len(numbers))
        fits, allowed = len(values) == len(numbers), f"one for each of {len(numbers)} heads"
        require(fits, "positions.slopes", allowed, values)
        slope_of = dict(zip(numbers, values, strict=True))
        return Slopes([slope_of.get(number, 0.0) for number in place.head_numbers])


class Slopes(PlacePositions):
    """The slopes of one place."""

    def __init__(self, slopes_H: list[float]) -> None:
        super().__init__()
        self.register_buffer("slopes_H", torch.tensor(slopes_H), persistent=False)
        self._positioned = [slope > 0 for slope in slopes_H]

    def distances(self, n_prefix: int) -> Distances:
        slopes_H: Tensor = self.get_buffer("slopes_H")
        return Distances(full_precision(slopes_H), n_prefix)

    def positioned(self, n_heads: int) -> Sequence[bool]:
        return self._positioned
