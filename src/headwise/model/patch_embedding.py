"""Embeddings of patches of images (Dosovitskiy et al. 2021), or of single pixels by value.

Axes: B images, N patches, P values of a patch, D width.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from headwise.ops.linear import Linear

N_VALUES = 256


class Patches(nn.Module):
    """A linear map of the values of patches, in place of a table of tokens (`Input`).

    Args:
        n_values: P.
        width: D.
    """

    def __init__(self, n_values: int, width: int) -> None:
        super().__init__()
        self.id_shape, self.n_ids = (n_values,), N_VALUES
        self.linear = Linear(n_values, width)

    def forward(self, ids_BNP: Tensor) -> Tensor:
        """Map values from 0 to 255, scaled to -1 to 1, to states (B, N, D)."""
        scaled_BNP = ids_BNP.to(self.linear.weight.dtype) / 127.5 - 1
        states_BND: Tensor = self.linear(scaled_BNP)
        return states_BND


class Pixels(nn.Embedding):
    """A learned vector per value and channel; those of the channels of a pixel are summed.

    Args:
        n_channels: P.
        width: D.
    """

    def __init__(self, n_channels: int, width: int) -> None:
        super().__init__(n_channels * N_VALUES, width)
        self.id_shape, self.n_ids = (n_channels,), N_VALUES
        first_P = torch.arange(n_channels) * N_VALUES
        self.register_buffer("first_P", first_P, persistent=False)

    def forward(self, ids_BNP: Tensor) -> Tensor:
        """Return states (B, N, D) of values from 0 to 255."""
        states_BNPD: Tensor = super().forward(ids_BNP.long() + self.get_buffer("first_P"))
        return states_BNPD.sum(2)


def patch_embedding(patch: int, n_channels: int, width: int) -> Patches | Pixels:
    """Return the embedding of patches of `patch` rows and columns; pixels by value if 1."""
    if patch == 1:
        return Pixels(n_channels, width)
    return Patches(patch**2 * n_channels, width)
