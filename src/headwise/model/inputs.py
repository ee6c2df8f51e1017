"""Embeddings of tokens, positions and CLS tokens (Vaswani et al. 2017, section 3.4)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from headwise.config.schema import ModelConfig
from headwise.errors import DataError
from headwise.model.init import LateEmbedding
from headwise.model.parts import Parts
from headwise.ops.dropout.operator import Dropout


class Input(nn.Module):
    """Embeddings of tokens plus positions, after a prefix of CLS tokens.

    CLS tokens are learned vectors before every row, without text or position: the multiple CLS
    tokens of the YUBERT note. They are attended to like tokens. Positions of tokens count from 0.

    Args:
        token: the table (V, D), or another module of this width from ids to states; pass the same
            module to share it with other columns.
        config: sizes and rates.
        parts: its positions are added to the embeddings; its init scales both.
        n_prefix: number of CLS tokens.
    """

    def __init__(
        self, token: nn.Module, config: ModelConfig, parts: Parts, n_prefix: int = 0
    ) -> None:
        super().__init__()
        width = config.d_model
        self.token = token
        self.positions = parts.positions.embedding(width)
        self.max_positions = parts.positions.max_positions
        self.scale, self.signal_scale = parts.init.scales(width)
        self.token_scale = self.scale if isinstance(token, nn.Embedding) else 1.0
        if self.positions is not None and self.positions.n_summed:
            self.signal_scale = 1.0  # learned vectors are drawn at their final scale
        self.n_prefix = n_prefix
        self.cls = LateEmbedding(n_prefix, width) if n_prefix else None
        self.dropout = Dropout(config.dropout)

    def forward(self, ids_BN: Tensor, first: int = 0) -> Tensor:
        """Return states (B, N, D) of the tokens at positions first .. first + N - 1.

        If `first` is 0, the `n_prefix` CLS tokens are prepended.
        """
        n_positions = ids_BN.shape[1]
        if self.max_positions is not None and first + n_positions > self.max_positions:
            raise DataError(
                f"a sentence of {first + n_positions} tokens is longer than "
                f"positions.max_positions={self.max_positions}"
            )
        states_BND = self.token(ids_BN) * self.token_scale
        if self.positions is not None:
            position_ND = self.positions(first, n_positions).to(states_BND.dtype)
            states_BND = states_BND + position_ND * self.signal_scale
        dropped_BND: Tensor = self.dropout(states_BND)
        if self.cls is None or first:
            return dropped_BND
        cls_BPD = (self.cls.weight * self.scale).expand(ids_BN.shape[0], -1, -1)
        return torch.cat((self.dropout(cls_BPD).to(dropped_BND.dtype), dropped_BND), dim=1)

    def random_ids(self, n_rows: int, n: int, generator: torch.Generator) -> Tensor:
        """Return random ids of `n_rows` rows with n positions, for checks of a model."""
        first, *_ = self.token.parameters()
        shape = n_rows, n, *getattr(self.token, "id_shape", ())
        return torch.randint(getattr(self.token, "n_ids", len(first)), shape, generator=generator)
