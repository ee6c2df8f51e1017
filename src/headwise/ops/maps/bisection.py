"""Maps whose threshold is found by bisection, and their gradients, in plain torch.

With β = α - 1, the gaps g_i = z_max - z_i ≥ 0 of a row of scores z, and an unknown level L,

    α-entmax, every α    r_i = [e^(βL) - β g_i]_+^(1/β)    Σ r = 1      p = r
    α-normmax, α > 1     r_i = [e^(βL) - g_i]_+^(1/β)      Σ r^α = 1    p = r / Σ r
    budget sparsemax     p_i = clamp(L - g_i, 0, 1)        Σ p = budget

Each sum grows with L; in the first two L = ln r_max is in [-ln K, 0] for every α. With a gradient
dp of the weights, dz and the derivative of α or budget follow from the implicit function theorem.
`reference.py` has those of α-entmax; of normmax, with N = ||p||_α and q = p / N,

    v_i = N (dp_i - <dp, p>) q_i^(1-β) / β        dz_i = v_i - p_i Σ v
    dα  = N Σ q^α ln q Σ v / α - Σ (dp_i - <dp, p>) p_i ln q_i / β

Sources: Peters et al. 2019; Blondel et al. 2020 (normmax); Martins and Kreutzer 2017 (budget).
Axes: B batch, H heads, Q queries, K keys.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from enum import IntEnum
from typing import Any

import torch
from torch import Tensor

from headwise.compilation import is_for_export
from headwise.ops.arguments import check_tensor
from headwise.ops.family import Power
from headwise.ops.maps import export, operator
from headwise.ops.register import register

N_STEPS = {torch.float32: 40, torch.float64: 70}  # to the last bit
LOWEST = -64 * math.log(2)  # of L; below -ln K, so that masked keys change no step
N_TERMS = 18  # of the series of χ up to |y| = 1
SMALLEST = 1e-30  # |β| in place of 0: every formula is finite and equals its limit


class Map(IntEnum):
    """The maps; each has one parameter."""

    ENTMAX = 0  # α
    NORMMAX = 1  # α > 1
    BUDGET = 2  # the sum of the weights, ≥ 0


def weights(scores_BHQK: Tensor, parameter: Tensor, mask: Tensor | None, kind: Map) -> Tensor:
    """Return the weights along the last axis, differentiable once in scores and parameter.

    α-entmax with every α in [1, 2] has the kernels of `operator.weights`. Values of the parameter
    are read for this, which waits for an accelerator.

    Args:
        scores_BHQK: float32 or float64; -inf counts as masked.
        parameter: broadcastable to (B, H, Q, 1), same dtype.
        mask: bool, broadcastable to the scores, True = may attend.
        kind: the map.

    Raises:
        ValueError: a parameter out of range, or a mask that does not broadcast.
    """
    if mask is not None:
        shape, device = scores_BHQK.shape, scores_BHQK.device
        check_tensor("mask", mask, (torch.bool,), shape, device, broadcasts=True)
        scores_BHQK = scores_BHQK.masked_fill(~mask, -math.inf)
    if is_for_export():
        return _weights(scores_BHQK, parameter, kind)
    weights_BHQK: Tensor = _OPERATOR(scores_BHQK, parameter, int(kind))
    return weights_BHQK


def log_of(p: Tensor) -> Tensor:
    """Return ln p, 0 off the support."""
    return torch.where(p == 0, 1.0, p).log()


def chi(y: Tensor) -> Tensor:
    """Return (exp(y) - 1 - y) / y², ½ at 0; ψ of `reference.py` is ln² p χ(-β ln p)."""
    series = torch.zeros_like(y)
    for degree in range(N_TERMS, 1, -1):
        series = series * y + 1 / math.factorial(degree)
    return torch.where(y.abs() < 1, series, (_bounded(y).expm1() - y) / y.square())


def powers(p: Tensor, exponent: Tensor) -> Tensor:
    """Return p^exponent on the support, finite for small p and a negative exponent; 0 off it."""
    return p.sign() * _bounded(exponent * log_of(p)).exp()


def entropy(p: Tensor, alpha: Tensor, kind: Map) -> Tensor:
    """Return H(p) of rows, which the map adds to <p, z>.

    α-entmax, α > 0: Σ (p - p^α) / (α (α - 1)), -Σ p ln p as α tends to 1. Normmax: 1 - ||p||_α.
    """
    if kind is Map.NORMMAX:
        return 1 - powers(p, alpha).sum(-1).pow(1 / alpha[..., 0])
    y = (alpha - 1) * log_of(p)
    return -(p * log_of(p) * (1 + y * chi(y)) / alpha).sum(-1)


def _bounded(exponent: Tensor) -> Tensor:
    return exponent.clamp_max(math.log(torch.finfo(exponent.dtype).max) / 2)


def _beta_of(alpha: Tensor) -> Tensor:
    beta = alpha - 1
    return torch.where(beta.abs() < SMALLEST, SMALLEST, beta)


def _sum(values: Tensor) -> Tensor:
    return values.sum(-1, keepdim=True)


def _weights(scores: Tensor, parameter: Tensor, kind: int) -> Tensor:
    if not is_for_export() and _has_kernels(parameter, kind):
        return operator.weights(scores, parameter, None, Power.ANY)
    if not scores.numel():
        return torch.zeros_like(scores, memory_format=torch.contiguous_format)
    top = scores.amax(-1, keepdim=True)
    gap = top - scores  # with NaN in a row with +inf or without a key
    p = _budget(gap, parameter) if kind == Map.BUDGET else _normalised(gap, parameter, kind)
    return p.masked_fill(top == -math.inf, 0.0).contiguous()


def _has_kernels(parameter: Tensor, kind: int) -> bool:
    """Check the range of the parameter; return whether it is an α in [1, 2] of α-entmax."""
    if not parameter.numel():
        return False
    low, high = (float(bound) for bound in parameter.aminmax())
    is_low = (kind == Map.NORMMAX and low <= 1) or (kind == Map.BUDGET and low < 0)
    if is_low or not -math.inf < low <= high < math.inf:
        raise ValueError(
            "alpha must be finite, and above 1 for normmax; a budget finite and at least 0; "
            f"got values from {low} to {high}"
        )
    return kind == Map.ENTMAX and low >= 1 and high <= 2


def _bisect(total: Callable[[Tensor], Tensor], goal: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Return the level in [low, high] at which the total, which grows with it, is the goal."""
    for _ in range(N_STEPS[high.dtype]):
        middle = (low + high) / 2
        is_enough = total(middle) >= goal
        low, high = torch.where(is_enough, low, middle), torch.where(is_enough, middle, high)
    return high


