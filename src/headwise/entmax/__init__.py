"""The entmax family: maps from scores to sparse or dense weights, and their losses."""

from __future__ import annotations

from headwise.entmax.losses import entmax15_loss, entmax_loss, sparsemax_loss
from headwise.entmax.maps import alpha_entmax, entmax15, softmax, sparsemax

__all__ = [
    "alpha_entmax",
    "entmax15",
    "entmax15_loss",
    "entmax_loss",
    "softmax",
    "sparsemax",
    "sparsemax_loss",
]
