"""Dropout (Srivastava et al. 2014) that costs little on a CPU.

torch's own draws a number of 53 bits for every entry on one thread, and keeps a mask of the size of
the entries. Our kernel draws by counting (see `headwise.entmax.native.Draws`), on all threads, and
keeps a seed. On other devices, in a compiled graph and where there is no kernel, torch's own is
used.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from headwise.entmax import native
from headwise.entmax.native import Draws
from headwise.entmax.native_dropout import drop


class Dropout(nn.Module):
    """Sets entries to 0 in training, and divides the others by the share that stays.

    The seed comes from torch's generator, so that its state decides what is dropped, and
    `checkpoint` restores it, as with `torch.nn.Dropout`; the entries are others than there.

    Args:
        rate: share of entries to drop, in [0, 1).
    """

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, values: Tensor) -> Tensor:
        """The same shape and type."""
        return dropout(values, self.rate if self.training else 0.0)

    def extra_repr(self) -> str:
        """For printing a model."""
        return f"rate={self.rate}"


def dropout(values: Tensor, rate: float) -> Tensor:
    """`values` with a share of about `rate` set to 0, in training or not; see `Dropout`."""
    if rate == 0:
        return values
    if torch.compiler.is_compiling() or not native.takes(values):
        return nn.functional.dropout(values, rate)
    draws = Draws(int(native.draw_seed()), rate)
    dropped: Tensor = _Dropout.apply(values, draws)  # type: ignore[no-untyped-call]
    return dropped


class _Dropout(torch.autograd.Function):
    """What is kept for the backward pass is the seed."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, draws: Draws) -> Tensor:
        ctx.draws = draws
        return drop(values.contiguous(), draws)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return drop(grad.contiguous(), ctx.draws), None
