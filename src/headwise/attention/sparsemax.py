"""Sparsemax in every head (Martins and Astudillo 2016): α-entmax at α = 2."""

from __future__ import annotations

from torch import Tensor

from headwise import entmax
from headwise.attention.fused import FusedNormaliser
from headwise.attention.parts import ScoreContext
from headwise.kernels.problem import Power


class Sparsemax(FusedNormaliser):
    """The Euclidean projection of the scores onto the simplex."""

    power = Power.LINEAR

    def forward(self, scores_BHQK: Tensor, context: ScoreContext) -> Tensor:
        """Weights (B, H, Q, K) with exact zeros."""
        return entmax.sparsemax(scores_BHQK, dim=-1, mask=context.dense_mask(scores_BHQK))
