"""The entmax family: maps from scores to sparse or dense weights, and their losses.

It has the names, positions and defaults of the `entmax` package: changing the import is all.
"""

from __future__ import annotations

from headwise.entmax.losses import (
    entmax15_loss,
    entmax_bisect_loss,
    entmax_loss,
    normmax_bisect_loss,
    sparsemax_bisect_loss,
    sparsemax_loss,
)
from headwise.entmax.maps import (
    alpha_entmax,
    budget_bisect,
    entmax15,
    entmax_bisect,
    normmax_bisect,
    softmax,
    sparsemax,
    sparsemax_bisect,
)
from headwise.entmax.modules import (
    BudgetBisect,
    Entmax15,
    Entmax15Loss,
    EntmaxBisect,
    EntmaxBisectLoss,
    NormmaxBisect,
    NormmaxBisectLoss,
    Sparsemax,
    SparsemaxBisect,
    SparsemaxBisectLoss,
    SparsemaxLoss,
)

__all__ = [
    "BudgetBisect", "Entmax15", "Entmax15Loss", "EntmaxBisect", "EntmaxBisectLoss",
    "NormmaxBisect", "NormmaxBisectLoss", "Sparsemax", "SparsemaxBisect", "SparsemaxBisectLoss",
    "SparsemaxLoss", "alpha_entmax", "budget_bisect", "entmax15", "entmax15_loss",
    "entmax_bisect", "entmax_bisect_loss", "entmax_loss", "normmax_bisect", "normmax_bisect_loss",
    "softmax", "sparsemax", "sparsemax_bisect", "sparsemax_bisect_loss", "sparsemax_loss",
]  # fmt: skip
