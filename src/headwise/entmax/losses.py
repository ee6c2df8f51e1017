"""Entmax losses and log-probabilities over a large vocabulary.

The entmax loss of scores z with gold class y is (Peters et al. 2019; Blondel et al.
2020 call it a Fenchel-Young loss)

    L = <p - e_y, z> + H_α(p),   p = α-entmax(z),   dL/dz = p - e_y
    H_α(p) = Σ (p - p^α) / (α (α - 1)),   -Σ p ln p as α falls to 1

It is cross-entropy for α = 1 and the sparsemax loss for α = 2. It is ≥ 0, and exactly 0 if z_y
exceeds every other score by at least 1/(α - 1). Uniform label smoothing by ε adds
ε (z_y - mean z), with the gradient p - e_y + ε (e_y - 1/V).

Kernels compute the loss where available (`loss_operators.py`). The code here is for float64 and
for machines without a compiler or Triton.
Only classes near the maximum of a row have p > 0, so the threshold is first computed from a few.
The classes are split into groups of GROUP, and the k groups with the greatest maxima are solved
alone. If the best class of the last of these groups gets exactly 0, so does every class of the
remaining groups, which have no greater score: the row is solved. The other rows are solved again
with more groups, finally with all classes. Only the gradient is saved for the backward pass.

Axes: N rows, V classes, R a subset of the rows, G selected groups, C candidates (their classes).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from headwise.compilation import outside_graphs
from headwise.entmax import function
from headwise.entmax.solver import solve
from headwise.kernels import choice, loss_operators, native_loss
from headwise.kernels.arguments import check_tensor
from headwise.kernels.problem import POWERS, Power
from headwise.precision import unique_indices

GROUP = 16  # classes; the top groups then take less time to select than the scores to read
N_GROUPS = (32, 128, 512)  # tried in this order; then all classes
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
# Scores per chunk when all classes are solved; temporaries take several times this memory.
CHUNK_SCORES, CHUNK_SCORES_ACCELERATOR = 1 << 20, 1 << 26


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
    kernel = choice.losses(scores, float(alpha), function.REFERENCE).kernel
    compute = _apply if kernel == choice.TORCH else loss_operators.loss_and_support
    loss_N, support_N = compute(scores_NV, target_N, float(alpha), float(label_smoothing))
    return loss_N.view(target.shape), support_N.view(target.shape)


def log_softmax(scores: Tensor) -> Tensor:
    """Return log-softmax along the last axis (..., V), float32 (float64 for float64 scores)."""
    # the kernel has no gradient, and is not an operator that graphs could contain
    needs_torch = torch.is_grad_enabled() and scores.requires_grad
    if not (needs_torch or torch.compiler.is_compiling()) and (
        choice.losses(scores, 1.0, function.REFERENCE).kernel == choice.CPP
    ):
        scores_NV = scores.reshape(-1, scores.shape[-1])
        return native_loss.log_softmax(scores_NV).view(scores.shape)
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
    if choice.losses(scores_NV, float(alpha), function.REFERENCE).kernel != choice.TORCH:
        p_NV = _probabilities(scores_NV.to(dtype), float(alpha))
    else:
        p_NV, *_ = _solve_rows(scores_NV, scores_NV.amax(1).to(dtype), float(alpha))
    # on a CPU the logarithm of 0 is slow; a negative number divided by 0 is -inf too
    sign_NV = p_NV.sign()
    return p_NV.clamp_min_(torch.finfo(dtype).tiny).log_().div_(sign_NV).view(scores.shape)


def _probabilities(scores_NV: Tensor, alpha: float) -> Tensor:
    power = POWERS.get(alpha, Power.ANY)
    alpha_1111 = scores_NV.new_full((1, 1, 1, 1), alpha) if power is Power.ANY else None
    return function.weights(scores_NV[None, None], alpha_1111, None, power)[0, 0]


def _check(scores: Tensor, alpha: float) -> None:
    if not scores.dim() or not scores.shape[-1]:
        raise ValueError(f"scores must be (..., V) with classes, got {tuple(scores.shape)}")
    if not scores.is_floating_point():
        raise TypeError(f"scores must be floating-point, got {scores.dtype}")
    if not 1 <= alpha <= 2:
        raise ValueError(f"alpha must be in [1, 2], got {alpha}")


@unique_indices()
def _solve_rows(
    scores_NV: Tensor, highest_N: Tensor, alpha: float, n_groups: tuple[int, ...] | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return probabilities p (N, V), <p, z> + H_α(p) (N,) and the support size (N,).

    Args:
        scores_NV: z, of any dtype.
        highest_N: maxima of the rows, subtracted from z; their dtype is that of the result.
        alpha: in [1, 2].
        n_groups: numbers of groups to try in turn, then all classes; None: `N_GROUPS`.
    """
    first, *more = (N_GROUPS if n_groups is None else n_groups) or (0,)
    p_NV = torch.zeros_like(scores_NV, dtype=highest_N.dtype)
    if alpha == 1 or not 0 < 2 * first * GROUP <= scores_NV.shape[1]:
        value_N, support_N = torch.empty_like(highest_N), torch.empty_like(highest_N)
        for rows in _chunks(p_NV):
            shifted_RV = scores_NV[rows].to(p_NV.dtype) - highest_N[rows, None]
            p_NV[rows], value_N[rows], support_N[rows] = _solve(shifted_RV, alpha)
        return p_NV, value_N, support_N
    column_NC, values_NC = _candidates(scores_NV, first)
    shifted_NC = values_NC.to(p_NV.dtype) - highest_N[:, None]
    p_NC, value_N, support_N = _solve(shifted_NC, alpha)
    p_NV.scatter_(1, column_NC, p_NC)
    # the last group is the one with the least maximum
    is_open_N = p_NC[:, : first * GROUP].view(-1, GROUP, first)[:, :, -1].amax(1) != 0
    open_R = is_open_N.nonzero()[:, 0]
    if len(open_R):
        solved = _solve_rows(scores_NV[open_R], highest_N[open_R], alpha, tuple(more))
        p_NV[open_R], value_N[open_R], support_N[open_R] = solved
    return p_NV, value_N, support_N


