"""The maps as torch operators: the choice of kernel, and gradients (`reference.py`).

Only p and α are saved for the backward pass. The `torch.library` operators `headwise::weights` and
`headwise::weights_backward` are one node each for torch.compile and for checkpointing.

Axes: B batch, H heads, Q and K numbers of queries and keys.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from headwise.compilation import is_for_export
from headwise.ops import dispatch
from headwise.ops.family import ALPHAS, Power, beta_of, check_alpha
from headwise.ops.maps import cpu as cpu_maps
from headwise.ops.maps import export, reference
from headwise.ops.maps import triton as triton_maps
from headwise.ops.register import register
from headwise.ops.visible import Visible

DTYPES = (torch.float32, torch.float64)


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
    if is_for_export():
        return export.weights(scores_BHQK, alpha, mask, power)
    weights_BHQK: Tensor = _OPERATOR(scores_BHQK, alpha, mask, int(power))
    return weights_BHQK


def _weights(scores: Tensor, alpha: Tensor | None, mask: Tensor | None, power: int) -> Tensor:
    check_alpha(alpha)
    beta = beta_of(alpha)
    scores = scores.contiguous()
    kernel = dispatch.maps(scores, Power(power)).kernel
    if kernel == dispatch.CPP:
        return cpu_maps.forward(scores, beta, Power(power), Visible(mask=mask))
    if kernel == dispatch.TRITON:
        return triton_maps.forward(scores, beta, Power(power), mask)
    return reference.weights(scores, ALPHAS[Power(power)] if alpha is None else alpha, mask)


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
    if kernel == dispatch.TRITON:
        return triton_maps.backward(weights, grad, beta, Power(power), with_alpha)
    of_power = ALPHAS[Power(power)] if alpha is None else alpha
    grad_scores, grad_alpha = reference.gradients(weights, grad, of_power, with_alpha)
    return grad_scores, weights.new_empty(0) if grad_alpha is None else grad_alpha


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
    grad_scores, grad_rows = weights_backward(weights, grad, alpha, ctx.power, with_alpha)
    return grad_scores, grad_rows.sum_to_size(alpha.shape) if with_alpha else None, None, None


_OPERATOR = register(
    "weights(Tensor scores BHQK, Tensor? alpha *BHQ1, Tensor? mask *BHQK bool, int power)"
    " -> Tensor",
    _weights,
    _weights_shape,
    DTYPES,
    _save,
    _differentiate,
)
weights_backward = register(
    "weights_backward(Tensor weights BHQK, Tensor grad BHQK, Tensor? alpha *BHQ1, int power, "
    "bool with_alpha) -> (Tensor, Tensor)",
    _weights_backward,
    _weights_backward_shape,
    DTYPES,
)
