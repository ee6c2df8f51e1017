"""Where a token stands, and how a model gets to know it: the config group `positions`.

A scheme has two faces. What it adds to the embeddings of a stack is `embedding`; what it does to
queries, keys and scores at one place is `at`. Cross-attention has neither: its queries and keys
stand on different axes.

Vaswani et al. 2017, section 3.5; Child et al. 2019, equation 15, for grids. Schemes that act on
queries, keys and scores stand in `headwise.attention.rotary` and `headwise.attention.alibi`.

Letters: B batch, H heads, N positions, D model width, E head width.
"""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor, nn

from headwise.attention.place import Place
from headwise.errors import require
from headwise.kernels.problem import Distances


class PositionEmbedding(nn.Module):
    """What is added to the embeddings of tokens.

    Attributes:
        n_summed: learned tables that are added up for a position; 0 for what is computed.
    """

    n_summed: ClassVar[int] = 0

    def forward(self, first: int, n_positions: int) -> Tensor:
        """(N, D) for the positions first .. first + N - 1."""
        raise NotImplementedError


class PlacePositions(nn.Module):
    """What a scheme does at one site of one layer.

    Positions count from 0 behind a prefix of register tokens, which has none: it is not rotated and
    not at a distance from anything.
    """

    def rotated(self, states_BHNE: Tensor, first: int) -> Tensor:
        """Queries or keys of the positions first .. first + N - 1; negative ones are a prefix."""
        return states_BHNE

    def distances(self, n_prefix: int) -> Distances | None:
        """What is added to the scores by distance; None for nothing."""
        return None


class Positions:
    """A scheme.

    Attributes:
        max_positions: most positions of a stack; None for any number.
        rotates, biases: what `at` does at self-attention, for variants that cannot follow.
    """

    max_positions: int | None = None
    rotates: ClassVar[bool] = False
    biases: ClassVar[bool] = False

    def embedding(self, d_model: int) -> PositionEmbedding | None:
        """What is added to the embeddings of a stack; None for nothing."""
        return None

    def at(self, place: Place) -> PlacePositions | None:
        """What happens at a place; None for nothing."""
        return None


class NoPositions(Positions):
    """Tokens are a set, but for what causality and padding tell."""


class Sinusoidal(Positions):
    """Sine and cosine signals, of any number of positions."""

    def embedding(self, d_model: int) -> PositionEmbedding:
        """See `Positions.embedding`."""
        return Sinusoids(d_model)


class Learned(Positions):
    """A learned vector each.

    Args:
        max_positions: how many.
    """

    max_positions: int

    def __init__(self, max_positions: int = 1024) -> None:
        require(max_positions >= 1, "max_positions", "at least 1", max_positions)
        self.max_positions = max_positions

    def embedding(self, d_model: int) -> PositionEmbedding:
        """See `Positions.embedding`."""
        return LearnedVectors(self.max_positions, d_model)


class Grid(Positions):
    """Positions written row by row into a grid; each is its row plus its column, both learned.

    Child et al. 2019, equation 15 with n_emb = 2.

    Args:
        width: columns.
        max_positions: of the whole grid.
    """

    max_positions: int

    def __init__(self, width: int = 32, max_positions: int = 1024) -> None:
        require(width >= 1, "width", "at least 1", width)
        require(max_positions >= 1, "max_positions", "at least 1", max_positions)
        self.width, self.max_positions = width, max_positions

    def embedding(self, d_model: int) -> PositionEmbedding:
        """See `Positions.embedding`."""
        return GridVectors(self.max_positions, self.width, d_model)


def sinusoids(n_positions: int, d_model: int) -> Tensor:
    """Sine and cosine position signals, (n_positions, D)."""
    position = torch.arange(n_positions, dtype=torch.float32)[:, None]
    rate = torch.exp(torch.arange(0, d_model, 2) * (-math.log(10000.0) / d_model))
    signal = torch.zeros(n_positions, d_model)
    signal[:, 0::2] = torch.sin(position * rate)
    signal[:, 1::2] = torch.cos(position * rate)[:, : d_model // 2]
    return signal


class Sinusoids(PositionEmbedding):
    """`sinusoids`, kept up to the longest sentence so far."""

    def __init__(self, d_model: int, n_positions: int = 1024) -> None:
        super().__init__()
        # not in the checkpoint: it is a function of the configuration
        self.register_buffer("signal", sinusoids(n_positions, d_model), persistent=False)

    def forward(self, first: int, n_positions: int) -> Tensor:
        """See `PositionEmbedding.forward`."""
        end, signal = first + n_positions, self.get_buffer("signal")
        if end > signal.shape[0]:
            signal = sinusoids(2 * end, signal.shape[1]).to(signal.device)
            self.register_buffer("signal", signal, persistent=False)
        return signal[first:end]


class LearnedVectors(PositionEmbedding):
    """A table of vectors."""

    n_summed = 1

    def __init__(self, n_positions: int, d_model: int) -> None:
        super().__init__()
        self.table = nn.Embedding(n_positions, d_model)

    def forward(self, first: int, n_positions: int) -> Tensor:
        """See `PositionEmbedding.forward`."""
        return self.table.weight[first : first + n_positions]


class GridVectors(PositionEmbedding):
    """Position i stands in row floor(i / width) and column i mod width."""

    n_summed = 2

    def __init__(self, n_positions: int, width: int, d_model: int) -> None:
        super().__init__()
        self.width = width
        self.row = nn.Embedding(-(-n_positions // width), d_model)
        self.column = nn.Embedding(width, d_model)

    def forward(self, first: int, n_positions: int) -> Tensor:
        """See `PositionEmbedding.forward`."""
        positions_N = torch.arange(first, first + n_positions, device=self.row.weight.device)
        row_ND: Tensor = self.row(positions_N // self.width)
        column_ND: Tensor = self.column(positions_N % self.width)
        return row_ND + column_ND
