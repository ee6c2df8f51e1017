"""Heads: projections on the way in, the way out, and gates between.

Letters: B batch, H heads, N a length, D model width, E head width.
"""

from __future__ import annotations

from torch import Tensor, nn

from headwise.attention.base import Attention, Place


class MultiHeadAttention(Attention):
    """All of an attention but what happens between its queries, keys, values and context.

    Attributes:
        query, key, value: D -> H * E.
        output: H * E -> D.
        gate: called with the context (B, H, Q, E) of every head before the heads are joined, or
            None; see `headwise.model.gates`.
    """

    gate: nn.Module | None

    def __init__(self, place: Place) -> None:
        super().__init__()
        self.place = place
        inner = place.n_heads * place.head_dim
        self.query = nn.Linear(place.d_model, inner)
        self.key = nn.Linear(place.d_model, inner)
        self.value = nn.Linear(place.d_model, inner)
        self.output = nn.Linear(inner, place.d_model)
        self.register_module("gate", None)

    def split(self, states_BND: Tensor) -> Tensor:
        """Projected states (B, N, H * E) by heads: (B, H, N, E)."""
        batch, length, _ = states_BND.shape
        by_head = states_BND.view(batch, length, self.place.n_heads, self.place.head_dim)
        return by_head.transpose(1, 2)

    def join(self, context_BHQE: Tensor) -> Tensor:
        """What the heads found, gated, joined and projected: (B, Q, D)."""
        if self.gate is not None:
            context_BHQE = self.gate(context_BHQE)
        joined: Tensor = self.output(context_BHQE.transpose(1, 2).flatten(2))
        return joined
