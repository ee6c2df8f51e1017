"""Autograd of the entmax family: gradients in closed form from the weights alone.

With y_i = -β ln p_i and s_i = p_i exp(y_i) = p_i^(2-α), 0 off the support:

    c    = Σ s dp / Σ s
    dz_i = s_i (dp_i - c)                                 (Peters et al. 2019, proposition 2)
    dα   = -Σ p_i ψ_i (dp_i - c),   ψ = (exp(y) - 1 - y) / β²,   ½ ln² p as α falls to 1

The last line equals the proposition of Correia et al. 2019 (section 3.1) without its difference
of large numbers, which costs 1/β² in precision. Nothing but p and α is kept for the way back.

Letters: R rows, K keys.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from headwise.entmax.solver import BETA_MIN, CHUNK_SCORES, Power, solve

# Above, exp(y) - 1 - y as it stands; below, its series, which is accurate where p > 1e-9.
BETA_SERIES = 0.1
# 1/2!, 1/3!, 1/4!, …
SERIES = {
    torch.float32: tuple(1 / math.factorial(degree) for degree in range(2, 9)),
    torch.float64: tuple(1 / math.factorial(degree) for degree in range(2, 18)),
}
LOG2_E = math.log2(math.e)


def masked_copy(scores: Tensor, mask: Tensor) -> Tensor:
    """A contiguous copy of `scores` with -inf wherever the broadcast `mask` is False."""
    if scores.device.type != "cpu":
        return scores.masked_fill(~mask, -torch.inf).contiguous()
    # On a CPU masked_fill and where are an order of magnitude slower than arithmetic, and
    # arithmetic would let NaN through: the bits are combined instead.
    whole = torch.int32 if scores.dtype is torch.float32 else torch.int64
    keep = mask.to(whole).neg_()  # all bits set where True
    fill = torch.where(mask, 0.0, -torch.inf).to(scores.dtype).view(whole)
    bits = torch.bitwise_and(scores.contiguous().view(whole), keep)
    return bits.bitwise_or_(fill).view(scores.dtype)


class EntmaxFunction(torch.autograd.Function):
    """α-entmax along the last axis, for α a tensor or one number for all rows."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, alpha: Tensor | float, mask: Tensor | None) -> Tensor:
        """Weights of the shape and type of `scores`.

        Args:
            ctx: of autograd.
            scores: (..., K), float32 or float64.
            alpha: as many axes as `scores` with 1 key, broadcastable, same type; or a number.
            mask: bool, broadcastable to `scores`, True = may attend.
        """
        n_keys = scores.shape[-1]
        if mask is None:
            source = scores.contiguous()
            weights = torch.empty_like(source)
        else:
            source = weights = masked_copy(scores, mask)
        beta, power = _row_beta(alpha, scores)
        if scores.numel():
            is_cpu = scores.device.type == "cpu"
            solve(source.view(-1, n_keys), beta, power, weights.view(-1, n_keys), is_cpu)
        if isinstance(alpha, Tensor):
            ctx.save_for_backward(weights, alpha)
        else:
            ctx.save_for_backward(weights)
            ctx.alpha = alpha
        return weights

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        """Gradients of the scores and of α, the latter summed to its shape."""
        _refuse_second_derivative()
        weights, *rest = ctx.saved_tensors
        alpha = rest[0] if rest else ctx.alpha
        beta, power = _row_beta(alpha, weights)
        grad_scores = torch.empty_like(weights)
        if not ctx.needs_input_grad[1]:
            _backward(weights, grad, beta, power, grad_scores, None)
            return grad_scores, None, None
        grad_rows = weights.new_zeros((*weights.shape[:-1], 1))
        _backward(weights, grad, beta, power, grad_scores, grad_rows)
        return grad_scores, grad_rows.sum_to_size(alpha.shape), None


