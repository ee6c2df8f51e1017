"""Entmax losses in plain torch: for float64, and for machines without a compiler or Triton.

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
from headwise.ops.family import POWERS, Power
from headwise.ops.losses import operator as loss_operators
from headwise.ops.maps.reference import solve
from headwise.precision import unique_indices

GROUP = 16  # classes; the top groups then take less time to select than the scores to read


N_GROUPS = (32, 128, 512)  # tried in this order; then all classes


# Scores per chunk when all classes are solved; temporaries take several times this memory.
CHUNK_SCORES, CHUNK_SCORES_ACCELERATOR = 1 << 20, 1 << 26


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