def _chunks(values_RV: Tensor) -> Iterator[slice]:
    """Yield slices of rows that are solved at a time over all classes."""
    limit = CHUNK_SCORES if values_RV.device.type == "cpu" else CHUNK_SCORES_ACCELERATOR
    n_chunk = max(1, limit // values_RV.shape[1])
    for first in range(0, len(values_RV), n_chunk):
        yield slice(first, first + n_chunk)


def _candidates(scores_RV: Tensor, n_groups: int) -> tuple[Tensor, Tensor]:
    """Return columns and scores (R, C) of the groups with the greatest maxima, greatest first.

    Class v is in group v mod (V // GROUP), so that the maxima of groups read contiguous memory.
    The order is: member 1 of all groups, member 2 of all groups, ... The last V mod GROUP classes
    belong to no group and are always candidates, at the end.
    """
    n_classes = scores_RV.shape[1]
    stride = n_classes // GROUP
    greatest = scores_RV[:, : stride * GROUP].view(-1, GROUP, stride).amax(1)
    group_RG = greatest.topk(n_groups, dim=1).indices
    member = stride * torch.arange(GROUP, device=group_RG.device)
    column_RC = (group_RG[:, None, :] + member[:, None]).flatten(1)
    if n_classes % GROUP:
        rest = torch.arange(stride * GROUP, n_classes, device=group_RG.device)
        column_RC = torch.cat([column_RC, rest.expand(len(column_RC), -1)], dim=1)
    return column_RC, scores_RV.gather(1, column_RC)


def _solve(shifted_RC: Tensor, alpha: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return p (R, C), <p, z> + H_α(p) (R,) and the support size (R,), for z with maximum 0."""
    if alpha == 1:
        log_total_R1 = shifted_RC.logsumexp(1, keepdim=True)
        p_RC = (shifted_RC - log_total_R1).exp_()
        return p_RC, log_total_R1[:, 0], p_RC.count_nonzero(1).to(p_RC.dtype)
    beta = alpha - 1
    power = POWERS.get(alpha, Power.ANY)
    p_RC = torch.empty_like(shifted_RC)
    beta_11 = shifted_RC.new_full((1, 1), beta)
    solve(shifted_RC.contiguous(), beta_11, power, p_RC, shifted_RC.device.type == "cpu")
    # z + (1 - p^β) / (αβ), to be averaged under p; expm1 avoids cancellation for small β
    if power is Power.SQUARE:
        gain_RC = 1.0 - p_RC.sqrt()
    elif power is Power.LINEAR:
        gain_RC = 1.0 - p_RC
    else:
        gain_RC = torch.expm1(p_RC.clamp_min(torch.finfo(p_RC.dtype).tiny).log_().mul_(beta)).neg_()
    gain_RC.mul_(1 / (alpha * beta))
    # a class with score -inf has p = 0, and 0 * inf would be NaN
    gain_RC.add_(shifted_RC.clamp_min(torch.finfo(p_RC.dtype).min))
    return p_RC, (p_RC * gain_RC).sum(1), p_RC.sign().sum(1)


# Control flow depends on the number of unsolved rows, which torch.compile cannot capture.
@outside_graphs
def _apply(
    scores_NV: Tensor, target_N: Tensor, alpha: float, smoothing: float
) -> tuple[Tensor, Tensor]:
    result: tuple[Tensor, Tensor] = EntmaxLossFunction.apply(  # type: ignore[no-untyped-call]
        scores_NV, target_N, alpha, smoothing
    )
    return result


class EntmaxLossFunction(torch.autograd.Function):
    """Losses and support sizes (N,) of scores (N, V)."""

    @staticmethod
    def forward(
        ctx: Any,
        scores_NV: Tensor,
        target_N: Tensor,
        alpha: float,
        smoothing: float,
    ) -> tuple[Tensor, Tensor]:
        """Return losses and support sizes; see the module docstring for the method."""
        highest_N = scores_NV.amax(1).to(torch.promote_types(scores_NV.dtype, torch.float32))
        p_NV, value_N, support_N = _solve_rows(scores_NV, highest_N, alpha)
        total_N = scores_NV.sum(1, dtype=highest_N.dtype) if smoothing else None
        terms = (scores_NV, target_N, value_N, highest_N, total_N)
        _, loss_N = loss_operators.losses_of(*terms, smoothing)
        grad_NV = p_NV  # from here on p - e_y + ε (e_y - 1/V)
        if smoothing:
            grad_NV -= smoothing / scores_NV.shape[1]
        with unique_indices():
            shift_N1 = grad_NV.new_full((len(grad_NV), 1), smoothing - 1)
            grad_NV.scatter_add_(1, target_N[:, None], shift_N1)
        ctx.save_for_backward(grad_NV)
        ctx.dtype = scores_NV.dtype
        ctx.mark_non_differentiable(support_N)
        return loss_N, support_N

    @staticmethod
    def backward(ctx: Any, grad_N: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        """Return dL/dz = p - e_y + ε (e_y - 1/V), rounded once to the dtype of the scores."""
        if torch.is_grad_enabled():
            raise RuntimeError(
                "the losses of headwise.entmax can be differentiated once; call without "
                "create_graph=True"
            )
        (grad_NV,) = ctx.saved_tensors
        return (grad_NV * grad_N[:, None]).to(ctx.dtype), None, None, None, None
