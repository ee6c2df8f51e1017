"""Output projection and loss together, a chunk of positions at a time.

The logits of all positions are the largest tensor of a step: N positions times V words, kept for
the backward pass, and beside them a gradient of their size. Here a chunk of logits is made, its
loss taken and its gradient put in its place before the next one is made; what a group of chunks
says of the weight is multiplied at once. So nothing is computed a second time, and what is kept has
the sizes of the states and the weight.

Letters: N positions of all sentences, D model width, V vocabulary, R rows of a chunk.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from headwise.compilation import outside_graphs
from headwise.kernels.linear import product, product_into, weight_gradient

# Logits of a chunk: on a CPU a few MB, which its cache holds between the passes over them; on an
# accelerator enough to fill it.
CHUNK_LOGITS = {"cpu": 1 << 22}
CHUNK_LOGITS_ACCELERATOR = 1 << 26
MIN_CHUNK_ROWS = 128  # fewer make poor matrix products
# Logits whose gradients are kept to be multiplied at once: each product of a weight's gradient is
# one more pass over a tensor as large as the weight, or two where types differ.
GROUP_LOGITS = 1 << 25


@dataclass(frozen=True)
class RowSums:
    """Sums over rows of logits, and the gradient of `loss` in them.

    Attributes:
        loss, measure: as in `headwise.losses.loss.LossSum`, neither of them differentiable.
        grad_RV: in the logits' type or a wider one; None where not asked for.
    """

    loss: Tensor
    measure: Tensor
    grad_RV: Tensor | None


# (logits (R, V), target (R,), whether the gradient is wanted)
RowLoss = Callable[[Tensor, Tensor, bool], RowSums]


def projected_loss(
    states_ND: Tensor, weight_VD: Tensor, target_N: Tensor, row_loss: RowLoss
) -> tuple[Tensor, Tensor]:
    """Loss and measure of the logits `states @ weight.T`, which are never all there at once.

    The products are taken in autocast's type where it is switched on, as a linear layer does; the
    gradient of the weight is summed over the chunks in the weight's own type.

    Args:
        states_ND: what the projection reads.
        weight_VD: of the projection.
        target_N: classes.
        row_loss: the loss of rows of logits.

    Returns:
        Scalars; the first is differentiable once, in states and weight.
    """
    found: tuple[Tensor, Tensor] = _project(states_ND, weight_VD, target_N, row_loss)
    return found


def chunk_rows(n_words: int, device: torch.device) -> int:
    """Positions of a chunk."""
    limit = CHUNK_LOGITS.get(device.type, CHUNK_LOGITS_ACCELERATOR)
    return max(limit // n_words, MIN_CHUNK_ROWS)


# A compiled graph would unroll the loop over chunks.
@outside_graphs
def _project(
    states_ND: Tensor, weight_VD: Tensor, target_N: Tensor, row_loss: RowLoss
) -> tuple[Tensor, Tensor]:
    kind = states_ND.device.type
    low = weight_VD.dtype
    if torch.is_autocast_enabled(kind) and low != torch.float64:
        low = torch.get_autocast_dtype(kind)
    # asked here: within the function the mode of gradients cannot be seen
    found: tuple[Tensor, Tensor] = _ProjectedLoss.apply(  # type: ignore[no-untyped-call]
        states_ND, weight_VD, target_N, row_loss, low, torch.is_grad_enabled()
    )
    return found


class _ProjectedLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        states_ND: Tensor,
        weight_VD: Tensor,
        target_N: Tensor,
        row_loss: RowLoss,
        low: torch.dtype,
        with_gradients: bool,
    ) -> tuple[Tensor, Tensor]:
        of_states, of_weight, *_ = (with_gradients and one for one in ctx.needs_input_grad)
        with torch.autocast(states_ND.device.type, enabled=False):
            loss, measure, *gradients = _sums(
                states_ND, weight_VD, target_N, row_loss, low, of_states, of_weight
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
        if grad_weight_VD is not None:  # rows, whichever way it lies
            scaled_VD = grad_weight_VD.new_empty(grad_weight_VD.shape)
            grad_weight_VD = torch.mul(grad_weight_VD, grad_loss, out=scaled_VD)
        return grad_states_ND, grad_weight_VD, *(None,) * 4


def _sums(
    states_ND: Tensor,
    weight_VD: Tensor,
    target_N: Tensor,
    row_loss: RowLoss,
    low: torch.dtype,
    of_states: bool,
    of_weight: bool,
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """Loss, measure, and the gradients of the loss in states and weight, where wanted."""
    states_low_ND, weight_low_VD = states_ND.to(low), weight_VD.to(low)
    n_rows = n_group = chunk_rows(len(weight_VD), states_ND.device)
    if of_weight:
        n_group *= max(GROUP_LOGITS // (n_rows * len(weight_VD)), 1)
    grad_ND = torch.empty_like(states_ND) if of_states else None
    total_VD: Tensor | None = None  # of the weight
    room_GV = states_low_ND.new_empty(min(n_group, len(states_ND)), len(weight_VD))
    sums: list[RowSums] = []
    for start in range(0, len(states_ND), n_group):
        group_ND = states_low_ND[start : start + n_group]
        for first in range(0, len(group_ND), n_rows):
            states_RD = group_ND[first : first + n_rows]
            rows = slice(start + first, start + first + len(states_RD))
            logits_RV = room_GV[first : first + len(states_RD)]
            product_into(logits_RV, states_RD, weight_low_VD)
            found = row_loss(logits_RV, target_N[rows], of_states or of_weight)
            sums.append(RowSums(found.loss, found.measure, None))
            if found.grad_RV is not None:
                logits_RV.copy_(found.grad_RV)
            if grad_ND is not None:
                grad_ND[rows] = product(logits_RV, weight_low_VD.t())
        if of_weight:
            part_VD = weight_gradient(room_GV[: len(group_ND)], group_ND)
            total_VD = part_VD.to(weight_VD.dtype) if total_VD is None else total_VD.add_(part_VD)
    if of_weight and total_VD is None:  # nothing but padding
        total_VD = torch.zeros_like(weight_VD)
    loss, measure = states_ND.new_zeros(2, dtype=torch.promote_types(low, torch.float32)).unbind()
    for part in sums:
        loss, measure = loss + part.loss, measure + part.measure
    return loss, measure, grad_ND, total_VD
