"""The losses that belong to the family, and its log-probabilities, over a large vocabulary.

The entmax loss of scores z with gold class y is (Peters et al. 2019; Blondel et al.
2020 call it a Fenchel-Young loss)

    L = <p - e_y, z> + H_α(p),   p = α-entmax(z),   dL/dz = p - e_y
    H_α(p) = Σ (p - p^α) / (α (α - 1)),   -Σ p ln p as α falls to 1

It is cross-entropy for α = 1 and the sparsemax loss for α = 2, never below 0, and exactly 0 once
z_y leads every other score by 1/(α - 1). Uniform label smoothing by ε adds ε (z_y - mean z), with
the gradient p - e_y + ε (e_y - 1/V).

Kernels compute it where they can be had (`loss_operators.py`). What stands here serves every other
case: float64, and machines without a compiler or without Triton.
Only classes near the top of a row have a probability, so a threshold is first sought among a few.
The classes are dealt into groups of GROUP, and the k groups with the greatest maxima are solved
alone. Where the maximum of the last of them comes out at exactly 0, no class of any other group
can have a probability, since none has a greater score: the row is solved. The others are solved
again with more groups, in the end with all classes. What is kept for the way back are the groups
and their p, not the vocabulary.

Letters: N rows, V classes, R some of the rows, G groups taken, C candidates (classes of them).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from headwise.compilation import outside_graphs
from headwise.entmax import function
from headwise.entmax.solver import solve
from headwise.kernels import choice, loss_operators, native_loss
from headwise.kernels.native_loss import NO_CLASS
from headwise.kernels.problem import POWERS, Power
from headwise.precision import each_place_written_once

GROUP = 16  # classes; finding the top of the group maxima then costs less than reading the scores
N_GROUPS = (32, 128, 512)  # taken at first, and where that was too few; then all classes
# Scores solved at a time where the whole vocabulary is: temporaries are a few times as much.
CHUNK_SCORES, CHUNK_SCORES_ACCELERATOR = 1 << 20, 1 << 26


def entmax_loss(
    scores: Tensor,
    target: Tensor,
    alpha: float,
    label_smoothing: float = 0.0,
    ignore_index: int | None = None,
) -> Tensor:
    """Entmax loss of every target (Peters et al. 2019), in float32, or float64 for such scores.

    Args:
        scores: (..., V), floating-point. Half precision is computed in float32 and its gradient
            rounded once. A class of score -inf has no part in it (without label smoothing).
        target: (...), gold classes.
        alpha: in [1, 2]; 1 is cross-entropy, 1.5 and 2 have functions of their own names.
        label_smoothing: ε of uniform smoothing, in [0, 1). Above 0 no class is certain to get
            probability 0 by training, for each has a share of ε in the target.
        ignore_index: targets of this value cost 0 and give no gradient; if it is a class, the
            mean of label smoothing leaves it out.

    Returns:
        (...), losses ≥ 0, differentiable once in scores.

    Raises:
        ValueError: alpha or label_smoothing outside of its range.
        TypeError: scores that are not floating-point.
    """
    return entmax_loss_and_support(scores, target, alpha, label_smoothing, ignore_index)[0]


def entmax15_loss(
    scores: Tensor, target: Tensor, label_smoothing: float = 0.0, ignore_index: int | None = None
) -> Tensor:
    """`entmax_loss` with α = 1.5; arguments, result and errors as there."""
    return entmax_loss(scores, target, 1.5, label_smoothing, ignore_index)


def sparsemax_loss(
    scores: Tensor, target: Tensor, label_smoothing: float = 0.0, ignore_index: int | None = None
) -> Tensor:
    """`entmax_loss` with α = 2 (Martins and Astudillo 2016); the rest as there."""
    return entmax_loss(scores, target, 2.0, label_smoothing, ignore_index)


def entmax_loss_and_support(
    scores: Tensor,
    target: Tensor,
    alpha: float,
    label_smoothing: float = 0.0,
    ignore_index: int | None = None,
) -> tuple[Tensor, Tensor]:
    """`entmax_loss`, and the number of classes with a probability above 0 (0 where ignored)."""
    _check(scores, alpha)
    if not 0 <= label_smoothing < 1:
        raise ValueError(f"label_smoothing must be in [0, 1), got {label_smoothing}")
    scores_NV, target_N = scores.reshape(-1, scores.shape[-1]), target.reshape(-1)
    found = choice.losses(scores, float(alpha), function.REFERENCE)
    compute = _apply if found.kernel == choice.TORCH else loss_operators.loss_and_support
    loss_N, support_N = compute(
        scores_NV, target_N, float(alpha), float(label_smoothing), ignore_index
    )
    return loss_N.view(target.shape), support_N.view(target.shape)


def log_softmax(scores: Tensor) -> Tensor:
    """Logarithm of softmax along the last axis, float32 (float64 for such scores); (..., V)."""
    is_differentiated = torch.is_grad_enabled() and scores.requires_grad
    if (
        not is_differentiated
        and choice.losses(scores, 1.0, function.REFERENCE).kernel == choice.CPP
    ):
        scores_NV = scores.reshape(-1, scores.shape[-1])
        return native_loss.log_softmax(scores_NV).view(scores.shape)
    return scores.to(torch.promote_types(scores.dtype, torch.float32)).log_softmax(-1)


@torch.no_grad()
def log_entmax(scores: Tensor, alpha: float) -> Tensor:
    """Logarithm of α-entmax along the last axis, for search: without a gradient.

    Args:
        scores: (..., V), floating-point.
        alpha: in [1, 2].

    Returns:
        The shape of `scores`, float32 (float64 for such scores), -inf off the support; a row with
        NaN or +inf is NaN.
    """
    _check(scores, alpha)
    if alpha == 1:
        return log_softmax(scores)
    wide = torch.promote_types(scores.dtype, torch.float32)
    scores_NV = scores.reshape(-1, scores.shape[-1])
    if choice.losses(scores_NV, float(alpha), function.REFERENCE).kernel != choice.TORCH:
        log_p_NV = _probabilities(scores_NV.to(wide), float(alpha))
        # on a CPU the logarithm of 0 is slow; a negative number / 0 is -inf as well
        sign_NV = log_p_NV.sign()
        return log_p_NV.clamp_min_(torch.finfo(wide).tiny).log_().div_(sign_NV).view(scores.shape)
    log_p_NV = scores_NV.new_full(scores_NV.shape, -torch.inf, dtype=wide)
    for part in _solve_rows(scores_NV, float(alpha), None).parts:
        for piece in part.pieces():
            # on a CPU the logarithm of 0 is slow; a negative number / 0 is -inf as well
            log_p_RC = piece.p_RC.clamp_min(torch.finfo(wide).tiny).log_()
            piece.write(log_p_NV, log_p_RC.div_(piece.p_RC.sign()))
    return log_p_NV.view(scores.shape)


def _probabilities(scores_NV: Tensor, alpha: float) -> Tensor:
    power = POWERS.get(alpha, Power.ANY)
    same = scores_NV.new_full((1, 1, 1, 1), alpha) if power is Power.ANY else None
    return function.weights(scores_NV[None, None], same, None, power)[0, 0]


def _check(scores: Tensor, alpha: float) -> None:
    if not scores.is_floating_point():
        raise TypeError(f"scores must be floating-point, got {scores.dtype}")
    if not 1 <= alpha <= 2:
        raise ValueError(f"alpha must be in [1, 2], got {alpha}")


@dataclass(frozen=True)
class _Part:
    """Probabilities of some rows, 0 in all columns that are not named."""

    p_RC: Tensor
    row_R: Tensor | None  # None: every row
    column_RC: Tensor | None  # None: every class

    def write(self, out_NV: Tensor, values_RC: Tensor) -> None:
        """Put values in the places of the probabilities."""
        values_RC = values_RC.to(out_NV.dtype)
        if self.column_RC is None:
            assert self.row_R is not None  # see `pieces`
            out_NV.index_copy_(0, self.row_R, values_RC)
        elif self.row_R is None:
            out_NV.scatter_(1, self.column_RC, values_RC)
        else:
            out_NV[self.row_R[:, None], self.column_RC] = values_RC

    def rows_of(self, values_N: Tensor) -> Tensor:
        """The entries of these rows."""
        return values_N if self.row_R is None else values_N[self.row_R]

    def pieces(self) -> Iterator[_Part]:
        """The same in parts that may be copied without a thought for memory."""
        if self.column_RC is not None:
            yield self
            return
        for chunk in _chunks(self.p_RC):
            row_R = self.row_R
            if row_R is None:
                row_R = torch.arange(len(self.p_RC), device=self.p_RC.device)
            yield _Part(self.p_RC[chunk], row_R[chunk], None)

    def at(self, class_N: Tensor) -> Tensor:
        """Probability (R,) of one class of each row."""
        class_R1 = self.rows_of(class_N)[:, None]
        if self.column_RC is None:
            return self.p_RC.gather(1, class_R1)[:, 0]
        return (self.p_RC * (self.column_RC == class_R1)).sum(1)


@dataclass(frozen=True)
class _Solution:
    """What is known of every row."""

    parts: list[_Part]  # later ones count where two hold the same row
    value_N: Tensor  # <p, z> + H_α(p), with z counted from its maximum
    highest_N: Tensor  # that maximum
    support_N: Tensor  # classes with a probability


def _solve_rows(scores_NV: Tensor, alpha: float, is_wanted_N: Tensor | None) -> _Solution:
    """Probabilities of all rows; those not wanted may come out wrong."""
    n_rows, n_classes = scores_NV.shape
    wide = torch.promote_types(scores_NV.dtype, torch.float32)
    highest_N = scores_NV.amax(1).to(wide)
    value_N, support_N = torch.zeros_like(highest_N), torch.zeros_like(highest_N)
    parts: list[_Part] = []
    row_R: Tensor | None = None  # still to be solved; None: all
    for n_groups in N_GROUPS if alpha > 1 else ():
        if 2 * n_groups * GROUP > n_classes:
            break
        scores_RV = scores_NV if row_R is None else scores_NV[row_R]
        column_RC, values_RC = _candidates(scores_RV, n_groups)
        shift_R = highest_N if row_R is None else highest_N[row_R]
        p_RC, value_R, support_R = _solve(values_RC.to(wide).sub_(shift_R[:, None]), alpha)
        # the last group is the one with the least maximum
        is_open_R = p_RC[:, : n_groups * GROUP].view(-1, GROUP, n_groups)[:, :, -1].amax(1) != 0
        if is_wanted_N is not None:
            is_open_R &= is_wanted_N if row_R is None else is_wanted_N[row_R]
        open_R = is_open_R.nonzero()[:, 0]
        if row_R is None and len(open_R) == n_rows:
            continue
        p_RC[open_R] = 0.0  # so that only the part that solves a row says something of it
        parts.append(_Part(p_RC, row_R, column_RC))
        _set(value_N, row_R, value_R)
        _set(support_N, row_R, support_R)
        row_R = open_R if row_R is None else row_R[open_R]
        if not len(row_R):
            return _Solution(parts, value_N, highest_N, support_N)
    n_open = n_rows if row_R is None else len(row_R)
    p_RV = torch.empty(n_open, n_classes, dtype=wide, device=scores_NV.device)
    for chunk in _chunks(p_RV):
        rows: slice | Tensor = chunk if row_R is None else row_R[chunk]
        shifted_RV = scores_NV[rows].to(wide) - highest_N[rows, None]
        p_RV[chunk], value_N[rows], support_N[rows] = _solve(shifted_RV, alpha)
    parts.append(_Part(p_RV, row_R, None))
    return _Solution(parts, value_N, highest_N, support_N)


def _chunks(values_RV: Tensor) -> Iterator[slice]:
    """Rows to work on at a time where every class is looked at."""
    limit = CHUNK_SCORES if values_RV.device.type == "cpu" else CHUNK_SCORES_ACCELERATOR
    n_chunk = max(1, limit // values_RV.shape[1])
    for first in range(0, len(values_RV), n_chunk):
        yield slice(first, first + n_chunk)


def _set(out_N: Tensor, row_R: Tensor | None, values_R: Tensor) -> None:
    if row_R is None:
        out_N.copy_(values_R)
    else:
        out_N[row_R] = values_R


def _candidates(scores_RV: Tensor, n_groups: int) -> tuple[Tensor, Tensor]:
    """Columns and scores (R, C) of the groups with the greatest maxima, greatest first.

    Class v is in group v mod (V // GROUP), so that a maximum over groups runs along memory. The
    candidates stand member by member, each member of all groups; the fewer than GROUP classes at
    the end of the vocabulary that fill no group are always among them, last.
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
    """Weights p (R, C), <p, z> + H_α(p) and the size of the support (R,), for z with maximum 0."""
    if alpha == 1:
        log_total_R1 = shifted_RC.logsumexp(1, keepdim=True)
        p_RC = (shifted_RC - log_total_R1).exp_()
        return p_RC, log_total_R1[:, 0], p_RC.count_nonzero(1).to(p_RC.dtype)
    beta = alpha - 1
    power = POWERS.get(alpha, Power.ANY)
    p_RC = torch.empty_like(shifted_RC)
    beta_11 = shifted_RC.new_full((1, 1), beta)
    solve(shifted_RC.contiguous(), beta_11, power, p_RC, shifted_RC.device.type == "cpu")
    # z + (1 - p^β) / (αβ), which p weighs; without a difference where β is small
    if power is Power.SQUARE:
        gain_RC = 1.0 - p_RC.sqrt()
    elif power is Power.LINEAR:
        gain_RC = 1.0 - p_RC
    else:
        gain_RC = torch.expm1(p_RC.clamp_min(torch.finfo(p_RC.dtype).tiny).log_().mul_(beta)).neg_()
    gain_RC.mul_(1 / (alpha * beta))
    # a class of score -inf has weight 0, and 0 * inf is not a number
    gain_RC.add_(shifted_RC.clamp_min(torch.finfo(p_RC.dtype).min))
    return p_RC, (p_RC * gain_RC).sum(1), p_RC.sign().sum(1)


# The number of rows left to solve is looked at, which a compiled graph cannot hold.
@outside_graphs
def _apply(
    scores_NV: Tensor, target_N: Tensor, alpha: float, smoothing: float, ignore_index: int | None
) -> tuple[Tensor, Tensor]:
    found: tuple[Tensor, Tensor] = EntmaxLossFunction.apply(  # type: ignore[no-untyped-call]
        scores_NV, target_N, alpha, smoothing, ignore_index
    )
    return found


class EntmaxLossFunction(torch.autograd.Function):
    """Losses and support sizes (N,) of scores (N, V)."""

    @staticmethod
    def forward(
        ctx: Any,
        scores_NV: Tensor,
        target_N: Tensor,
        alpha: float,
        smoothing: float,
        ignore_index: int | None,
    ) -> tuple[Tensor, Tensor]:
        """See the head of this file."""
        n_classes = scores_NV.shape[1]
        target_N, is_real_N, left_out = loss_operators.real_targets(
            target_N, n_classes, ignore_index
        )
        solution = _solve_rows(scores_NV, alpha, is_real_N)
        gold_N = scores_NV.gather(1, target_N[:, None])[:, 0].to(solution.value_N.dtype)
        # rounding may leave a loss of 0 just below it
        loss_N = (solution.value_N + (solution.highest_N - gold_N)).clamp_min_(0.0)
        n_counted = max(1, n_classes - (left_out != NO_CLASS))
        if smoothing:
            total_N = scores_NV.sum(1, dtype=loss_N.dtype)
            if left_out != NO_CLASS:
                total_N -= scores_NV[:, left_out]
            loss_N += smoothing * (gold_N - total_N / n_counted)
        gold_p_N, left_out_p_N = torch.zeros_like(loss_N), torch.zeros_like(loss_N)
        kept: list[Tensor | None] = []
        for part in solution.parts:
            # not even what is no number may come out of rows that do not count
            part.p_RC[(~part.rows_of(is_real_N)).nonzero()[:, 0]] = 0.0
            kept += [part.p_RC, part.row_R, part.column_RC]
            _set(gold_p_N, part.row_R, part.at(target_N))
            if smoothing and left_out != NO_CLASS:
                p_R = part.at(torch.full_like(target_N, left_out))
                _set(left_out_p_N, part.row_R, p_R)
        ctx.save_for_backward(target_N, is_real_N, gold_p_N, left_out_p_N, *kept)
        ctx.share, ctx.smoothing, ctx.left_out = smoothing / n_counted, smoothing, left_out
        ctx.shape, ctx.dtype = scores_NV.shape, scores_NV.dtype
        support_N = solution.support_N.masked_fill(~is_real_N, 0.0)
        ctx.mark_non_differentiable(support_N)
        return loss_N.masked_fill_(~is_real_N, 0.0), support_N

    @staticmethod
    def backward(ctx: Any, grad_N: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        """dL/dz = p - e_y + ε (e_y - 1/V), each entry rounded once to the type of the scores."""
        if torch.is_grad_enabled():
            raise RuntimeError(
                "the losses of headwise.entmax can be differentiated once; call without "
                "create_graph=True"
            )
        target_N, is_real_N, gold_p_N, left_out_p_N, *kept = ctx.saved_tensors
        scale_N = grad_N.masked_fill(~is_real_N, 0.0)
        share_N = ctx.share * scale_N
        out_NV = torch.zeros(ctx.shape, dtype=ctx.dtype, device=grad_N.device)
        if ctx.smoothing:
            out_NV -= share_N[:, None].to(ctx.dtype)
        for place in range(0, len(kept), 3):
            for part in _Part(*kept[place : place + 3]).pieces():
                grad_RC = part.p_RC * part.rows_of(scale_N)[:, None]
                if ctx.smoothing:
                    grad_RC -= part.rows_of(share_N)[:, None]
                with each_place_written_once():
                    part.write(out_NV, grad_RC)
        if ctx.smoothing and ctx.left_out != NO_CLASS:
            out_NV[:, ctx.left_out] = (scale_N * left_out_p_N).to(ctx.dtype)
        gold_N = scale_N * (gold_p_N - 1 + ctx.smoothing) - share_N
        with each_place_written_once():
            out_NV.scatter_(1, target_N[:, None], gold_N[:, None].to(ctx.dtype))
        return out_NV, None, None, None, None