def _normalised(gap: Tensor, alpha: Tensor, kind: int) -> Tensor:
    """Return α-entmax or α-normmax of gaps."""
    beta, one = _beta_of(alpha), torch.ones_like(alpha)
    gap, power = (gap * beta, one) if kind == Map.ENTMAX else (gap, alpha)
    info = torch.finfo(gap.dtype)
    log1p = export.log1p if is_for_export() else torch.log1p

    def log_r(level: Tensor) -> Tensor:
        scale = (-beta * level).exp().clamp(info.tiny, info.max)
        return level + log1p((-gap * scale).clamp_min(-1.0)) / beta

    highest = gap.new_zeros((*gap.shape[:-1], 1))
    total = lambda level: _sum((power * log_r(level)).exp())  # noqa: E731
    r = log_r(_bisect(total, one, highest + LOWEST, highest)).exp()
    return r / _sum(r)


def _budget(gap: Tensor, budget: Tensor) -> Tensor:
    """Return budget sparsemax of gaps; a row with fewer keys than its budget is 1 at all keys."""
    highest = gap.masked_fill(gap == math.inf, 0.0).amax(-1, keepdim=True) + 1
    total = lambda level: _sum((level - gap).clamp(0.0, 1.0))  # noqa: E731
    return (_bisect(total, budget, 0 * highest, highest) - gap).clamp(0.0, 1.0)


def _backward(p: Tensor, grad: Tensor, parameter: Tensor, kind: int) -> tuple[Tensor, Tensor]:
    """Return the gradients of the scores, and of the parameter per row (B, H, Q, 1)."""
    if _has_kernels(parameter, kind):
        options = (int(Power.ANY), True)
        grads: tuple[Tensor, Tensor] = operator.weights_backward(p, grad, parameter, *options)
        return grads
    compute = (_entmax_gradients, _normmax_gradients, _budget_gradients)[kind]
    grad_scores, grad_rows = compute(p, grad, parameter)
    return grad_scores.contiguous(), grad_rows


def _entmax_gradients(p: Tensor, grad: Tensor, alpha: Tensor) -> tuple[Tensor, Tensor]:
    log_p, s = log_of(p), powers(p, 2 - alpha)
    centred = grad - _sum(s * grad) / _sum(s).clamp_min(torch.finfo(p.dtype).tiny)
    return s * centred, -_sum(p * log_p.square() * chi((1 - alpha) * log_p) * centred)


def _normmax_gradients(p: Tensor, grad: Tensor, alpha: Tensor) -> tuple[Tensor, Tensor]:
    total = _sum(powers(p, alpha)).clamp_min(torch.finfo(p.dtype).tiny)
    norm, beta = total.pow(1 / alpha), _beta_of(alpha)
    log_q = log_of(p / norm)
    centred = grad - _sum(p * grad)
    v = norm * centred * powers(p / norm, 1 - beta) / beta
    spread = norm * _sum(powers(p / norm, alpha) * log_q) / alpha
    return v - p * _sum(v), spread * _sum(v) - _sum(centred * p * log_q) / beta


def _budget_gradients(p: Tensor, grad: Tensor, budget: Tensor) -> tuple[Tensor, Tensor]:
    is_between = (p > 0) & (p < 1)
    mean = _sum(grad * is_between) / _sum(is_between).clamp_min(1)
    return (grad - mean) * is_between, mean


def _shape(scores: Tensor, *rest: Any) -> Tensor:
    return torch.empty_like(scores, memory_format=torch.contiguous_format)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(output, inputs[1])
    ctx.kind = inputs[2]
    ctx.set_materialize_grads(False)


def _differentiate(ctx: Any, grad: Tensor | None) -> tuple[Tensor | None, Tensor | None, None]:
    if grad is None:  # of losses, whose gradient is p itself
        return None, None, None
    p, parameter = ctx.saved_tensors
    grad_scores, grad_rows = _BACKWARD(p, grad, parameter, ctx.kind)
    return grad_scores, grad_rows.sum_to_size(parameter.shape), None


_OPERATOR = register(
    "bisected_weights(Tensor scores BHQK, Tensor parameter *BHQ1, int kind) -> Tensor",
    _weights,
    _shape,
    operator.DTYPES,
    _save,
    _differentiate,
)
_BACKWARD = register(
    "bisected_weights_backward(Tensor weights BHQK, Tensor grad BHQK, Tensor parameter *BHQ1, "
    "int kind) -> (Tensor, Tensor)",
    _backward,
    lambda p, *rest: (_shape(p), p.new_empty((*p.shape[:-1], 1))),
    operator.DTYPES,
)
