"""Output projection and loss together, one chunk of positions at a time.

The logits are the largest tensor of a training step: N positions times V classes, saved for the
backward pass, plus a gradient of the same size. Here the logits are computed in chunks: each
chunk's loss is computed and its gradient overwrites the logits before the next chunk. The gradient
of the weight is one matmul per group of chunks. Nothing is computed twice, and the saved tensors
have the sizes of states and weight.

Axes: N positions of all sentences, D model width, V vocabulary size, R rows of a chunk.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from headwise.compilation import outside_graphs
from headwise.ops.linear import matmul, matmul_out, weight_gradient

# Logits per chunk. On CPU 64 MiB in float32, half of a group's buffer: with fewer rows matmuls are
# slower, most of all on matrix units (AMX). On an accelerator enough to occupy it.
CHUNK_LOGITS = {"cpu": 1 << 24}
CHUNK_LOGITS_ACCELERATOR = 1 << 26
MIN_CHUNK_ROWS = 128  # with fewer rows, matmuls are inefficient
# Logits per matmul of the weight's gradient: each matmul is one more pass over a tensor of the
# weight's size, or two if dtypes differ.
GROUP_LOGITS = 1 << 25


@dataclass(frozen=True)
class RowSums:
    """Sums over rows of logits, and the gradient of `loss` with respect to them.

    Attributes:
        loss, measure: as in `headwise.losses.loss.LossSum`, neither of them differentiable.
        grad_RV: in the logits' dtype or a wider one; None if not requested.
    """

    loss: Tensor
    measure: Tensor
    grad_RV: Tensor | None


# (logits (R, V), targets (R,), with_gradient) -> sums
RowLoss = Callable[[Tensor, Tensor, bool], RowSums]


def projected_loss(
    states_ND: Tensor, weight_VD: Tensor, target_N: Tensor, row_loss: RowLoss
) -> tuple[Tensor, Tensor]:
    """Return loss and measure of the logits `states @ weight.T`, computed in chunks.

    Under autocast, matmuls run in its dtype, as in a linear layer; the gradient of the weight is
    summed over the chunks in the weight's dtype.

    Args:
        states_ND: input of the projection.
        weight_VD: of the projection.
        target_N: classes.
        row_loss: the loss of rows of logits.

    Returns:
        Scalars; the first is differentiable once, in states and weight.
    """
    result: tuple[Tensor, Tensor] = _project(states_ND, weight_VD, target_N, row_loss)
    return result


def chunk_rows(n_classes: int, device: torch.device) -> int:
    """Return the number of positions per chunk."""
    limit = CHUNK_LOGITS.get(device.type, CHUNK_LOGITS_ACCELERATOR)
    return max(limit // n_classes, MIN_CHUNK_ROWS)


# torch.compile would unroll the loop over chunks.
@outside_graphs
def _project(
    states_ND: Tensor, weight_VD: Tensor, target_N: Tensor, row_loss: RowLoss
) -> tuple[Tensor, Tensor]:
    device_type = states_ND.device.type
    dtype = weight_VD.dtype
    if torch.is_autocast_enabled(device_type) and dtype != torch.float64:
        dtype = torch.get_autocast_dtype(device_type)
    # inside the function is_grad_enabled() is always False
    result: tuple[Tensor, Tensor] = _ProjectedLoss.apply(  # type: ignore[no-untyped-call]
        states_ND, weight_VD, target_N, row_loss, dtype, torch.is_grad_enabled()
    )
    return result


class _ProjectedLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        states_ND: Tensor,
        weight_VD: Tensor,
        target_N: Tensor,
        row_loss: RowLoss,
        dtype: torch.dtype,
        with_gradients: bool,
    ) -> tuple[Tensor, Tensor]:
        needs_states, needs_weight, *_ = (with_gradients and x for x in ctx.needs_input_grad)
        with torch.autocast(states_ND.device.type, enabled=False):
            loss, measure, *gradients = _sums(
                states_ND, weight_VD, target_N, row_loss, dtype, needs_states, needs_weight
            )
        ctx.save_for_backward(*gradients)
        ctx.mark_non_differentiable(measure)
        return loss, measure

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_loss: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        grad_states_ND, grad_weight_VD = ctx.saved_tensors
        if grad_states_ND is not None:
            grad_states_ND = grad_states_ND * grad_loss
        if grad_weight_VD is not None:  # contiguous, even if the gradient is transposed
            scaled_VD = grad_weight_VD.new_empty(grad_weight_VD.shape)
            grad_weight_VD = torch.mul(grad_weight_VD, grad_loss, out=scaled_VD)
        return grad_states_ND, grad_weight_VD, *(None,) * 4


def _sums(
    states_ND: Tensor,
    weight_VD: Tensor,
    target_N: Tensor,
    row_loss: RowLoss,
    dtype: torch.dtype,
    needs_states: bool,
    needs_weight: bool,
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """Return loss, measure, and the requested gradients of the loss in states and weight."""
    cast_states_ND, cast_weight_VD = states_ND.to(dtype), weight_VD.to(dtype)
    n_rows = n_group = chunk_rows(len(weight_VD), states_ND.device)
    if needs_weight:
        n_group *= max(GROUP_LOGITS // (n_rows * len(weight_VD)), 1)
    grad_ND = torch.empty_like(states_ND) if needs_states else None
    total_VD: Tensor | None = None  # of the weight
    buffer_GV = cast_states_ND.new_empty(min(n_group, len(states_ND)), len(weight_VD))
    sums: list[RowSums] = []
    for start in range(0, len(states_ND), n_group):
        group_ND = cast_states_ND[start : start + n_group]
        for first in range(0, len(group_ND), n_rows):
            states_RD = group_ND[first : first + n_rows]
            rows = slice(start + first, start + first + len(states_RD))
            logits_RV = buffer_GV[first : first + len(states_RD)]
            matmul_out(logits_RV, states_RD, cast_weight_VD)
            chunk = row_loss(logits_RV, target_N[rows], needs_states or needs_weight)
            sums.append(RowSums(chunk.loss, chunk.measure, None))
            if chunk.grad_RV is not None:
                logits_RV.copy_(chunk.grad_RV)
            if grad_ND is not None:
                grad_ND[rows] = matmul(logits_RV, cast_weight_VD.t())
        if needs_weight:
            part_VD = weight_gradient(buffer_GV[: len(group_ND)], group_ND)
            total_VD = part_VD.to(weight_VD.dtype) if total_VD is None else total_VD.add_(part_VD)
    if needs_weight and total_VD is None:  # no targets
        total_VD = torch.zeros_like(weight_VD)
    loss, measure = states_ND.new_zeros(2, dtype=torch.promote_types(dtype, torch.float32)).unbind()
    for part in sums:
        loss, measure = loss + part.loss, measure + part.measure
    return loss, measure, grad_ND, total_VD
