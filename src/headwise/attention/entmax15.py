"""1.5-entmax in every head (Peters et al. 2019; the fixed row of Correia et al. 2019, table 1)."""

from __future__ import annotations

from headwise.attention.normaliser import FusedNormaliser
from headwise.ops.family import Power


class Entmax15(FusedNormaliser):
    """Sparse weights with a fixed α of 1.5."""

    power = Power.SQUARE
