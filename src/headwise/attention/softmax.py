"""Softmax, the dense baseline (Vaswani et al. 2017, eq. 1)."""

from __future__ import annotations

from headwise.attention.normaliser import FusedNormaliser
from headwise.ops.family import Power


class Softmax(FusedNormaliser):
    """Dense weights: every key has a positive weight."""

    power = Power.EXP
