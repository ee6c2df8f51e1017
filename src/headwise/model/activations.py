"""Activations of feed-forward blocks: the config group `activation`."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class Activation(nn.Module):
    """Base class: an elementwise function."""

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
