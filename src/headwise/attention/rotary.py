"""Rotary positions (Su et al. 2021): a score depends on the distance of query and key.

Letters: B batch, H heads, N positions, E head width.
"""

from __future__ import annotations

import torch
from torch import Tensor

from headwise.attention.place import Place
from headwise.attention.positions import PlacePositions, Positions
from headwise.errors import require
from headwise.precision import full_precision


class Rotary(Positions):
    """Queries and keys are rotated by their position, values are not.

    Entry i of the first half of a head and entry i of the second are the coordinates of a point,
    which position p turns by the angle p · base^(-2i / E). (Su et al. 2021, equation 34, takes
    neighbouring entries; for learned projections that is the same up to their order.)

    Args:
        base: of the angles; a larger one turns slower.
    """

    rotates = True

    def __init__(self, base: float = 10000.0) -> None:
        require(base > 1, "base", "above 1", base)
        self.base = base

    def at(self, place: Place) -> PlacePositions | None:
        """See `Positions.at`.

        Raises:
            ConfigError: heads of odd width.
        """
        if place.kind == "cross":
            return None
        even = place.head_dim % 2 == 0
        allowed = "such that heads have an even width with positions=rotary"
        require(even, "model.n_heads", allowed, f"heads of width {place.head_dim}")
        return Rotation(place.head_dim, self.base)


class Rotation(PlacePositions):
    """The angles of one place."""

    def __init__(self, head_dim: int, base: float) -> None:
        super().__init__()
        rate_E = base ** (-torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
        self.register_buffer("rate_E", rate_E, persistent=False)  # E/2 of them

    def rotated(self, states_BHNE: Tensor, first: int) -> Tensor:
        """See `PlacePositions.rotated`; computed in float32 or wider, given back in the type."""
        rate_E = self.get_buffer("rate_E")
        end = first + states_BHNE.shape[2]
        positions_N = torch.arange(first, end, device=rate_E.device).clamp(min=0)
        angle_NE = positions_N[:, None] * rate_E
        cos_NE, sin_NE = angle_NE.cos(), angle_NE.sin()
        left, right = full_precision(states_BHNE).chunk(2, dim=-1)
        turned = (left * cos_NE - right * sin_NE, left * sin_NE + right * cos_NE)
        return torch.cat(turned, dim=-1).to(states_BHNE.dtype)
