"""The parts of an encoder or decoder layer."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn
from torch.nn import functional

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": functional.relu,
    "gelu": functional.gelu,
    "silu": functional.silu,
}
NORM_EPSILON = 1e-6


class FeedForward(nn.Module):
    """Two linear maps with an activation between (Vaswani et al. 2017, eq. 2)."""

    def __init__(self, d_model: int, d_ff: int, activation: str, dropout: float) -> None:
        super().__init__()
        self.inner = nn.Linear(d_model, d_ff)
        self.outer = nn.Linear(d_ff, d_model)
        self.activation = ACTIVATIONS[activation]
        self.dropout = nn.Dropout(dropout)

    def forward(self, states_BND: Tensor) -> Tensor:
        """States (B, N, D)."""
        outer: Tensor = self.outer(self.dropout(self.activation(self.inner(states_BND))))
        return outer


class Residual(nn.Module):
    """A sublayer's way around: x + dropout(f(norm(x))), or norm(x + dropout(f(x))).

    Pre-norm trains deep stacks without care for warm-up; post-norm is the original.
    """

    def __init__(self, d_model: int, pre_norm: bool, dropout: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(d_model, eps=NORM_EPSILON)
        self.pre_norm = pre_norm
        self.dropout = nn.Dropout(dropout)

    def before(self, states_BND: Tensor) -> Tensor:
        """What the sublayer reads."""
        return self.norm(states_BND) if self.pre_norm else states_BND

    def after(self, states_BND: Tensor, change_BND: Tensor) -> Tensor:
        """The stream with the sublayer's change."""
        summed: Tensor = states_BND + self.dropout(change_BND)
        return summed if self.pre_norm else self.norm(summed)
