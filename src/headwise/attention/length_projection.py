"""Projections along the length: M vectors from N positions (Wang et al. 2020, section 4).

Axes: B batch, H heads, Q queries, N positions, M projected vectors, S sets of weights (one per
head, or one for all), C positions of a window, D a width, W = D / S.

The weight of a position depends on its index, not on the length of the batch, and padding is
excluded by `is_real_BN` (B or 1, N): results do not depend on the rest of the batch.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional


class LengthProjection(nn.Module):
    """Maps N vectors to M, along the length."""

    is_linear: ClassVar[bool] = True  # every vector is a weighted sum of the positions
    is_average: ClassVar[bool] = False  # with non-negative weights that sum to one

    def forward(self, states_BND: Tensor, is_real_BN: Tensor) -> Tensor:
        """Return (B, M, D), heads concatenated along D; zeros where `is_valid` is False."""
        raise NotImplementedError

    def is_valid(self, is_real_BN: Tensor) -> Tensor:
        """Return which of the M vectors contain a real position, (B or 1, M)."""
        raise NotImplementedError

    def spread(self, weights_BHQM: Tensor, is_real_BN: Tensor) -> Tensor:
        """Convert weights on vectors into weights on positions (B, H, Q, N); needs `is_linear`."""
        raise NotImplementedError


class LearnedProjection(LengthProjection):
    """The paper's E: learned weights k × max_length; N positions use the first N columns.

    Initialised from N(0, 1 / k), like the random projections in the proof of its theorem 2. Every
    sentence has k vectors, even if it is shorter.
    """

    def __init__(self, n_sets: int, k: int, max_length: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(n_sets, k, max_length) * k**-0.5)

    def forward(self, states_BND: Tensor, is_real_BN: Tensor) -> Tensor:
        """Return (B, k, D)."""
        real_BND = states_BND.masked_fill(~is_real_BN[..., None], 0.0)
        real_BNSW = real_BND.view(*real_BND.shape[:2], self.weight.shape[0], -1)
        weight_SMN = self.weight[..., : is_real_BN.shape[1]]
        return torch.einsum("smn,bnsw->bmsw", weight_SMN, real_BNSW).flatten(2)

    def is_valid(self, is_real_BN: Tensor) -> Tensor:
        """Return True for all k if any position is real."""
        return is_real_BN.any(-1, keepdim=True).expand(-1, self.weight.shape[1])

    def spread(self, weights_BHQM: Tensor, is_real_BN: Tensor) -> Tensor:
        weights_BHQN = weights_BHQM @ self.weight[..., : is_real_BN.shape[1]]
        return weights_BHQN.masked_fill(~is_real_BN[:, None, None], 0.0)


class Windows(LengthProjection):
    """One vector per window of `size` adjacent positions.

    N positions have ceil(N / size) windows; the last one may be incomplete.
    """

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def is_valid(self, is_real_BN: Tensor) -> Tensor:
        """Return which windows have a real position."""
        return self._windows(is_real_BN).any(-1)

    def spread(self, weights_BHQM: Tensor, is_real_BN: Tensor) -> Tensor:
        shares_BSMC = self._shares(self._windows(is_real_BN).to(weights_BHQM.dtype))
        spread_BHQMC = weights_BHQM[..., None] * shares_BSMC[:, :, None]
        return spread_BHQMC.flatten(-2)[..., : is_real_BN.shape[1]]

    def _shares(self, is_real_BMC: Tensor) -> Tensor:
        """Return the weight of each position in its window, (B or 1, S, M, C); 0 at padding."""
        raise NotImplementedError

    def _windows(self, by_position_BN_: Tensor) -> Tensor:
        """Reshape (B, N, ...) to (B, M, C, ...), padded with zeros or False."""
        n_trailing = by_position_BN_.ndim - 2
        missing = -by_position_BN_.shape[1] % self.size
        padded_BN_ = functional.pad(by_position_BN_, (0, 0) * n_trailing + (0, missing))
        return padded_BN_.view(padded_BN_.shape[0], -1, self.size, *padded_BN_.shape[2:])


class Convolution(Windows):
    """A weighted sum of each window, stride = kernel = size.

    The kernel has one weight per offset, equal for all channels, as the paper's E has one weight
    per position: it is an E with one learned row, shifted by one window per row. It is initialised
    as the mean of a full window.
    """

    def __init__(self, n_sets: int, size: int) -> None:
        super().__init__(size)
        self.weight = nn.Parameter(torch.full((n_sets, size), 1 / size))

    def forward(self, states_BND: Tensor, is_real_BN: Tensor) -> Tensor:
        """Return (B, M, D)."""
        real_BND = states_BND.masked_fill(~is_real_BN[..., None], 0.0)
        real_BMCD = self._windows(real_BND)
        real_BMCSW = real_BMCD.view(*real_BMCD.shape[:3], self.weight.shape[0], -1)
        return torch.einsum("sc,bmcsw->bmsw", self.weight, real_BMCSW).flatten(2)

    def _shares(self, is_real_BMC: Tensor) -> Tensor:
        return is_real_BMC[:, None] * self.weight[:, None, :]


class MeanPooling(Windows):
    """Mean over the real positions of each window."""

    is_average = True

    def forward(self, states_BND: Tensor, is_real_BN: Tensor) -> Tensor:
        """Return (B, M, D)."""
        real_BND = states_BND.masked_fill(~is_real_BN[..., None], 0.0)
        n_real_BM1 = self._windows(is_real_BN).sum(-1, keepdim=True)
        return self._windows(real_BND).sum(2) / n_real_BM1.clamp(min=1).to(states_BND.dtype)

    def _shares(self, is_real_BMC: Tensor) -> Tensor:
        return (is_real_BMC / is_real_BMC.sum(-1, keepdim=True).clamp(min=1))[:, None]


class MaxPooling(Windows):
    """Maximum over the real positions of each window, per channel."""

    is_linear = False

    def forward(self, states_BND: Tensor, is_real_BN: Tensor) -> Tensor:
        """Return (B, M, D)."""
        is_padding_BMC = ~self._windows(is_real_BN)
        real_BMCD = self._windows(states_BND).masked_fill(is_padding_BMC[..., None], -torch.inf)
        return real_BMCD.amax(2).masked_fill(is_padding_BMC.all(-1)[..., None], 0.0)
