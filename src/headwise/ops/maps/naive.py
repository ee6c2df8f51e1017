"""α-entmax as its papers define it, to be read; the tests compare it with all that computes it."""

from __future__ import annotations

import torch
from torch import Tensor


def alpha_entmax(scores: Tensor, alpha: float, n_steps: int = 50) -> Tensor:
    """Return p = [(α - 1) z - τ]_+^(1 / (α - 1)) along the last axis (..., K), with Σ p = 1.

    It is the solution of argmax <p, z> + H_α(p) with the Tsallis entropy H_α (Peters et al. 2019).
    It tends to softmax as α falls to 1, and is sparsemax for α = 2.

    Args:
        scores: z, float64.
        alpha: above 1.
        n_steps: bisections of an interval that holds τ: Σ p falls with τ.
    """
    z = (alpha - 1) * scores
    low = z.amax(-1, keepdim=True) - 1  # here the largest p alone is 1
    high = low + 1  # here all p are 0
    for _ in range(n_steps):
        tau = (low + high) / 2
        total = (z - tau).clamp_min(0).pow(1 / (alpha - 1)).sum(-1, keepdim=True)
        low, high = torch.where(total > 1, tau, low), torch.where(total > 1, high, tau)
    p = (z - low).clamp_min(0).pow(1 / (alpha - 1))
    return p / p.sum(-1, keepdim=True)
