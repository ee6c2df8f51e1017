"""The maps in exported models, which run without headwise: operators that every runtime has.

No branch depends on values or sizes. Scores get gradients, α gets none. 1.5-entmax and sparsemax
are solved by sorting (Peters et al. 2019; Martins and Astudillo 2016). For other α, Newton's steps
on Σ p, which is convex in t (formulas in `reference.py`), converge from t = 0, where Σ p ≥ 1.

Axes: R rows, K keys.
"""

from __future__ import annotations

import torch
from torch import Tensor

from headwise.ops.family import BETA_MIN, Power

N_STEPS = 12  # of Newton; 10 reached float32's precision in adversarial rows of up to 3,000 keys


def weights(scores_RK: Tensor, alpha: Tensor | None, mask: Tensor | None, power: Power) -> Tensor:
    """Return the weights along the last axis; arguments as for `operator.weights`."""
    if mask is not None:
        scores_RK = scores_RK.masked_fill(~mask, -torch.inf)
    top_R1 = scores_RK.amax(-1, keepdim=True)
    is_empty_R1 = top_R1 == -torch.inf
    gap_RK = (scores_RK - top_R1).masked_fill(is_empty_R1, 0.0)
    if power is Power.EXP:
        p_RK = gap_RK.softmax(-1)
    elif alpha is None:
        p_RK = _by_sorting(gap_RK, 2 if power is Power.SQUARE else 1)
    else:
        p_RK = _by_newton(gap_RK, (alpha.detach() - 1).clamp(BETA_MIN, 1.0))
    return p_RK.masked_fill(is_empty_R1, 0.0)


def log1p(values: Tensor) -> Tensor:
    """Return log(1 + values) for values in [-1, 0], precise near 0.

    ONNX has no such function, and the exporters write a logarithm of a rounded sum.
    """
    sums = values + 1
    return sums.log() + (values - (sums - 1))


def _by_newton(gap_RK: Tensor, beta_R1: Tensor) -> Tensor:
    gap_RK = gap_RK * beta_R1
    exponent_R1 = (1 / beta_R1 - 1).clamp_min(1e-30)  # 0^0 off the support must be 0
    shift_R1 = torch.zeros_like(gap_RK[..., :1])
    for _ in range(1 + N_STEPS):
        rest_RK = (gap_RK - shift_R1.detach()).clamp_min(-1.0)
        x_RK, s_RK = rest_RK + 1, (log1p(rest_RK) * exponent_R1).exp()
        step_R1 = ((x_RK * s_RK).sum(-1, keepdim=True) - 1) / s_RK.sum(-1, keepdim=True)
        shift_R1 = shift_R1 + beta_R1 * step_R1
    return (x_RK - step_R1).clamp_min(0.0) * s_RK


def _by_sorting(gap_RK: Tensor, exponent: int) -> Tensor:
    """Return sparsemax (exponent 1) or 1.5-entmax (2) from the thresholds of the first k keys."""
    gap_RK = (gap_RK / exponent).clamp_min(-1.0)
    sorted_RK = gap_RK.sort(-1, descending=True).values
    count_RK = torch.ones_like(sorted_RK).cumsum(-1)
    mean_RK = sorted_RK.cumsum(-1) / count_RK
    radius_RK = 1 / count_RK
    if exponent == 2:
        variance_RK = sorted_RK.square().cumsum(-1) / count_RK - mean_RK.square()
        radius_RK = (radius_RK - variance_RK).clamp_min(0.0).sqrt()
    threshold_RK = mean_RK - radius_RK
    threshold_RK = threshold_RK.masked_fill(threshold_RK > sorted_RK, -1.0)
    return (gap_RK - threshold_RK.amax(-1, keepdim=True)).clamp_min(0.0) ** exponent
