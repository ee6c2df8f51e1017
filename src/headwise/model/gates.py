"""Gates on the outputs of heads."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from headwise.attention.base import Place


class HeadGate(nn.Module):
    """Factors on the outputs of the heads of one place."""

    def forward(self, context_BHQE: Tensor) -> Tensor:
        """The context of every head, gated."""
        raise NotImplementedError

    def penalty(self) -> Tensor:
        """A term of the loss, a scalar."""
        raise NotImplementedError


class Gates:
    """Makes the gate of each place, and says what else gates ask of the model."""

    def __call__(self, place: Place) -> HeadGate | None:
        """The gate of one place, or None for an open one."""
        raise NotImplementedError

    def prepare(self, model: nn.Module) -> None:
        """Called with the whole model once it is made, before its optimizer is."""


class NoGates(Gates):
    """Every head is open."""

    def __call__(self, place: Place) -> None:
        """None."""
        return


def gate_penalty(model: nn.Module) -> Tensor | None:
    """Sum of the penalties of all gates, or None without gates."""
    penalties = [gate.penalty() for gate in model.modules() if isinstance(gate, HeadGate)]
    return torch.stack(penalties).sum() if penalties else None
