"""Token and position embeddings (Vaswani et al. 2017, sections 3.4 and 3.5)."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from headwise.errors import DataError


def sinusoids(n_positions: int, d_model: int) -> Tensor:
    """Sine and cosine position signals, (n_positions, D)."""
    position = torch.arange(n_positions, dtype=torch.float32)[:, None]
    rate = torch.exp(torch.arange(0, d_model, 2) * (-math.log(10000.0) / d_model))
    signal = torch.zeros(n_positions, d_model)
    signal[:, 0::2] = torch.sin(position * rate)
    signal[:, 1::2] = torch.cos(position * rate)[:, : d_model // 2]
    return signal


class Embedding(nn.Module):
    """Token embedding times sqrt(D), plus positions.

    Args:
        token: the table (V, D); shared with other sides by passing the same module.
        positions: "sinusoidal" (computed, any length) or "learned" (up to `max_positions`).
    """

    def __init__(
        self, token: nn.Embedding, positions: str, max_positions: int, dropout: float
    ) -> None:
        super().__init__()
        self.token = token
        self.scale = math.sqrt(token.embedding_dim)
        self.dropout = nn.Dropout(dropout)
        self.learned: nn.Embedding | None = None
        if positions == "learned":
            self.learned = nn.Embedding(max_positions, token.embedding_dim)
        self.max_positions = max_positions
        signal = sinusoids(max_positions, token.embedding_dim)
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
            positions = torch.arange(offset, end, device=ids_BN.device)
            states_BND = states_BND + self.learned(positions)
        else:
            states_BND = states_BND + self._signal(end)[offset:end].to(states_BND.dtype)
        dropped: Tensor = self.dropout(states_BND)
        return dropped

    def _signal(self, length: int) -> Tensor:
        signal: Tensor = self.get_buffer("signal")
        if length > signal.shape[0]:
            longer = sinusoids(2 * length, signal.shape[1]).to(signal.device)
            self.register_buffer("signal", longer, persistent=False)
            return longer
        return signal
