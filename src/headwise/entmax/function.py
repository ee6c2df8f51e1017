"""The maps as torch operators: forward, gradients in closed form, and the choice of kernel.

With y_i = -β ln p_i and s_i = p_i exp(y_i) = p_i^(2-α), 0 off the support:

    c    = Σ s dp / Σ s
    dz_i = s_i (dp_i - c)                                 (Peters et al. 2019)
    dα   = -Σ p_i ψ_i (dp_i - c),   ψ = (exp(y) - 1 - y) / β²,   ½ ln² p as α falls to 1

The last line equals the proposition of Correia et al. 2019, but avoids its difference of large
numbers, which loses precision as 1/β². Only p and α are saved for the backward pass.

float32 is computed by `headwise.kernels.native` on a CPU and by `headwise.kernels.triton_maps` on a
GPU. The code here and in `solver.py` serves float64, other devices, and machines without a compiler
or Triton. The `torch.library` operators `headwise::weights` and `headwise::weights_backward` are
one node each for torch.compile and for checkpointing.

Axes: B batch, H heads, Q and K numbers of queries and keys, R rows.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from headwise.entmax.solver import CHUNK_SCORES, solve
from headwise.kernels import choice, native, triton_maps
from headwise.kernels.checks import Reference
from headwise.kernels.operators import register
from headwise.kernels.problem import ALPHAS, Power, Visible, beta_of, check_alpha

# For β at or above this: exp(y) - 1 - y directly; below: its series, accurate for p > 1e-9.
BETA_SERIES = 0.1
# 1/2!, 1/3!, 1/4!, …
SERIES = {
    torch.float32: tuple(1 / math.factorial(degree) for degree in range(2, 9)),
    torch.float64: tuple(1 / math.factorial(degree) for degree in range(2, 18)),
}
LOG2_E = math.log2(math.e)


def masked_copy(scores: Tensor, mask: Tensor) -> Tensor:
    """Return a contiguous copy of `scores` with -inf wherever the broadcast `mask` is False."""
    if scores.device.type != "cpu":
        return scores.masked_fill(~mask, -torch.inf).contiguous()
    # On a CPU masked_fill and where are an order of magnitude slower than arithmetic, but
    # arithmetic would propagate NaN: combine the bits instead.
    int_dtype = torch.int32 if scores.dtype is torch.float32 else torch.int64
    keep = mask.to(int_dtype).neg_()  # all bits set where True
    fill = torch.where(mask, 0.0, -torch.inf).to(scores.dtype).view(int_dtype)
    bits = torch.bitwise_and(scores.contiguous().view(int_dtype), keep)
    return bits.bitwise_or_(fill).view(scores.dtype)


def weights(scores_BHQK: Tensor, alpha: Tensor | None, mask: Tensor | None, power: Power) -> Tensor:
    """Return the weights along the last axis, differentiable once in the scores and in α.

    Args:
        scores_BHQK: float32 or float64, four axes.
        alpha: broadcastable to (B, H, Q, 1), same dtype; required by `Power.ANY`, else None.
        mask: bool, broadcastable to the scores, True = may attend.
        power: the map; `Power.ANY` for a learned α or one without a closed form.

    Raises:
        ValueError: α outside [1, 2], on a CPU.
    """
    choice.maps(scores_BHQK, power, REFERENCE)  # verify here: an operator cannot
    weights_BHQK: Tensor = _OPERATOR(scores_BHQK, alpha, mask, int(power))
    return weights_BHQK


def _weights(scores: Tensor, alpha: Tensor | None, mask: Tensor | None, power: int) -> Tensor:
    check_alpha(alpha)
    beta = beta_of(alpha)
    scores = scores.contiguous()
    kernel = choice.maps(scores, Power(power)).kernel
    if kernel == choice.CPP:
        visible = Visible(None if mask is None else native.readable(mask))
        return native.forward(scores, beta, Power(power), visible)
    if power == Power.EXP:
        return _softmax(scores, mask)
    if kernel == choice.TRITON:
        return triton_maps.forward(scores, beta, Power(power), mask)
    n_keys = scores.shape[-1]
    if mask is None:
        source, out = scores, torch.empty_like(scores)
    else:
        source = out = masked_copy(scores, mask)
    if scores.numel():
        rows = _rows(beta, scores, Power(power))
        is_cpu = scores.device.type == "cpu"
        solve(source.view(-1, n_keys), rows, Power(power), out.view(-1, n_keys), is_cpu)
    return out


def _weights_backward(
    weights: Tensor, grad: Tensor, alpha: Tensor | None, power: int, with_alpha: bool
) -> tuple[Tensor, Tensor]:
    """Return the gradients of the scores and of α per row (B, H, Q, 1); empty if not requested."""
    _check_with_alpha(power, with_alpha)
    beta = beta_of(alpha)
    weights, grad = weights.contiguous(), grad.contiguous()
    kernel = choice.maps(weights, Power(power)).kernel
    if kernel == choice.CPP:
        return native.backward(weights, grad, beta, Power(power), with_alpha)
    if power == Power.EXP:
        softmax_grad = torch.ops.aten._softmax_backward_data(grad, weights, -1, weights.dtype)
        return softmax_grad, weights.new_empty(0)
    if kernel == choice.TRITON:
        return triton_maps.backward(weights, grad, beta, Power(power), with_alpha)
    grad_scores = torch.empty_like(weights)
    grad_rows = weights.new_zeros((*weights.shape[:-1], 1)) if with_alpha else None
    rows = _rows(beta, weights, Power(power))
    _backward(weights, grad, rows, Power(power), grad_scores, grad_rows)
    return grad_scores, weights.new_empty(0) if grad_rows is None else grad_rows


REFERENCE = Reference(_weights, _weights_backward)  # called with float64, which no kernel supports


def _softmax(scores: Tensor, mask: Tensor | None) -> Tensor:
    if mask is not None:
        scores = masked_copy(scores, mask)
    weights = torch.softmax(scores, -1)
    # every key of an empty row is NaN, so checking the first key of each row is enough
    if scores.device.type != "cpu" or bool(weights[..., :1].isnan().any()):
        is_empty = (scores == -torch.inf).all(-1, keepdim=True)
        weights = weights.masked_fill_(is_empty, 0.0)
    return weights


def _rows(beta: Tensor | None, scores: Tensor, power: Power) -> Tensor:
    """Return β of every row (R, 1), or (1, 1) if all rows share it."""
    if beta is None:
        return scores.new_full((1, 1), ALPHAS[power] - 1)
    if beta.numel() > 1:
        beta = beta.expand(*scores.shape[:-1], 1)
    return beta.reshape(-1, 1)


def _backward(
    weights: Tensor,
    grad: Tensor,
    beta: Tensor,
    power: Power,
    grad_scores: Tensor,
    grad_rows: Tensor | None,
) -> None:
    """Write the gradient of the scores and, unless `grad_rows` is None, of α per row."""
    if weights.numel() == 0:
        return
    n_keys = weights.shape[-1]
    weights_RK, grad_RK = weights.view(-1, n_keys), grad.reshape(-1, n_keys)
    out_RK = grad_scores.view(-1, n_keys)
    alpha_R1 = None if grad_rows is None else grad_rows.view(-1, 1)
    n_rows = weights_RK.shape[0]
    is_cpu = weights.device.type == "cpu"
    n_chunk = min(n_rows, max(1, CHUNK_SCORES // n_keys)) if is_cpu else n_rows
    buffer_3RK = weights.new_empty(3, n_chunk, n_keys)
    tiny = torch.finfo(weights.dtype).tiny
    for first in range(0, n_rows, n_chunk):
        part = slice(first, first + n_chunk)
        p_RK, dp_RK, s_RK = weights_RK[part], grad_RK[part], out_RK[part]
        beta_R1 = beta[part] if beta.shape[0] > 1 else beta
        buffer = buffer_3RK[:, : p_RK.shape[0]]
        if alpha_R1 is None:
            _slope(p_RK, beta_R1, power, buffer, s_RK)
        else:
            psi_RK = _slope_and_psi(p_RK, beta_R1, buffer, s_RK)
        total = s_RK.sum(-1, keepdim=True).clamp_min_(tiny)  # 0 in a row without a key
        centred_RK = torch.mul(s_RK, dp_RK, out=buffer[0])
        centre = centred_RK.sum(-1, keepdim=True).div_(total)
        torch.sub(dp_RK, centre, out=centred_RK)
        if alpha_R1 is not None:
            alpha_R1[part] = psi_RK.mul_(centred_RK).sum(-1, keepdim=True).neg_()
        s_RK.mul_(centred_RK)


def _slope(p_RK: Tensor, beta: Tensor, power: Power, buffer_3RK: Tensor, out_RK: Tensor) -> None:
    """Write s = p^(2-α) on the support, else 0."""
    if power is Power.SQUARE:
        torch.sqrt(p_RK, out=out_RK)
    elif power is Power.LINEAR:
        torch.sign(p_RK, out=out_RK)
    else:
        s_RK, is_support_RK, _ = buffer_3RK.unbind()
        # the logarithm of 0 is slow: clamp, then multiply by the sign to restore 0
        torch.clamp_min(p_RK, torch.finfo(p_RK.dtype).tiny, out=s_RK)
        s_RK.log_().mul_((1.0 - beta) * LOG2_E).exp2_()
        torch.mul(s_RK, torch.sign(p_RK, out=is_support_RK), out=out_RK)


def _slope_and_psi(p_RK: Tensor, beta: Tensor, buffer_3RK: Tensor, out_RK: Tensor) -> Tensor:
    """Write s, and return p ψ in the last buffer; both are 0 off the support."""
    log_p_RK, y_RK, psi_RK = buffer_3RK.unbind()
    torch.clamp_min(p_RK, torch.finfo(p_RK.dtype).tiny, out=log_p_RK).log_()
    torch.mul(log_p_RK, -beta, out=y_RK)
    torch.expm1(y_RK, out=psi_RK)
    torch.addcmul(p_RK, p_RK, psi_RK, out=out_RK)
    if p_RK.device.type == "cpu":  # reading values back is free here
        beta_min, beta_max = (float(bound) for bound in beta.aminmax())
    else:
        beta_min, beta_max = 0.0, 1.0
    if beta_max < BETA_SERIES:
        _series(y_RK, psi_RK).mul_(log_p_RK.square_())
        return psi_RK.mul_(p_RK)
    psi_RK.sub_(y_RK).div_(beta.square())
    if beta_min < BETA_SERIES:
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


def _weights_shape(scores: Tensor, alpha: Tensor | None, mask: Tensor | None, power: int) -> Tensor:
    return torch.empty_like(scores, memory_format=torch.contiguous_format)


def _weights_backward_shape(
    weights: Tensor, grad: Tensor, alpha: Tensor | None, power: int, with_alpha: bool
) -> tuple[Tensor, Tensor]:
    _check_with_alpha(power, with_alpha)
    rows = (*weights.shape[:-1], 1) if with_alpha else (0,)
    contiguous = torch.contiguous_format
    return torch.empty_like(weights, memory_format=contiguous), weights.new_empty(rows)


def _check_with_alpha(power: int, with_alpha: bool) -> None:
    if with_alpha and power == Power.EXP:
        raise ValueError(f"with_alpha=True needs power={int(Power.ANY)}: softmax has no α")


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, alpha, _, power = inputs
    ctx.save_for_backward(output, alpha)
    ctx.power = power


def _differentiate(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor | None, None, None]:
    weights, alpha = ctx.saved_tensors
    with_alpha = alpha is not None and ctx.needs_input_grad[1]
    grad_scores, grad_rows = _BACKWARD(weights, grad, alpha, ctx.power, with_alpha)
    return grad_scores, grad_rows.sum_to_size(alpha.shape) if with_alpha else None, None, None


_OPERATOR = register(
    "weights(Tensor scores BHQK, Tensor? alpha *BHQ1, Tensor? mask *BHQK bool, int power)"
    " -> Tensor",
    _weights,
    _weights_shape,
    tuple(SERIES),
    _save,
    _differentiate,
    dispatch="CompositeExplicitAutograd",
)
_BACKWARD = register(
    "weights_backward(Tensor weights BHQK, Tensor grad BHQK, Tensor? alpha *BHQ1, int power, "
    "bool with_alpha) -> (Tensor, Tensor)",
    _weights_backward,
    _weights_backward_shape,
    tuple(SERIES),
    dispatch="CompositeExplicitAutograd",
)
