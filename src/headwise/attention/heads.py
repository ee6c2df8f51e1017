"""Multi-head attention: input and output projections, and gates on the heads.

Axes: B batch, H heads, N a length, D model width, E head width, of values if not stated otherwise.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from headwise.attention.cache import AttentionCache, KeyValueCache
from headwise.attention.mask import Mask
from headwise.attention.place import Place
from headwise.attention.positions import PlacePositions
from headwise.attention.protocol import Attention
from headwise.ops.linear import Linear, linear_of_each


class HeadGate(nn.Module):
    """Multiplies the outputs of the heads of one place by factors."""

    def forward(self, context_BHQE: Tensor) -> Tensor:
        """Return the gated context of every head, of the same shape."""
        raise NotImplementedError

    def penalty(self) -> Tensor | None:
        """Return a term of the loss, a scalar, or None."""
        return None

    def stats(self) -> dict[str, Tensor]:
        """Return values to log: name -> (H,)."""
        return {}


class MultiHeadAttention(Attention):
    """Base class: projections, gates and positions; subclasses compute the context.

    Attributes:
        query: D -> H * `Place.key_dim`.
        key: as `query`.
        value: D -> H * E.
        output: H * E -> D.
        gate: called with the context (B, H, Q, E) of every head before the heads are joined, or
            None; see `headwise.model.gates`.
        positions: the position scheme at this place, or None.
    """

    gate: HeadGate | None
    positions: PlacePositions | None

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        inner, compared = place.n_heads * place.head_dim, place.n_heads * place.key_dim
        self.query = Linear(place.d_model, compared)
        self.key = Linear(place.d_model, compared)
        self.value = Linear(place.d_model, inner)
        self.output = Linear(inner, place.d_model)
        self.register_module("gate", None)
        self.register_module("positions", None)

    def projected(self, query_BQD: Tensor, key_BKD: Tensor, value_BKD: Tensor) -> list[Tensor]:
        """Project and split into heads: queries (B, H, Q, E), keys and values (B, H, K, E)."""
        if key_BKD is not value_BKD:
            parts = [self.query(query_BQD), self.key(key_BKD), self.value(value_BKD)]
        elif query_BQD is not key_BKD:
            parts = [self.query(query_BQD), *linear_of_each(key_BKD, self.key, self.value)]
        else:
            parts = linear_of_each(query_BQD, self.query, self.key, self.value)
        return [self.split(part) for part in parts]

    def split(self, states_BND: Tensor) -> Tensor:
        """Split projected states (B, N, H * E) into heads (B, H, N, E)."""
        batch, length, inner = states_BND.shape
        n_heads = self.place.n_heads
        return states_BND.view(batch, length, n_heads, inner // n_heads).transpose(1, 2)

    def rotated(self, states_BHNE: Tensor, first: int) -> Tensor:
        """Rotate queries or keys of positions from `first`; prefix positions are negative."""
        return states_BHNE if self.positions is None else self.positions.rotated(states_BHNE, first)

    def join(self, context_BHQE: Tensor) -> Tensor:
        """Gate, concatenate and project the contexts of the heads: (B, Q, D)."""
        if self.gate is not None:
            context_BHQE = self.gate(context_BHQE)
        joined: Tensor = self.output(context_BHQE.transpose(1, 2).flatten(2))
        return joined

    def stats(self) -> dict[str, Tensor]:
        """Return the values of the gate; subclasses add theirs."""
        return self.gate.stats() if self.gate is not None else {}


class NoHeads(Attention):
    """A place whose heads are all pruned: only the bias of the output projection is left."""

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
        return self.bias.expand_as(query_BQD)

    def make_cache(self, static: bool) -> KeyValueCache:
        """See `Attention.make_cache`; it stays empty."""
        return KeyValueCache(static)
