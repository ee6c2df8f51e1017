"""How much the heads of a layer disagree (Correia et al. 2019, section 5).

Axes: B batch, H heads, Q queries, K keys.
"""

from __future__ import annotations

import torch
from torch import Tensor


def as_distributions(weights_BHQK: Tensor) -> tuple[Tensor, Tensor]:
    """Return |w| / Σ |w| of every row; distributions are unchanged.

    Returns:
        The rows (B, H, Q, K), and a mask (B, H, Q) that is False at rows of zeros.
    """
    magnitude_BHQK = weights_BHQK.abs()
    total_BHQ = magnitude_BHQK.sum(-1)
    exists_BHQ = total_BHQ != 0  # True for NaN, which propagates
    return magnitude_BHQK / total_BHQ.where(exists_BHQ, 1.0)[..., None], exists_BHQ


def entropies(rows_BHQK: Tensor) -> Tensor:
    """Return the Shannon entropy -Σ p ln p of every row in nats, (B, H, Q)."""
    entropy_BHQ: Tensor = torch.special.entr(rows_BHQK).sum(-1)
    return entropy_BHQ


def jensen_shannon(rows_BHQK: Tensor, n_keys_BQ: Tensor, base: str = "heads") -> Tensor:
    """Return the generalised Jensen-Shannon divergence of the heads' rows, (B, Q), between 0 and 1.

        JS = S(Σ_h p_h / H) - Σ_h S(p_h) / H

    Args:
        rows_BHQK: distributions over keys, of at least two heads.
        n_keys_BQ: number of keys visible to any head.
        base: of the logarithm. "keys" uses `n_keys_BQ`, the dimension of p, as the paper does.
            "heads" uses H, a tighter bound: heads that share no key give 1 for any number of keys.
    """
    mixture_B1QK = rows_BHQK.mean(1, keepdim=True)
    disagreement_BQ = entropies(mixture_B1QK)[:, 0] - entropies(rows_BHQK).mean(1)
    n_heads = rows_BHQK.shape[1]
    # with a single key the divergence is 0; avoid log 1
    n_BQ = torch.full_like(n_keys_BQ, n_heads) if base == "heads" else n_keys_BQ.clamp(min=2)
    return disagreement_BQ.clamp(min=0) / n_BQ.to(disagreement_BQ.dtype).log()
