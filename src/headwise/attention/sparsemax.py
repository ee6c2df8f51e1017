"""Sparsemax in every head (Martins and Astudillo 2016): α-entmax at α = 2."""

from __future__ import annotations

from headwise.attention.normaliser import FusedNormaliser
from headwise.ops.family import Power


class Sparsemax(FusedNormaliser):
    """The Euclidean projection of the scores onto the simplex."""

    power = Power.LINEAR
