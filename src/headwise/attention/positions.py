"""Position schemes: the config group `positions`.

`Positions.embedding` is added to the embeddings of a stack; `Positions.at` acts on queries, keys
and scores at one place. Cross-attention has neither: its queries and keys are positions of
different sequences.

Vaswani et al. 2017, section 3.5; Child et al. 2019, equation 15, for sums of dimensions. See
`headwise.attention.rotary` and `headwise.attention.alibi` for schemes with `at`.

Axes: B batch, H heads, N positions, D model width, E head width.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn

from headwise.attention.place import Place
from headwise.compilation import may_keep_tensors
from headwise.errors import require
from headwise.ops.attention.distances import Distances


class PositionEmbedding(nn.Module):
    """Vectors that are added to the embeddings of tokens.

    Attributes:
        n_summed: number of learned tables that are summed; 0 if vectors are computed.
    """

    n_summed: int = 0

    def forward(self, first: int, n_positions: int) -> Tensor:
        """Return vectors (N, D) for the positions first .. first + N - 1."""
        raise NotImplementedError


class PlacePositions(nn.Module):
    """A position scheme at one site of one layer.

    Positions count from 0 after a prefix of CLS tokens, which are not rotated and get no bias.
    """

    def rotated(self, states_BHNE: Tensor, first: int) -> Tensor:
        """Rotate queries or keys of positions first .. first + N - 1; negative in a prefix."""
        return states_BHNE

    def distances(self, n_prefix: int) -> Distances | None:
        """Return the bias on the scores by distance, or None."""
        return None

    def positioned(self, n_heads: int) -> Sequence[bool]:
        """Whether scores of each head depend on the distance; by default all."""
        return [True] * n_heads


class Positions:
    """Base class of position schemes.

    Attributes:
        max_positions: maximum number of positions of a stack; None: unlimited.
        period: positions after which the first one follows again; None: never.
        rotates: whether `at` rotates self-attention, which some variants do not support.
        biases: whether `at` biases self-attention, which some variants do not support.
    """

    max_positions: int | None = None
    period: int | None = None
    rotates: ClassVar[bool] = False
    biases: ClassVar[bool] = False

    def embedding(self, d_model: int) -> PositionEmbedding | None:
        """Return the vectors added to the embeddings of a stack, or None."""
        return None

    def at(self, place: Place) -> PlacePositions | None:
        """Return the scheme at a place, or None."""
        return None


class NoPositions(Positions):
    """No position information except causality and padding."""


class Sinusoidal(Positions):
    """Sine and cosine signals, for any number of positions."""

    def embedding(self, d_model: int) -> PositionEmbedding:
        return Sinusoids(d_model)


class Learned(Positions):
    """A learned vector per position.

    Args:
        max_positions: number of vectors.
    """

    max_positions: int

    def __init__(self, max_positions: int = 1024) -> None:
        require(max_positions >= 1, "max_positions", "at least 1", max_positions)
        self.max_positions = max_positions

    def embedding(self, d_model: int) -> PositionEmbedding:
        return LearnedVectors(self.max_positions, d_model)


class Grid(Positions):
    """Positions in a grid, row by row; each vector is learned row plus learned column.

    Child et al. 2019, equation 15 with n_emb = 2.

    Args:
        width: number of columns.
        max_positions: maximum number of positions in the grid.
    """

    max_positions: int

    def __init__(self, width: int = 32, max_positions: int = 1024) -> None:
        require(width >= 1, "width", "at least 1", width)
        require(max_positions >= 1, "max_positions", "at least 1", max_positions)
        self.width, self.max_positions = width, max_positions

    def embedding(self, d_model: int) -> PositionEmbedding:
        return SummedVectors(d_model, row=-(-self.max_positions // self.width), column=self.width)


class DataDimensions(Positions):
    """Positions in an image, row by row; a learned row plus column plus channel.

    The position after the last of an image is the first of the next image. Child et al.
    2019, equation 15 with n_emb = 3.

    Args:
        shape: rows, columns and channels of an image; None: the data have no dimensions.
    """

    def __init__(self, shape: list[int] | None = None) -> None:
        sizes = "rows, columns and channels, as data.shape of images has; use attention_dims else"
        require(shape is not None and len(shape) == 3 and min(shape) >= 1, "shape", sizes, shape)
        assert shape is not None
        self.shape, self.period = tuple(shape), math.prod(shape)

    def embedding(self, d_model: int) -> PositionEmbedding:
        rows, columns, channels = self.shape
        return SummedVectors(d_model, row=rows, column=columns, channel=channels)


def sinusoids(n_positions: int, d_model: int) -> Tensor:
    """Return sine and cosine position signals, (n_positions, D)."""
    position = torch.arange(n_positions, dtype=torch.float32)[:, None]
    frequency = torch.exp(torch.arange(0, d_model, 2) * (-math.log(10000.0) / d_model))
    signal = torch.zeros(n_positions, d_model)
    signal[:, 0::2] = torch.sin(position * frequency)
    signal[:, 1::2] = torch.cos(position * frequency)[:, : d_model // 2]
    return signal


class Sinusoids(PositionEmbedding):
    """`sinusoids`, cached for the longest sentence so far."""

    def __init__(self, d_model: int, n_positions: int = 1024) -> None:
        super().__init__()
        # not in the checkpoint: it is a function of the configuration
        self.register_buffer("signal", sinusoids(n_positions, d_model), persistent=False)

    def forward(self, first: int, n_positions: int) -> Tensor:
        end, signal = first + n_positions, self.get_buffer("signal")
        if end > signal.shape[0]:
            signal = sinusoids(2 * end, signal.shape[1]).to(signal.device)
            if may_keep_tensors():
                self.register_buffer("signal", signal, persistent=False)
        return signal[first:end]


class LearnedVectors(PositionEmbedding):
    """A learned table of vectors."""

    n_summed = 1

    def __init__(self, n_positions: int, d_model: int) -> None:
        super().__init__()
        self.table = nn.Embedding(n_positions, d_model)

    def forward(self, first: int, n_positions: int) -> Tensor:
        return self.table.weight[first : first + n_positions]


class SummedVectors(PositionEmbedding):
    """The sum of a learned vector per dimension, for positions in an array.

    Args:
        d_model: width of the vectors.
        sizes: sizes of the dimensions; the last index varies fastest. Positions past the end of
            the array start again from its beginning.
    """

    def __init__(self, d_model: int, **sizes: int) -> None:
        super().__init__()
        self.sizes, self.n_summed = sizes, len(sizes)
        for name, size in sizes.items():
            self.add_module(name, nn.Embedding(size, d_model))

    def forward(self, first: int, n_positions: int) -> Tensor:
        device = next(self.parameters()).device
        index_N = torch.arange(first, first + n_positions, device=device)
        sum_ND = torch.zeros((), device=device)
        for name, size in reversed(self.sizes.items()):
            sum_ND = sum_ND + self.get_submodule(name)(index_N % size)
            index_N = index_N // size
        return sum_ND
