"""The maps of the α-entmax family and their gradients in plain torch.

With β = α - 1 and b_i = β (z_max - z_i) ≥ 0, the weights of a row of scores z are

    x_i = [1 - t - b_i]_+      p_i = x_i^(1/β)      s_i = p_i / x_i = p_i^(2-α)

for the unique shift t in [0, 1) with Σ p_i = 1 (Peters et al. 2019, with τ = β z_max + t - 1). As α
falls to 1, t/β tends to logsumexp(z) - z_max and p to softmax, so α near 1 needs no branch. With a
gradient dp of the weights and y_i = -β ln p_i,

    c    = Σ s dp / Σ s
    dz_i = s_i (dp_i - c)                                 (Peters et al. 2019)
    dα   = -Σ p_i ψ_i (dp_i - c),   ψ = (exp(y) - 1 - y) / β²,   ½ ln² p as α falls to 1

The last line equals the proposition of Correia et al. 2019, but avoids its difference of large
numbers, which loses precision as 1/β².

Axes: R rows, K keys.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import torch
from torch import Tensor

from headwise.ops.family import BETA_MIN

N_STEPS = {torch.float32: 16, torch.float64: 20}  # of Newton; enough for adversarial rows
N_TERMS = {torch.float32: 9, torch.float64: 18}  # of the series of ψ
BETA_SERIES = 0.1  # below, the difference in ψ cancels
CHUNK = 1 << 18  # scores at a time on a CPU: temporaries stay in its caches


def weights(scores: Tensor, alpha: Tensor | float, mask: Tensor | None = None) -> Tensor:
    """Return the weights along the last axis, which sum to 1; a row without a key is 0.

    Args:
        scores: (..., K), float32 or float64; -inf counts as masked.
        alpha: in [1, 2]: a number, or a tensor that broadcasts to (..., 1).
        mask: bool, broadcastable to the scores, True = may attend.
    """
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf)
    fixed = None if isinstance(alpha, Tensor) else alpha
    if fixed == 1:
        is_empty = (scores == -math.inf).all(-1, keepdim=True)
        return scores.softmax(-1).masked_fill(is_empty, 0.0)
    if not scores.numel():
        return torch.zeros_like(scores)
    solve = functools.partial(_solve, fixed=fixed)
    (p_RK,) = _in_chunks(solve, scores, _beta_of(alpha, scores))
    return p_RK.view(scores.shape)


def gradients(
    p: Tensor, grad: Tensor, alpha: Tensor | float, with_alpha: bool
) -> tuple[Tensor, Tensor | None]:
    """Return the gradients of the scores (..., K) and, if requested, of α per row (..., 1).

    Args:
        p: the weights.
        grad: the gradient of the weights.
        alpha: as for `weights`.
        with_alpha: whether to compute the gradient of α.
    """
    if not p.numel():
        return torch.zeros_like(p), p.new_zeros((*p.shape[:-1], 1)) if with_alpha else None
    fixed = None if isinstance(alpha, Tensor) else alpha
    if fixed == 1:
        return p * (grad - (p * grad).sum(-1, keepdim=True)), None
    differentiate = functools.partial(_gradients_of_rows, fixed=fixed, with_alpha=with_alpha)
    grad_RK, *rest = _in_chunks(differentiate, p, grad, _beta_of(alpha, p))
    return grad_RK.view(p.shape), rest[0].view(*p.shape[:-1], 1) if with_alpha else None


def _beta_of(alpha: Tensor | float, rows: Tensor) -> Tensor:
    """Return α - 1 of every row, (..., 1), clamped to where every formula is finite."""
    beta = alpha - 1 if isinstance(alpha, Tensor) else rows.new_full((1,), alpha - 1)
    return beta.to(rows.dtype).clamp(BETA_MIN, 1.0).expand(*rows.shape[:-1], 1)


def _in_chunks(compute: Callable[..., tuple[Tensor, ...]], *rows: Tensor) -> list[Tensor]:
    """Return the results of rows (..., K) as (R, K), computed for some rows at a time on a CPU."""
    n_keys = rows[0].shape[-1]
    flat = [values.reshape(-1, values.shape[-1]) for values in rows]
    n = max(1, CHUNK // n_keys) if rows[0].device.type == "cpu" else len(flat[0])
    parts = zip(*(torch.split(values, n) for values in flat), strict=True)
    return [torch.cat(results) for results in zip(*(compute(*part) for part in parts), strict=True)]


def _solve(scores_RK: Tensor, beta_R1: Tensor, fixed: float | None) -> tuple[Tensor]:
    """Return the weights of rows; `fixed` is α, if it is a number.

    Newton on (Σ p)^β, which is convex in t with slope at least 1, so that it converges from every
    start; last a linear correction along s.
    """
    top_R1 = scores_RK.amax(-1, keepdim=True)
    is_empty_R1 = top_R1 == -math.inf
    gap_RK = (scores_RK - top_R1.masked_fill(is_empty_R1, 0.0)) * beta_R1  # -b
    exponent_R1 = (1 / beta_R1 - 1).clamp_min(1e-30)  # 0^0 off the support must be 0
    last_R1 = -torch.expm1(-beta_R1 * math.log(scores_RK.shape[-1]))  # the shift of equal scores
    info = torch.finfo(scores_RK.dtype)
    # the correction squares the excess of Σ p; what is left must be below one rounding
    enough_R1 = (beta_R1 * math.log(info.eps)).exp().clamp(4 * info.eps, info.eps**0.5)
    shift_R1 = _start(gap_RK, beta_R1, last_R1)
    for _ in range(N_STEPS[scores_RK.dtype]):
        rest_RK = (gap_RK - shift_R1).clamp_min(-1.0)
        x_RK = rest_RK + 1.0
        if fixed == 1.5:
            s_RK = x_RK
        elif fixed == 2:
            s_RK = x_RK.sign()
        else:
            s_RK = (rest_RK.log1p() * exponent_R1).exp()
        total_R1 = (x_RK * s_RK).sum(-1, keepdim=True)
        slope_R1 = s_RK.sum(-1, keepdim=True).clamp_min(info.tiny)
        excess_R1 = (total_R1 - 1.0).masked_fill(is_empty_R1, 0.0)
        if _are_solved(excess_R1, enough_R1):
            break
        growth_R1 = -torch.expm1(-beta_R1 * total_R1.clamp_min(info.tiny).log())
        step_R1 = total_R1 * growth_R1 / slope_R1
        shift_R1 = torch.minimum((shift_R1 + step_R1).clamp_min(0.0), last_R1)
    return ((x_RK - excess_R1 / slope_R1).clamp_min(0.0) * s_RK,)


def _are_solved(excess_R1: Tensor, enough_R1: Tensor) -> bool:
    """Return whether all rows are solved, if reading a value is free: on a CPU."""
    return excess_R1.device.type == "cpu" and not bool((excess_R1.abs() > enough_R1).any())


def _start(gap_RK: Tensor, beta_R1: Tensor, last_R1: Tensor) -> Tensor:
    """Return a shift by count, mean and variance of the support: exact for α = 1.5 and 2."""
    shift_R1 = torch.zeros_like(last_R1)
    for _ in range(2):
        x_RK = (gap_RK + (1.0 - shift_R1)).clamp_min(0.0)
        count_R1 = x_RK.sign().sum(-1, keepdim=True).clamp_min(1.0)
        mean_R1 = x_RK.sum(-1, keepdim=True) / count_R1
        square_R1 = x_RK.square().sum(-1, keepdim=True) / count_R1
        variance_R1 = (square_R1 - mean_R1.square()).clamp_min(0.0)
        missing_R1 = -torch.expm1(-2 * beta_R1 * count_R1.log())
        missing_R1 = missing_R1 + variance_R1 * (1 - beta_R1) / beta_R1
        root_R1 = (1.0 - missing_R1).clamp_min(0.0).sqrt()
        shift_R1 = missing_R1.clamp_max(1.0) / (1.0 + root_R1) + mean_R1 - (1.0 - shift_R1)
        shift_R1 = torch.minimum(shift_R1.clamp_min(0.0), last_R1)
    return shift_R1


def _gradients_of_rows(
    p_RK: Tensor, grad_RK: Tensor, beta_R1: Tensor, fixed: float | None, with_alpha: bool
) -> tuple[Tensor, ...]:
    tiny = torch.finfo(p_RK.dtype).tiny
    log_p_RK = p_RK.clamp_min(tiny).log()
    y_RK = -beta_R1 * log_p_RK
    growth_RK = y_RK.expm1()
    s_RK = p_RK + p_RK * growth_RK if fixed != 2 else p_RK.sign()
    total_R1 = s_RK.sum(-1, keepdim=True).clamp_min(tiny)  # 0 in a row without a key
    centred_RK = grad_RK - (s_RK * grad_RK).sum(-1, keepdim=True) / total_R1
    if not with_alpha:
        return (s_RK * centred_RK,)
    series_RK = torch.zeros_like(y_RK)
    for degree in range(N_TERMS[p_RK.dtype], 1, -1):
        series_RK = series_RK * y_RK + 1 / math.factorial(degree)
    direct_RK = (growth_RK - y_RK) / beta_R1.square()
    psi_RK = torch.where(beta_R1 < BETA_SERIES, series_RK * log_p_RK.square(), direct_RK)
    return s_RK * centred_RK, -(p_RK * psi_RK * centred_RK).sum(-1, keepdim=True)
