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
from headwise.ops.dropout.cpu import drop


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
    if dispatch.dropout(values).kernel != dispatch.CPP:
        return nn.functional.dropout(values, rate)
    draws = Draws(int(draw_seed()), rate)
    dropped: Tensor = _Dropout.apply(values, draws)  # type: ignore[no-untyped-call]
    return dropped


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
