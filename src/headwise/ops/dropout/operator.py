"""Dropout (Srivastava et al. 2014) that is fast on CPU.

torch's dropout draws 53 bits per entry on one thread, and saves a mask of the size of the entries.
This kernel uses a counter-based generator (see `ops/draws.py`) on all threads, and saves a
seed. On other devices, under torch.compile and without the kernel, torch's dropout is used.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from headwise.ops import dispatch
from headwise.ops.draws import Draws, draw_seed
from headwise.ops.dropout.cpu import drop, drop_and_add, drop_relu, drop_relu_backward


class Dropout(nn.Module):
    """Sets entries to 0 in training, and divides the others by 1 - rate.

    The seed is drawn from torch's generator, so that `manual_seed` and `checkpoint` work as with
    `torch.nn.Dropout`, which drops other entries for the same seed.

    Args:
        rate: share of entries to drop, in [0, 1).
    """

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, values: Tensor) -> Tensor:
        """Return values of the same shape and dtype."""
        return dropout(values, self.rate if self.training else 0.0)

    def extra_repr(self) -> str:
        """Return the rate, for printing a model."""
        return f"rate={self.rate}"


def dropout(values: Tensor, rate: float) -> Tensor:
    """Apply dropout with `rate`, in training or not; see `Dropout`."""
    if rate == 0:
        return values
    if not _has_kernel(values):
        return nn.functional.dropout(values, rate)
    dropped: Tensor = _Dropout.apply(values, _draws(rate))  # type: ignore[no-untyped-call]
    return dropped


def relu_dropout(values: Tensor, rate: float) -> Tensor:
    """Return `dropout(relu(values), rate)`, in one pass if there is a kernel."""
    if rate == 0 or not _has_kernel(values):
        return dropout(nn.functional.relu(values), rate)
    dropped: Tensor = _ReluDropout.apply(values, _draws(rate))  # type: ignore[no-untyped-call]
    return dropped


def add_dropout(values: Tensor, added: Tensor, rate: float) -> Tensor:
    """Return `added + dropout(values, rate)`, in one pass if there is a kernel.

    The kernel rounds once to dtypes other than float32.
    """
    is_supported = values.shape == added.shape and values.dtype in (added.dtype, torch.bfloat16)
    if rate == 0 or not (is_supported and _has_kernel(values) and _has_kernel(added)):
        return added + dropout(values, rate)
    total: Tensor = _AddDropout.apply(values, added, _draws(rate))  # type: ignore[no-untyped-call]
    return total


def _has_kernel(values: Tensor) -> bool:
    return dispatch.dropout(values).kernel == dispatch.CPP


def _draws(rate: float) -> Draws:
    return Draws(int(draw_seed()), rate)


class _Dropout(torch.autograd.Function):
    """Saves only the seed for the backward pass."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, draws: Draws) -> Tensor:
        ctx.draws = draws
        return drop(values.contiguous(), draws)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return drop(grad.contiguous(), ctx.draws), None


class _ReluDropout(torch.autograd.Function):
    """Saves the result, which the next linear layer saves too."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, draws: Draws) -> Tensor:
        ctx.draws = draws
        dropped = drop_relu(values.contiguous(), draws)
        ctx.save_for_backward(dropped)
        return dropped

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return drop_relu_backward(grad.contiguous(), ctx.saved_tensors[0], ctx.draws), None


class _AddDropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, added: Tensor, draws: Draws) -> Tensor:
        ctx.draws, ctx.dtype = draws, values.dtype
        return drop_and_add(values.contiguous(), added.contiguous(), draws)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        return drop(grad.contiguous(), ctx.draws, ctx.dtype), grad, None
