"""Draws of dropout by a counter: which weights or entries a seed drops."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


def draw_seed(generator: torch.Generator | None = None) -> Tensor:
    """Draw a seed for `Draws` from a CPU generator; None: torch's own."""
    return torch.randint(1 << 62, (), dtype=torch.int64, device="cpu", generator=generator)


N_DRAWS = 1 << 32  # number of equally likely draws per weight


@dataclass(frozen=True)
class Draws:
    """Dropout by a counter-based generator, so that draws can be repeated.

    Attributes:
        seed: determines the draws, together with the indices of row and key, or of the entry.
        rate: share of weights or entries to drop, with a resolution of 2^-32.
    """

    seed: int
    rate: float

    @property
    def n_kept(self) -> int:
        """How many of the `N_DRAWS` draws keep a weight: at least 1, at most all but 1."""
        return min(max(round((1 - self.rate) * N_DRAWS), 1), N_DRAWS - 1)
