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

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from headwise.entmax.maps import aligned
from headwise.ops import dispatch
from headwise.ops.arguments import check_tensor
from headwise.ops.family import POWERS, Power
from headwise.ops.losses import cpu as cpu_losses
from headwise.ops.losses import operator as loss_operators
from headwise.ops.maps import bisection
from headwise.ops.maps import operator as map_operators
from headwise.ops.maps.bisection import Map

INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


def entmax_loss(
    scores: Tensor, target: Tensor, alpha: float, *, label_smoothing: float = 0.0
) -> Tensor:
    """Return the entmax loss of every target (Peters et al. 2019).

    Args:
        scores: (..., V), floating-point. Half precision is computed in float32 and its gradient
            rounded once. Without label smoothing, a class with score -inf is ignored.
        target: (...), gold classes.
        alpha: in [1, 2]; 1 is cross-entropy. `entmax15_loss` has 1.5, `sparsemax_loss` has 2,
            `entmax_bisect_loss` takes others.
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


def entmax15_loss(
    X: Tensor, target: Tensor, k: int | None = None, *, label_smoothing: float = 0.0
) -> Tensor:
    """Return `entmax_loss` with α = 1.5. `k` has no effect."""
    return entmax_loss(X, target, 1.5, label_smoothing=label_smoothing)


def sparsemax_loss(
    X: Tensor, target: Tensor, k: int | None = None, *, label_smoothing: float = 0.0
) -> Tensor:
    """Return `entmax_loss` with α = 2 (Martins and Astudillo 2016). `k` has no effect."""
    return entmax_loss(X, target, 2.0, label_smoothing=label_smoothing)


def sparsemax_bisect_loss(X: Tensor, target: Tensor, n_iter: int = 50) -> Tensor:
    """Return `sparsemax_loss`, which needs no bisection: `n_iter` has no effect."""
    return sparsemax_loss(X, target)


def entmax_bisect_loss(
    X: Tensor, target: Tensor, alpha: Tensor | float = 1.5, n_iter: int = 50
) -> Tensor:
    """Return the entmax loss for every α > 0: `entmax_loss` for a number in [1, 2].

    Args:
        X: scores (..., V), as for `entmax_loss`.
        target: (...), gold classes.
        alpha: above 0: a number, or a tensor that broadcasts to (..., 1). Values of a tensor are
            read, which waits for an accelerator.
        n_iter: no effect: bisection ends at the precision of the scores.

    Returns:
        As `entmax_loss`. Alpha gets no gradient.

    Raises:
        ValueError: as `entmax_loss`; alpha has more than one value along the classes.
        TypeError: as `entmax_loss`.
    """
    if not isinstance(alpha, Tensor) and 1 <= alpha <= 2:
        return entmax_loss(X, target, alpha)
    return _bisected_loss(X, target, alpha, Map.ENTMAX)


def normmax_bisect_loss(
    X: Tensor, target: Tensor, alpha: Tensor | float = 2, n_iter: int = 50
) -> Tensor:
    """Return the loss of α-normmax (Blondel et al. 2020): <p - e_y, z> + 1 - ||p||_α.

    Arguments, result and errors as for `entmax_bisect_loss`, with alpha above 1.
    """
    return _bisected_loss(X, target, alpha, Map.NORMMAX)


class _Maximum(torch.autograd.Function):
    """Values max_p <p, z> + H(p) of rows, whose gradient is the weights at the maximum."""

    @staticmethod
    def forward(values_N: Tensor, p_NV: Tensor, scores_NV: Tensor) -> Tensor:
        return values_N.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        ctx.save_for_backward(inputs[1])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, None, Tensor]:
        return None, None, grads[0][:, None] * ctx.saved_tensors[0]


_maximum: Callable[..., Tensor] = _Maximum.apply  # untyped


def _bisected_loss(X: Tensor, target: Tensor, alpha: Tensor | float, kind: Map) -> Tensor:
    scores_NV, target_N = _rows(X, target)
    scores_NV = scores_NV.to(torch.promote_types(X.dtype, torch.float32))
    is_traced = isinstance(alpha, Tensor) and torch.compiler.is_compiling()
    alpha = torch.as_tensor(alpha, dtype=scores_NV.dtype, device=X.device).detach()
    if not is_traced and bool((alpha <= 0).any()):
        raise ValueError(f"alpha of a loss must be above 0, got {float(alpha.min())}")
    alpha_N1 = aligned(alpha, X, -1).expand(*X.shape[:-1], 1).reshape(-1, 1)
    p_NV = bisection.weights(scores_NV[None, None], alpha_N1[None, None], None, kind)[0, 0]
    with torch.no_grad():
        top_N = scores_NV.amax(1)
        below_NV = (scores_NV - top_N[:, None]).masked_fill(p_NV == 0, 0.0)
        value_N = (p_NV * below_NV).sum(1) + bisection.entropy(p_NV, alpha_N1, kind)
    value_N = _maximum(value_N, p_NV, scores_NV)
    loss_N, _ = loss_operators.losses_of(scores_NV, target_N, value_N, top_N, None, 0.0)
    return loss_N.view(target.shape)


def entmax_loss_and_support(
    scores: Tensor, target: Tensor, alpha: float, label_smoothing: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Return `entmax_loss` and the number of classes with p > 0, (...) each."""
    scores_NV, target_N = _rows(scores, target)
    _check_alpha(alpha)
    if not 0 <= label_smoothing < 1:
        raise ValueError(f"label_smoothing must be in [0, 1), got {label_smoothing}")
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
    _check(scores)
    _check_alpha(alpha)
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


def _rows(scores: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Return scores (N, V) and targets (N,) int64."""
    _check(scores)
    check_tensor("target", target, INTEGERS, scores.shape[:-1], scores.device)
    # contiguous, as torch sums another layout in another order on some processors
    scores_NV = scores.reshape(-1, scores.shape[-1]).contiguous()
    return scores_NV, target.reshape(-1).to(torch.int64)


def _check(scores: Tensor) -> None:
    if not scores.dim() or not scores.shape[-1]:
        raise ValueError(f"scores must be (..., V) with classes, got {tuple(scores.shape)}")
    if not scores.is_floating_point():
        raise TypeError(f"scores must be floating-point, got {scores.dtype}")


def _check_alpha(alpha: float) -> None:
    if not 1 <= alpha <= 2:
        raise ValueError(f"alpha must be in [1, 2], got {alpha}")
