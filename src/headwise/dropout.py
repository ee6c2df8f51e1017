"""Dropout (Srivastava et al. 2014) that costs little on a CPU.

torch's own draws a number of 53 bits for every entry, a tenth of a training step. A decision needs
few of them: here 64 bits of the same generator make four decisions. On other devices, and in a
compiled graph, torch's own is used, whose random numbers cost nothing there.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

STEPS = 1 << 15  # a rate is rounded to a multiple of 1 / STEPS, and the scale belongs to that


class Dropout(nn.Module):
    """Sets entries to 0 in training, and divides the others by the share that stays.

    The bits come from torch's generator, so that a seed decides them, and `checkpoint` restores
    them, as with `torch.nn.Dropout`; they are others than there.

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
    if values.device.type != "cpu" or torch.compiler.is_compiling():
        return nn.functional.dropout(values, rate)
    dropped: Tensor = _Dropout.apply(values, n_kept(rate))  # type: ignore[no-untyped-call]
    return dropped


def n_kept(rate: float) -> int:
    """Of `STEPS` equally likely draws, how many keep an entry; never none, never all."""
    return min(max(round((1 - rate) * STEPS), 1), STEPS - 1)


def keep_mask(shape: torch.Size, n_kept: int) -> Tensor:
    """int16, all bits set (-1) with probability `n_kept` / STEPS, else 0."""
    n_entries = shape.numel()
    bits = torch.empty((n_entries + 3) // 4, dtype=torch.int64)
    bits.random_(-(2**63), None)
    drawn = bits.view(torch.int16)[:n_entries]
    # one of 0 .. STEPS - 1, less the bound: the sign, spread over all bits, is the answer
    return drawn.bitwise_and_(STEPS - 1).sub_(n_kept).bitwise_right_shift_(15).view(shape)


class _Dropout(torch.autograd.Function):
    """What is kept for the backward pass are 2 bytes an entry."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, n_kept: int) -> Tensor:
        mask = keep_mask(values.shape, n_kept)
        ctx.save_for_backward(mask)
        ctx.scale = STEPS / n_kept
        return _masked(values, mask, ctx.scale)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (mask,) = ctx.saved_tensors
        return _masked(grad, mask, ctx.scale), None


def _masked(values: Tensor, mask: Tensor, scale: float) -> Tensor:
    if values.element_size() == mask.element_size():
        kept = values * scale
        kept.view(torch.int16).bitwise_and_(mask)
        return kept
    return mask.to(values.dtype).mul_(-scale).mul_(values)
