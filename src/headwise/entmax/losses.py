"""Entmax losses and log-probabilities over a large vocabulary.

The entmax loss of scores z with gold class y is (Peters et al. 2019; Blondel et al.
2020 call it a Fenchel-Young loss)

    L = <p - e_y, z> + H_α(p),   p = α-entmax(z),   dL/dz = p - e_y
    H_α(p) = Σ (p - p^α) / (α (α - 1)),   -Σ p ln p as α falls to 1

It is cross-entropy for α = 1 and the sparsemax loss for α = 2. It is ≥ 0, and exactly 0 if z_y
exceeds every other score by at least 1/(α - 1). Uniform label smoothing by ε adds
ε (z_y - mean z), with the gradient p - e_y + ε (e_y - 1/V).

Axes: N rows, V classes.
"""

from __future__ import annotations

import torch
from torch import Tensor

from headwise.ops import dispatch
from headwise.ops.arguments import check_tensor
from headwise.ops.family import POWERS, Power
from headwise.ops.losses import cpu as cpu_losses
from headwise.ops.losses import operator as loss_operators
from headwise.ops.maps import operator as map_operators

INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


def entmax_loss(
    scores: Tensor,
    target: Tensor,
    alpha: float,
    label_smoothing: float = 0.0,
) -> Tensor:
    """Return the entmax loss of every target (Peters et al. 2019).

    Args:
        scores: (..., V), floating-point. Half precision is computed in float32 and its gradient
            rounded once. Without label smoothing, a class with score -inf is ignored.
        target: (...), gold classes.
        alpha: in [1, 2]; 1 is cross-entropy. `entmax15_loss` has 1.5, `sparsemax_loss` has 2.
        label_smoothing: ε of uniform smoothing, in [0, 1). With ε > 0 every class has a
            share of ε in the target, so training drives no probability to exactly 0.

    Returns:
        (...), losses ≥ 0, float32 (float64 for float64 scores), differentiable once in scores.

    Raises:
        ValueError: alpha or label_smoothing is out of range; targets have another shape, or are no
            classes (on a CPU).
        TypeError: scores are not floating-point, or targets no integers on their device.
    """
    return entmax_loss_and_support(scores, target, alpha, label_smoothing)[0]


def entmax15_loss(scores: Tensor, target: Tensor, label_smoothing: float = 0.0) -> Tensor:
    """Return `entmax_loss` with α = 1.5."""
    return entmax_loss(scores, target, 1.5, label_smoothing)


def sparsemax_loss(scores: Tensor, target: Tensor, label_smoothing: float = 0.0) -> Tensor:
    """Return `entmax_loss` with α = 2 (Martins and Astudillo 2016)."""
    return entmax_loss(scores, target, 2.0, label_smoothing)


def entmax_loss_and_support(
    scores: Tensor,
    target: Tensor,
    alpha: float,
    label_smoothing: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Return `entmax_loss` and the number of classes with p > 0, (...) each."""
    _check(scores, alpha)
    if not 0 <= label_smoothing < 1:
        raise ValueError(f"label_smoothing must be in [0, 1), got {label_smoothing}")
    check_tensor("target", target, INTEGERS, scores.shape[:-1], scores.device)
    # contiguous, as torch sums another layout in another order on some processors
    scores_NV = scores.reshape(-1, scores.shape[-1]).contiguous()
    target_N = target.reshape(-1).to(torch.int64)
    options = (float(alpha), float(label_smoothing))
    loss_N, support_N = loss_operators.loss_and_support(scores_NV, target_N, *options)
    return loss_N.view(target.shape), support_N.view(target.shape)


def log_softmax(scores: Tensor) -> Tensor:
    """Return log-softmax along the last axis (..., V), float32 (float64 for float64 scores)."""
    # the kernel has no gradient, and is not an operator that graphs could contain
    needs_torch = torch.is_grad_enabled() and scores.requires_grad
    is_plain = not (needs_torch or torch.compiler.is_compiling())
    if is_plain and dispatch.losses(scores, 1.0).kernel == dispatch.CPP:
        scores_NV = scores.reshape(-1, scores.shape[-1])
        return cpu_losses.log_softmax(scores_NV).view(scores.shape)
    return scores.to(torch.promote_types(scores.dtype, torch.float32)).log_softmax(-1)


@torch.no_grad()
def log_entmax(scores: Tensor, alpha: float) -> Tensor:
    """Return log α-entmax along the last axis, for decoding: without a gradient.

    Args:
        scores: (..., V), floating-point.
        alpha: in [1, 2].

    Returns:
        (..., V), float32 (float64 for float64 scores), -inf off the support. A row with NaN or
        +inf is NaN.
    """
    _check(scores, alpha)
    if alpha == 1:
        return log_softmax(scores)
    dtype = torch.promote_types(scores.dtype, torch.float32)
    scores_NV = scores.reshape(-1, scores.shape[-1])
    power = POWERS.get(alpha, Power.ANY)
    alpha_1111 = scores_NV.new_full((1,) * 4, alpha, dtype=dtype) if power is Power.ANY else None
    p_NV = map_operators.weights(scores_NV.to(dtype)[None, None], alpha_1111, None, power)[0, 0]
    # on a CPU the logarithm of 0 is slow; a negative number divided by 0 is -inf too
    sign_NV = p_NV.sign()
    return p_NV.clamp_min_(torch.finfo(dtype).tiny).log_().div_(sign_NV).view(scores.shape)


def _check(scores: Tensor, alpha: float) -> None:
    if not scores.dim() or not scores.shape[-1]:
        raise ValueError(f"scores must be (..., V) with classes, got {tuple(scores.shape)}")
    if not scores.is_floating_point():
        raise TypeError(f"scores must be floating-point, got {scores.dtype}")
    if not 1 <= alpha <= 2:
        raise ValueError(f"alpha must be in [1, 2], got {alpha}")
