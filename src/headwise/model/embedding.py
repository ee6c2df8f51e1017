"""Tokens, positions and registers on their way in (Vaswani et al. 2017, section 3.4)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from headwise.config.schema import ModelConfig
from headwise.errors import DataError
from headwise.kernels.dropout import Dropout
from headwise.model.parts import Parts


class Embedding(nn.Module):
    """Token embedding plus positions.

    Args:
        token: the table (V, D); shared with other sides by passing the same module.
        config: sizes and rates.
        parts: what its positions add to embeddings is made here; its init scales both.
    """

    def __init__(self, token: nn.Embedding, config: ModelConfig, parts: Parts) -> None:
        super().__init__()
        width = token.embedding_dim
        self.token = token
        self.positions = parts.positions.embedding(width)
        self.max_positions = parts.positions.max_positions
        self.scale, self.signal_scale = parts.init.scales(width)
        if self.positions is not None and self.positions.n_summed:
            self.signal_scale = 1.0  # drawn at the size they need
        self.dropout = Dropout(config.dropout)

    def forward(self, ids_BN: Tensor, offset: int = 0) -> Tensor:
        """States (B, N, D) of the tokens that stand at positions offset .. offset + N - 1."""
        n_positions = ids_BN.shape[1]
        if self.max_positions is not None and offset + n_positions > self.max_positions:
            raise DataError(
                f"a sentence of {offset + n_positions} pieces is longer than "
                f"positions.max_positions={self.max_positions}"
            )
        states_BND = self.token(ids_BN) * self.scale
        if self.positions is not None:
            position_ND = self.positions(offset, n_positions).to(states_BND.dtype)
            states_BND = states_BND + position_ND * self.signal_scale
        dropped: Tensor = self.dropout(states_BND)
        return dropped


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
