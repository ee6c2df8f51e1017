"""Feed-forward blocks, their activations, and residual connections of a layer."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from headwise.attention.attention import Attention
from headwise.ops.dropout.operator import Dropout
from headwise.ops.linear import Linear

NORM_EPSILON = 1e-6


class Activation(nn.Module):
    """Base class: an elementwise function: the config group `activation`."""

    def forward(self, inner_BNF: Tensor) -> Tensor:
        """Return values of the same shape."""
        raise NotImplementedError


class ReLU(Activation):
    """max(x, 0) (Vaswani et al. 2017, equation 2)."""

    def forward(self, inner_BNF: Tensor) -> Tensor:
        return functional.relu(inner_BNF)


class GELU(Activation):
    """x · Φ(x) (Hendrycks and Gimpel 2016)."""

    def forward(self, inner_BNF: Tensor) -> Tensor:
        return functional.gelu(inner_BNF)


class QuickGELU(Activation):
    """x · sigmoid(1.702 x), which approximates GELU (Child et al. 2019, section 5)."""

    def forward(self, inner_BNF: Tensor) -> Tensor:
        return inner_BNF * torch.sigmoid(1.702 * inner_BNF)


class FeedForward(nn.Module):
    """Two linear maps with an activation between (Vaswani et al. 2017, eq. 2)."""

    def __init__(self, d_model: int, d_ff: int, activation: Activation, dropout: float) -> None:
        super().__init__()
        self.inner = Linear(d_model, d_ff)
        self.outer = Linear(d_ff, d_model)
        self.activation = activation
        self.dropout = Dropout(dropout)

    def forward(self, states_BND: Tensor) -> Tensor:
        """Return states (B, N, D)."""
        inner_BNF = self.inner(states_BND)
        if type(self.activation) is ReLU:  # commutes: on a CPU its result alone is saved
            inner_BNF = self.activation(self.dropout(inner_BNF))
        else:
            inner_BNF = self.dropout(self.activation(inner_BNF))
        outer: Tensor = self.outer(inner_BNF)
        return outer


class Residual(nn.Module):
    """Base class: residual connection of a sublayer with normalisation: the config group `norm`."""

    def __init__(self, d_model: int, dropout: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(d_model, eps=NORM_EPSILON)
        self.dropout = Dropout(dropout)

    def before(self, states_BND: Tensor) -> Tensor:
        """Return the input of the sublayer."""
        return states_BND

    def after(self, states_BND: Tensor, output_BND: Tensor) -> Tensor:
        """Return the residual stream after adding the output of the sublayer."""
        total: Tensor = states_BND + self.dropout(output_BND)
        return total

    def final_norm(self) -> nn.Module:
        """Return the module that ends a stack of such layers."""
        return nn.Identity()


class PostNorm(Residual):
    """norm(x + dropout(f(x))), as in Vaswani et al. 2017, section 3.1."""

    def after(self, states_BND: Tensor, output_BND: Tensor) -> Tensor:
        normed: Tensor = self.norm(super().after(states_BND, output_BND))
        return normed


class PreNorm(Residual):
    """x + dropout(f(norm(x))), which trains deep stacks without careful warm-up.

    The branches of a layer are the residual block of Child et al. 2019 (equations 9 to 14): with
    a(H) = dropout(attention(norm(H))) and b(H) = dropout(ff(norm(H + a(H)))), an encoder layer
    computes H + a(H) + b(H). A decoder layer adds c(H) = dropout(cross(norm(H + a(H)))) before b,
    which reads H + a(H) + c(H).
    """

    def before(self, states_BND: Tensor) -> Tensor:
        normed: Tensor = self.norm(states_BND)
        return normed

    def final_norm(self) -> nn.Module:
        """Return a normalisation, which bounds the sum of the branches."""
        return nn.LayerNorm(self.norm.normalized_shape, eps=NORM_EPSILON)


def _is_recorded(layer: nn.Module) -> bool:
    return any(isinstance(module, Attention) and module.recorders for module in layer.modules())


def call_layer(layer: nn.Module, recompute: bool, *arguments: object) -> Any:
    """Return `layer(*arguments)`; with `recompute`, save only the arguments for backward.

    Activations are recomputed with the same dropout and autocast, so that loss and gradients are
    bitwise equal (Child et al. 2019, section 5.4). No effect in evaluation, or while weights are
    recorded, as the recomputation would run without the recorder.
    """
    if not (recompute and layer.training and torch.is_grad_enabled()) or _is_recorded(layer):
        return layer(*arguments)
    return checkpoint(layer, *arguments, use_reentrant=False)
