"""The parts of an encoder or decoder layer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from headwise.attention.protocol import Attention
from headwise.kernels.dropout import add_dropout, dropout, relu_dropout
from headwise.kernels.linear import Linear


def quick_gelu(inner_BNF: Tensor) -> Tensor:
    """Close to GELU: x · sigmoid(1.702 x) (Child et al. 2019, section 5)."""
    return inner_BNF * torch.sigmoid(1.702 * inner_BNF)


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": functional.relu,
    "gelu": functional.gelu,
    "silu": functional.silu,
    "quick_gelu": quick_gelu,
}
NORM_EPSILON = 1e-6


class FeedForward(nn.Module):
    """Two linear maps with an activation between (Vaswani et al. 2017, eq. 2)."""

    def __init__(self, d_model: int, d_ff: int, activation: str, dropout: float) -> None:
        super().__init__()
        self.inner = Linear(d_model, d_ff)
        self.outer = Linear(d_ff, d_model)
        self.activation = ACTIVATIONS[activation]
        self.dropout = dropout

    def forward(self, states_BND: Tensor) -> Tensor:
        """States (B, N, D)."""
        inner_BNF = self.inner(states_BND)
        rate = self.dropout if self.training else 0.0
        if self.activation is functional.relu:
            dropped_BNF = relu_dropout(inner_BNF, rate)
        else:
            dropped_BNF = dropout(self.activation(inner_BNF), rate)
        outer: Tensor = self.outer(dropped_BNF)
        return outer

    def extra_repr(self) -> str:
        """For printing a model."""
        return f"activation={self.activation.__name__}, dropout={self.dropout}"


class Residual(nn.Module):
    """A sublayer's way around: x + dropout(f(norm(x))), or norm(x + dropout(f(x))).

    Pre-norm trains deep stacks without care for warm-up; post-norm is the original. The branches
    of a pre-norm layer one after the other are the residual block of Child et al. 2019
    (equations 9 to 14): with a(H) = dropout(attention(norm(H))) and
    b(H) = dropout(ff(norm(H + a(H)))) an encoder layer makes H + a(H) + b(H). In a decoder layer
    c(H) = dropout(cross(norm(H + a(H)))) stands between, and b reads H + a(H) + c(H).
    """

    def __init__(self, d_model: int, pre_norm: bool, dropout: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(d_model, eps=NORM_EPSILON)
        self.pre_norm = pre_norm
        self.dropout = dropout

    def before(self, states_BND: Tensor) -> Tensor:
        """What the sublayer reads."""
        return self.norm(states_BND) if self.pre_norm else states_BND

    def after(self, states_BND: Tensor, change_BND: Tensor) -> Tensor:
        """The stream with the sublayer's change."""
        summed = add_dropout(change_BND, states_BND, self.dropout if self.training else 0.0)
        return summed if self.pre_norm else self.norm(summed)

    def extra_repr(self) -> str:
        """For printing a model."""
        return f"pre_norm={self.pre_norm}, dropout={self.dropout}"


def _is_recorded(layer: nn.Module) -> bool:
    return any(isinstance(module, Attention) and module.recorders for module in layer.modules())


def call_layer(layer: nn.Module, recompute: bool, *arguments: object) -> Any:
    """`layer(*arguments)`; with `recompute` only the arguments are kept for the backward pass.

    That is in training alone: elsewhere there is no backward pass to keep anything for.
    Child et al. 2019, section 5.4: what lies between is computed again, with the same dropout and
    under the same autocast, so that loss and gradients have the same bits. Nor where weights are
    recorded: computed again once the recorder is gone, they would not be.
    """
    if not (recompute and layer.training and torch.is_grad_enabled()) or _is_recorded(layer):
        return layer(*arguments)
    return checkpoint(layer, *arguments, use_reentrant=False)
