"""Rotary positions (Su et al. 2021): a score depends on the distance of query and key.

Axes: B batch, H heads, N positions, E head width.
"""

from __future__ import annotations

import torch
from torch import Tensor

from headwise.attention.place import Place
from headwise.attention.positions import PlacePositions, Positions
from headwise.errors import require
from headwise.precision import full_precision


class Rotary(Positions):
    """Rotates queries and keys, not values, by their position.

    Entry i of the first half of a head and entry i of the second half are rotated by the angle
    p · base^(-2i / E) at position p. (Su et al. 2021, equation 34, pairs adjacent entries, which
    is equivalent up to the order of the learned projections.)

    Args:
        base: base of the angles; with a larger base, the angles grow more slowly.
    """

    rotates = True

    def __init__(self, base: float = 10000.0) -> None:
        require(base > 1, "base", "above 1", base)
        self.base = base

    def at(self, place: Place) -> PlacePositions | None:
        """See `Positions.at`.

        Raises:
            ConfigError: the head width is odd.
        """
        if place.kind == "cross":
            return None
        is_even = place.key_dim % 2 == 0
        allowed = "such that the head width is even with positions=rotary"
        key = "model.n_heads" if place.qk_dim is None else "model.qk_width"
        require(is_even, key, allowed, f"head width {place.key_dim}")
        return Rotation(place.key_dim, self.base)


class Rotation(PlacePositions):
    """The angles of one place."""

    def __init__(self, head_dim: int, base: float) -> None:
        super().__init__()
        frequency_E = base ** (-torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
        self.register_buffer("frequency_E", frequency_E, persistent=False)  # E/2 frequencies

    def rotated(self, states_BHNE: Tensor, first: int) -> Tensor:
        """See `PlacePositions.rotated`; computed in at least float32."""
        frequency_E = self.get_buffer("frequency_E")
        end = first + states_BHNE.shape[2]
        positions_N = torch.arange(first, end, device=frequency_E.device).clamp(min=0)
        angle_NE = positions_N[:, None] * frequency_E
        cos_NE, sin_NE = angle_NE.cos(), angle_NE.sin()
        left, right = full_precision(states_BHNE).chunk(2, dim=-1)
        rotated_halves = (left * cos_NE - right * sin_NE, left * sin_NE + right * cos_NE)
        return torch.cat(rotated_halves, dim=-1).to(states_BHNE.dtype)
