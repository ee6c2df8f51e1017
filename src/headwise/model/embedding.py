"""Tokens, positions and registers on their way in.

Vaswani et al. 2017, sections 3.4 and 3.5; Child et al. 2019, section 5, for grids of positions.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from headwise.config.schema import ModelConfig
from headwise.errors import DataError
from headwise.kernels.dropout import Dropout

POSITIONS = ("sinusoidal", "learned", "grid")
SCALED_GAIN = 0.125  # of every deviation with model.init=scaled; see headwise.model.init


def sinusoids(n_positions: int, d_model: int) -> Tensor:
    """Sine and cosine position signals, (n_positions, D)."""
    position = torch.arange(n_positions, dtype=torch.float32)[:, None]
    rate = torch.exp(torch.arange(0, d_model, 2) * (-math.log(10000.0) / d_model))
    signal = torch.zeros(n_positions, d_model)
    signal[:, 0::2] = torch.sin(position * rate)
    signal[:, 1::2] = torch.cos(position * rate)[:, : d_model // 2]
    return signal


class GridPositions(nn.Module):
    """Positions written row by row into a grid; each is its row plus its column.

    Child et al. 2019, equation 15 with n_emb = 2: position i stands in row floor(i / width) and
    column i mod width, and both have learned vectors.
    """

    def __init__(self, n_positions: int, width: int, d_model: int) -> None:
        super().__init__()
        self.width = width
        self.row = nn.Embedding(-(-n_positions // width), d_model)
        self.column = nn.Embedding(width, d_model)

    def forward(self, positions_N: Tensor) -> Tensor:
        """(N, D)."""
        row_ND: Tensor = self.row(positions_N // self.width)
        column_ND: Tensor = self.column(positions_N % self.width)
        return row_ND + column_ND


class Embedding(nn.Module):
    """Token embedding plus positions.

    Tokens are drawn small and multiplied by sqrt(D), or, with `init` scaled, taken as they are
    (Child et al. 2019, equation 15). Sinusoids, which that paper does not have, shrink with them.

    Args:
        token: the table (V, D); shared with other sides by passing the same module.
        config: `positions` "sinusoidal" (computed, any length), "learned" or "grid" (both up to
            `max_positions`).

    Attributes:
        learned: position numbers (N,) -> (N, D), or None for sinusoids.
    """

    def __init__(self, token: nn.Embedding, config: ModelConfig) -> None:
        super().__init__()
        width = token.embedding_dim
        self.token = token
        self.scale, self.signal_scale = math.sqrt(width), 1.0
        if config.init == "scaled":
            self.scale, self.signal_scale = 1.0, SCALED_GAIN / math.sqrt(width)
        self.dropout = Dropout(config.dropout)
        self.max_positions = config.max_positions
        self.learned: nn.Module | None = None
        if config.positions == "learned":
            self.learned = nn.Embedding(config.max_positions, width)
        elif config.positions == "grid":
            self.learned = GridPositions(config.max_positions, config.grid_width, width)
        signal = sinusoids(config.max_positions, width)
        # not in the checkpoint: it is a function of the configuration
        self.register_buffer("signal", signal, persistent=False)

    def forward(self, ids_BN: Tensor, offset: int = 0) -> Tensor:
        """States (B, N, D) of the tokens that stand at positions offset .. offset + N - 1."""
        end = offset + ids_BN.shape[1]
        states_BND = self.token(ids_BN) * self.scale
        if self.learned is not None:
            if end > self.max_positions:
                raise DataError(
                    f"a sentence of {end} pieces is longer than model.max_positions="
                    f"{self.max_positions} learned positions"
                )
            positions_N = torch.arange(offset, end, device=ids_BN.device)
            states_BND = states_BND + self.learned(positions_N)
        else:
            signal_ND = self._signal(end)[offset:end].to(states_BND.dtype)
            states_BND = states_BND + signal_ND * self.signal_scale
        dropped: Tensor = self.dropout(states_BND)
        return dropped

    def _signal(self, length: int) -> Tensor:
        signal: Tensor = self.get_buffer("signal")
        if length > signal.shape[0]:
            longer = sinusoids(2 * length, signal.shape[1]).to(signal.device)
            self.register_buffer("signal", longer, persistent=False)
            return longer
        return signal


class RegisterTokens(nn.Module):
    """Learned vectors in front of every source, which carry no text and have no position.

    The several CLS tokens of the YUBERT note, for translation: encoder and cross-attention see
    them as they see words, whose positions go on counting from 0.

    Args:
        n_registers: how many.
        d_model: width D.
        scale: the factor that tokens have (`Embedding.scale`).
        dropout: rate on their states, as on those of tokens.
    """

    def __init__(self, n_registers: int, d_model: int, scale: float, dropout: float) -> None:
        super().__init__()
        self.table = nn.Embedding(n_registers, d_model)
        self.scale = scale
        self.dropout = Dropout(dropout)

    def forward(self, states_BSD: Tensor) -> Tensor:
        """States (B, registers + S, D)."""
        registers_BRD = (self.table.weight * self.scale).expand(states_BSD.shape[0], -1, -1)
        return torch.cat((self.dropout(registers_BRD).to(states_BSD.dtype), states_BSD), dim=1)
