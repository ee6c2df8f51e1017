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

from typing import Any

import torch
from torch import Tensor

from headwise.entmax.solver import BETA_MIN, CHUNK_SCORES, Power, solve

# Above, exp(y) - 1 - y as it stands; below, its series, which is accurate where p > 1e-9.
BETA_SERIES = 0.1
# 1/2!, 1/3!, … 1/8!
SERIES = (1 / 2, 1 / 6, 1 / 24, 1 / 120, 1 / 720, 1 / 5040, 1 / 40320)
SERIES_DOUBLE = (*SERIES, *(SERIES[-1] / d for d in (9.0, 90.0, 990.0, 11880.0, 154440.0)))


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
    n_keys = weights.shape[-1]
    if weights.numel() == 0:
        return
    weights_RK, grad_RK = weights.view(-1, n_keys), grad.reshape(-1, n_keys)
    out_RK = grad_scores.view(-1, n_keys)
    alpha_R1 = None if grad_rows is None else grad_rows.view(-1, 1)
    n_rows = weights_RK.shape[0]
    is_cpu = weights.device.type == "cpu"
    n_chunk = max(1, CHUNK_SCORES // n_keys) if is_cpu else n_rows
    for first in range(0, n_rows, n_chunk):
        part = slice(first, first + n_chunk)
        p_RK = weights_RK[part]
        beta_R1 = beta[part] if beta.shape[0] > 1 else beta
        if alpha_R1 is None:
            s_RK, psi_RK = _slope(p_RK, beta_R1, power), None
        else:
            s_RK, psi_RK = _slope_and_psi(p_RK, beta_R1)
        tiny = torch.finfo(p_RK.dtype).tiny
        total = s_RK.sum(-1, keepdim=True).clamp_min_(tiny)  # 0 in a row without a key
        product_RK = s_RK * grad_RK[part]
        centre = product_RK.sum(-1, keepdim=True).div_(total)
        centred_RK = torch.sub(grad_RK[part], centre, out=product_RK)
        if alpha_R1 is not None and psi_RK is not None:
            torch.sum(psi_RK.mul_(centred_RK), -1, keepdim=True, out=alpha_R1[part]).neg_()
        torch.mul(centred_RK, s_RK, out=out_RK[part])


def _slope(p_RK: Tensor, beta: Tensor, power: Power) -> Tensor:
    """The s = p^(2-α) on the support, else 0."""
    if power is Power.SQUARE:
        return p_RK.sqrt()
    if power is Power.LINEAR:
        return p_RK.sign()
    # zeros would send the logarithm down a slow path; their s is put to 0 by the sign
    floor = torch.finfo(p_RK.dtype).tiny
    s_RK = p_RK.clamp_min(floor).log_().mul_((1.0 - beta) / 0.6931471805599453).exp2_()
    return s_RK.mul_(p_RK.sign())


def _slope_and_psi(p_RK: Tensor, beta: Tensor) -> tuple[Tensor, Tensor]:
    """The s and p ψ, both 0 off the support."""
    log_p_RK = p_RK.clamp_min(torch.finfo(p_RK.dtype).tiny).log_()
    y_RK = log_p_RK * -beta
    growth_RK = torch.expm1(y_RK)
    s_RK = torch.addcmul(p_RK, p_RK, growth_RK)
    border = BETA_SERIES if p_RK.dtype is torch.float32 else 2 * BETA_SERIES
    if p_RK.device.type == "cpu":  # reading values back is free here
        least, most = (float(bound) for bound in beta.aminmax())
    else:
        least, most = 0.0, 1.0
    if least >= border:
        return s_RK, growth_RK.sub_(y_RK).div_(beta.square()).mul_(p_RK)
    series_RK = log_p_RK.square_().mul_(_series(y_RK))
    if most >= border:
        is_direct = (beta >= border).to(beta.dtype)
        direct_RK = growth_RK.sub_(y_RK).div_(beta.square())
        series_RK = torch.lerp(series_RK, direct_RK, is_direct)
    return s_RK, series_RK.mul_(p_RK)


def _series(y_RK: Tensor) -> Tensor:
    """(exp(y) - 1 - y) / y² for small y."""
    coefficients = SERIES if y_RK.dtype is torch.float32 else SERIES_DOUBLE
    value_RK = y_RK * coefficients[-1]
    for coefficient in coefficients[-2:0:-1]:
        value_RK.add_(coefficient).mul_(y_RK)
    return value_RK.add_(coefficients[0])
