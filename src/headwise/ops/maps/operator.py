"""The maps as torch operators: forward, gradients in closed form, and the choice of kernel.

With y_i = -β ln p_i and s_i = p_i exp(y_i) = p_i^(2-α), 0 off the support:

    c    = Σ s dp / Σ s
    dz_i = s_i (dp_i - c)                                 (Peters et al. 2019)
    dα   = -Σ p_i ψ_i (dp_i - c),   ψ = (exp(y) - 1 - y) / β²,   ½ ln² p as α falls to 1

The last line equals the proposition of Correia et al. 2019, but avoids its difference of large
numbers, which loses precision as 1/β². Only p and α are saved for the backward pass.

float32 is computed by `cpu.py` on a CPU and by `triton.py` on a GPU; `reference.py` serves float64,
other devices, and machines without a compiler or Triton. The `torch.library` operators
`headwise::weights` and `headwise::weights_backward` are one node each for torch.compile and for
checkpointing.

Axes: B batch, H heads, Q and K numbers of queries and keys, R rows.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from headwise.ops import dispatch
from headwise.ops.checks import Reference
from headwise.ops.cpp.call import readable
from headwise.ops.family import Power, beta_of, check_alpha
from headwise.ops.maps import cpu as cpu_maps
from headwise.ops.maps import triton as triton_maps
from headwise.ops.maps.reference import (
    SERIES,
    _backward,
    _rows,
    _softmax,
    masked_copy,
    solve,
)
from headwise.ops.register import register
from headwise.ops.visible import Visible


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
    dispatch.maps(scores_BHQK, power, REFERENCE)  # verify here: an operator cannot
    weights_BHQK: Tensor = _OPERATOR(scores_BHQK, alpha, mask, int(power))
    return weights_BHQK


def _weights(scores: Tensor, alpha: Tensor | None, mask: Tensor | None, power: int) -> Tensor:
    check_alpha(alpha)
    beta = beta_of(alpha)
    scores = scores.contiguous()
    kernel = dispatch.maps(scores, Power(power)).kernel
    if kernel == dispatch.CPP:
        visible = Visible(None if mask is None else readable(mask))
        return cpu_maps.forward(scores, beta, Power(power), visible)
    if power == Power.EXP:
        return _softmax(scores, mask)
    if kernel == dispatch.TRITON:
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
    kernel = dispatch.maps(weights, Power(power)).kernel
    if kernel == dispatch.CPP:
        return cpu_maps.backward(weights, grad, beta, Power(power), with_alpha)
    if power == Power.EXP:
        softmax_grad = torch.ops.aten._softmax_backward_data(grad, weights, -1, weights.dtype)
        return softmax_grad, weights.new_empty(0)
    if kernel == dispatch.TRITON:
        return triton_maps.backward(weights, grad, beta, Power(power), with_alpha)
    grad_scores = torch.empty_like(weights)
    grad_rows = weights.new_zeros((*weights.shape[:-1], 1)) if with_alpha else None
    rows = _rows(beta, weights, Power(power))
    _backward(weights, grad, rows, Power(power), grad_scores, grad_rows)
    return grad_scores, weights.new_empty(0) if grad_rows is None else grad_rows


REFERENCE = Reference(_weights, _weights_backward)  # called with float64, which no kernel supports


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