class SoftmaxFunction(torch.autograd.Function):
    """Softmax along the last axis, zeros instead of NaN for rows without a key."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, mask: Tensor | None) -> Tensor:
        """Weights of the shape and type of `scores` (..., K)."""
        if mask is not None:
            scores = masked_copy(scores, mask)
        weights = torch.softmax(scores, -1)
        # an empty row is NaN throughout; a look at one key spares the others the comparison
        if scores.device.type != "cpu" or bool(weights[..., :1].isnan().any()):
            is_empty = (scores == -torch.inf).all(-1, keepdim=True)
            weights = weights.masked_fill_(is_empty, 0.0)
        ctx.save_for_backward(weights)
        return weights

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        """Gradient of the scores, p (dp - Σ p dp)."""
        _refuse_second_derivative()
        (weights,) = ctx.saved_tensors
        grad_scores: Tensor = torch.ops.aten._softmax_backward_data(
            grad.contiguous(), weights, -1, weights.dtype
        )
        return grad_scores, None


def _refuse_second_derivative() -> None:
    # once_differentiable would take p for a constant where the incoming gradient is one
    if torch.is_grad_enabled():
        raise RuntimeError(
            "the maps of headwise.entmax can be differentiated once; call without create_graph=True"
        )


def _row_beta(alpha: Tensor | float, scores: Tensor) -> tuple[Tensor, Power]:
    """β of every row, (R, 1), or (1, 1) where all share it; and how to raise to 1/β."""
    if isinstance(alpha, Tensor):
        beta = (alpha - 1.0).clamp_(BETA_MIN, 1.0)
        if beta.numel() > 1:
            beta = beta.expand(*scores.shape[:-1], 1)
        return beta.reshape(-1, 1), Power.ANY
    power = {1.5: Power.SQUARE, 2.0: Power.LINEAR}.get(alpha, Power.ANY)
    return scores.new_full((1, 1), max(alpha - 1.0, BETA_MIN)), power


def _backward(
    weights: Tensor,
    grad: Tensor,
    beta: Tensor,
    power: Power,
    grad_scores: Tensor,
    grad_rows: Tensor | None,
) -> None:
    """Fill `grad_scores` and, if asked for, the gradient of α of every row."""
    if weights.numel() == 0:
        return
    n_keys = weights.shape[-1]
    weights_RK, grad_RK = weights.view(-1, n_keys), grad.reshape(-1, n_keys)
    out_RK = grad_scores.view(-1, n_keys)
    alpha_R1 = None if grad_rows is None else grad_rows.view(-1, 1)
    n_rows = weights_RK.shape[0]
    is_cpu = weights.device.type == "cpu"
    n_chunk = min(n_rows, max(1, CHUNK_SCORES // n_keys)) if is_cpu else n_rows
    room_3RK = weights.new_empty(3, n_chunk, n_keys)
    tiny = torch.finfo(weights.dtype).tiny
    for first in range(0, n_rows, n_chunk):
        part = slice(first, first + n_chunk)
        p_RK, dp_RK, s_RK = weights_RK[part], grad_RK[part], out_RK[part]
        beta_R1 = beta[part] if beta.shape[0] > 1 else beta
        room = room_3RK[:, : p_RK.shape[0]]
        if alpha_R1 is None:
            _slope(p_RK, beta_R1, power, room, s_RK)
        else:
            psi_RK = _slope_and_psi(p_RK, beta_R1, room, s_RK)
        total = s_RK.sum(-1, keepdim=True).clamp_min_(tiny)  # 0 in a row without a key
        centred_RK = torch.mul(s_RK, dp_RK, out=room[0])
        centre = centred_RK.sum(-1, keepdim=True).div_(total)
        torch.sub(dp_RK, centre, out=centred_RK)
        if alpha_R1 is not None:
            alpha_R1[part] = psi_RK.mul_(centred_RK).sum(-1, keepdim=True).neg_()
        s_RK.mul_(centred_RK)


def _slope(p_RK: Tensor, beta: Tensor, power: Power, room_3RK: Tensor, out_RK: Tensor) -> None:
    """Write s = p^(2-α) on the support, else 0."""
    if power is Power.SQUARE:
        torch.sqrt(p_RK, out=out_RK)
    elif power is Power.LINEAR:
        torch.sign(p_RK, out=out_RK)
    else:
        s_RK, is_support_RK, _ = room_3RK.unbind()
        # the logarithm of 0 is slow; what becomes of it is put back to 0 by the sign
        torch.clamp_min(p_RK, torch.finfo(p_RK.dtype).tiny, out=s_RK)
        s_RK.log_().mul_((1.0 - beta) * LOG2_E).exp2_()
        torch.mul(s_RK, torch.sign(p_RK, out=is_support_RK), out=out_RK)


def _slope_and_psi(p_RK: Tensor, beta: Tensor, room_3RK: Tensor, out_RK: Tensor) -> Tensor:
    """Write s, and return p ψ in the last of the room; both are 0 off the support."""
    log_p_RK, y_RK, psi_RK = room_3RK.unbind()
    torch.clamp_min(p_RK, torch.finfo(p_RK.dtype).tiny, out=log_p_RK).log_()
    torch.mul(log_p_RK, -beta, out=y_RK)
    torch.expm1(y_RK, out=psi_RK)
    torch.addcmul(p_RK, p_RK, psi_RK, out=out_RK)
    if p_RK.device.type == "cpu":  # reading values back is free here
        least, most = (float(bound) for bound in beta.aminmax())
    else:
        least, most = 0.0, 1.0
    if most < BETA_SERIES:
        _series(y_RK, psi_RK).mul_(log_p_RK.square_())
        return psi_RK.mul_(p_RK)
    psi_RK.sub_(y_RK).div_(beta.square())
    if least < BETA_SERIES:
        series_RK = _series(y_RK, torch.empty_like(y_RK)).mul_(log_p_RK.square_())
        is_direct = (beta >= BETA_SERIES).to(beta.dtype)
        torch.lerp(series_RK, psi_RK, is_direct, out=psi_RK)
    return psi_RK.mul_(p_RK)


def _series(y_RK: Tensor, out_RK: Tensor) -> Tensor:
    """Write and return (exp(y) - 1 - y) / y² for small y."""
    coefficients = SERIES[y_RK.dtype]
    torch.mul(y_RK, coefficients[-1], out=out_RK)
    for coefficient in coefficients[-2:0:-1]:
        out_RK.add_(coefficient).mul_(y_RK)
    return out_RK.add_(coefficients[0])
