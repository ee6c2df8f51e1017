"""The entmax losses over a vocabulary in plain torch (Peters et al. 2019; Blondel et al. 2020).

    L = <p - e_y, z> + H_α(p),   p = α-entmax(z),   dL/dz = p - e_y
    H_α(p) = Σ (p - p^α) / (α (α - 1)),   -Σ p ln p as α falls to 1

With β = α - 1, the largest score z_max and its probability p_max, p^β = p_max^β - β (z_max - z) on
the support, so that the values need neither p^α nor ln p of other classes:

    <p, z> + H_α(p) - z_max = (1 - p_max^β) / (αβ) - β <p, z_max - z> / α,   -ln p_max at α = 1

Axes: N rows, V classes, C candidates (classes that may have p > 0).
"""

from __future__ import annotations

import torch
from torch import Tensor

from headwise.ops.maps import reference as maps
from headwise.precision import unique_indices


def read(
    scores_NV: Tensor, alpha: float, with_total: bool
) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
    """Return per row: <p, z> + H(p), support size, sum of the scores or None, (maximum, 0) (N, 2).

    z are the scores minus their maximum. Results are float32, float64 for float64 scores.

    Args:
        scores_NV: floating-point; a class with score -inf is ignored.
        alpha: in [1, 2]; 1 is cross-entropy, 2 the sparsemax loss.
        with_total: whether to return the sums.
    """
    z_NV, top_N1 = _shifted(scores_NV)
    _, value_N, support_N = _values(z_NV, alpha)
    total_N = scores_NV.sum(1, dtype=z_NV.dtype) if with_total else None
    return value_N, support_N, total_N, torch.cat([top_N1, torch.zeros_like(top_N1)], 1)


def write_gradient(
    scores_NV: Tensor,
    threshold_N2: Tensor,
    out_NV: Tensor,
    scale_N: Tensor,
    target_N: Tensor,
    alpha: float,
    smoothing: float,
    eps_v: float,
) -> None:
    """Write the gradient of the rows' losses, p - (1 - ε) e_y - ε/V, times the scale of each row.

    Arguments as for `headwise.ops.losses.cpu.write_gradient`; p is solved again.
    """
    gradient_NV, *_ = _values(_shifted(scores_NV)[0], alpha)
    gradient_NV -= eps_v
    gold_N1 = gradient_NV.new_full((len(gradient_NV), 1), smoothing - 1)
    with unique_indices():
        gradient_NV.scatter_add_(1, target_N[:, None], gold_N1)
    out_NV.copy_(gradient_NV.mul_(scale_N[:, None]))


def _shifted(scores_NV: Tensor) -> tuple[Tensor, Tensor]:
    """Return scores minus the maximum of their row, at least float32, and the maxima (N, 1)."""
    scores_NV = scores_NV.to(torch.promote_types(scores_NV.dtype, torch.float32))
    top_N1 = scores_NV.amax(1, keepdim=True)
    return scores_NV - top_N1.clamp_min(torch.finfo(top_N1.dtype).min), top_N1


@unique_indices()
def _values(z_NV: Tensor, alpha: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return p, <p, z> + H_α(p), and the support size, of rows with maximum 0.

    p_i > 0 needs (α - 1) z_i > -1. On a CPU these classes alone are solved if they are few, packed
    into rows of equal length.
    """
    if alpha == 1:
        log_total_N1 = z_NV.logsumexp(1, keepdim=True)
        p_NV = (z_NV - log_total_N1).exp()
        return p_NV, log_total_N1[:, 0], p_NV.sign().sum(1)
    is_candidate_NV = z_NV * (alpha - 1) > -1
    if z_NV.device.type != "cpu" or 4 * int(is_candidate_NV.count_nonzero()) >= z_NV.numel():
        return _solve(z_NV, alpha)
    row, column = is_candidate_NV.nonzero(as_tuple=True)
    n_N = torch.bincount(row, minlength=len(z_NV))
    slot = torch.arange(len(row)) - (n_N.cumsum(0) - n_N)[row]
    z_NC = z_NV.new_full((len(z_NV), max(1, int(n_N.max()))), -torch.inf)
    z_NC[row, slot] = z_NV[row, column]
    p_NC, value_N, support_N = _solve(z_NC, alpha)
    p_NV = torch.zeros_like(z_NV)
    p_NV[row, column] = p_NC[row, slot]
    return p_NV, value_N, support_N


def _solve(z_NC: Tensor, alpha: float) -> tuple[Tensor, Tensor, Tensor]:
    p_NC, beta = maps.weights(z_NC, alpha), alpha - 1
    # a class with score -inf has p = 0, and 0 · inf would be NaN
    mean_N = torch.linalg.vecdot(p_NC, z_NC.clamp_min(torch.finfo(z_NC.dtype).min))
    shift_N = -(p_NC.amax(1).log() * beta).expm1()  # 1 - p_max^β without cancellation
    return p_NC, (shift_N / beta + mean_N * beta) / alpha, p_NC.sign().sum(1)
