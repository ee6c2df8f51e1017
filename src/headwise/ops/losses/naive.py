"""The entmax loss as its papers define it, to be read; the tests compare it with the kernels."""

from __future__ import annotations

from torch import Tensor

from headwise.ops.maps.naive import alpha_entmax


def entmax_loss(scores: Tensor, target: Tensor, alpha: float) -> Tensor:
    """Return L = <p - e_y, z> + H_α(p), p = α-entmax(z), of rows (..., V) (Peters et al. 2019).

    H_α(p) = Σ (p - p^α) / (α (α - 1)) is the Tsallis entropy. Blondel et al. 2020 call L a
    Fenchel-Young loss; its gradient is p - e_y, so that p counts as a constant here.

    Args:
        scores: z, float64.
        target: y, gold classes (...).
        alpha: above 1.
    """
    p = alpha_entmax(scores, alpha).detach()
    entropy = (p - p.pow(alpha)).sum(-1) / (alpha * (alpha - 1))
    return (p * scores).sum(-1) - scores.gather(-1, target[..., None])[..., 0] + entropy
