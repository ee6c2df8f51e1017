"""Heads: projections on the way in, the way out, and gates between.

Letters: B batch, H heads, N a length, D model width, E head width.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from headwise.attention.cache import AttentionCache, KeyValueCache
from headwise.attention.mask import Mask
from headwise.attention.place import Place
from headwise.attention.positions import PlacePositions
from headwise.attention.protocol import Attention
from headwise.kernels.linear import Linear


class HeadGate(nn.Module):
    """Factors on the outputs of the heads of one place."""

    def forward(self, context_BHQE: Tensor) -> Tensor:
        """The context of every head, gated."""
        raise NotImplementedError

    def penalty(self) -> Tensor | None:
        """A term of the loss, a scalar; None for none."""
        return None

    def stats(self) -> dict[str, Tensor]:
        """Values to log: name -> (H,)."""
        return {}


class MultiHeadAttention(Attention):
    """All of an attention but what happens between its queries, keys, values and context.

    Attributes:
        query, key, value: D -> H * E.
        output: H * E -> D.
        gate: called with the context (B, H, Q, E) of every head before the heads are joined, or
            None; see `headwise.model.gates`.
        positions: what the model's scheme does here, or None.
    """

    gate: HeadGate | None
    positions: PlacePositions | None

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        inner = place.n_heads * place.head_dim
        self.query = Linear(place.d_model, inner)
        self.key = Linear(place.d_model, inner)
        self.value = Linear(place.d_model, inner)
        self.output = Linear(inner, place.d_model)
        self.register_module("gate", None)
        self.register_module("positions", None)

    def split(self, states_BND: Tensor) -> Tensor:
        """Projected states (B, N, H * E) by heads: (B, H, N, E)."""
        batch, length, _ = states_BND.shape
        by_head = states_BND.view(batch, length, self.place.n_heads, self.place.head_dim)
        return by_head.transpose(1, 2)

    def rotated(self, states_BHNE: Tensor, first: int) -> Tensor:
        """Queries or keys of the positions from `first` on, which is negative in a prefix."""
        return states_BHNE if self.positions is None else self.positions.rotated(states_BHNE, first)

    def join(self, context_BHQE: Tensor) -> Tensor:
        """What the heads found, gated, joined and projected: (B, Q, D)."""
        if self.gate is not None:
            context_BHQE = self.gate(context_BHQE)
        joined: Tensor = self.output(context_BHQE.transpose(1, 2).flatten(2))
        return joined

    def stats(self) -> dict[str, Tensor]:
        """What the gate reports; a subclass adds its own."""
        return self.gate.stats() if self.gate is not None else {}


class NoHeads(Attention):
    """A place that lost all its heads: what is left is the bias of its output projection."""

    forms_weights: str = "no"

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self.bias = nn.Parameter(torch.zeros(place.d_model))

    def forward(
        self,
        query_BQD: Tensor,
        key_BKD: Tensor,
        value_BKD: Tensor,
        mask: Mask,
        cache: AttentionCache | None = None,
    ) -> Tensor:
        """See `Attention.forward`."""
        return self.bias.expand_as(query_BQD)

    def make_cache(self, static: bool) -> KeyValueCache:
        """See `Attention.make_cache`; it stays empty."""
        return KeyValueCache(static)
