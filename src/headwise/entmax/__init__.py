"""The entmax family: sparse and dense maps from scores to weights that sum to one."""

from __future__ import annotations

from headwise.entmax.maps import alpha_entmax, entmax15, softmax, sparsemax

__all__ = ["alpha_entmax", "entmax15", "softmax", "sparsemax"]
