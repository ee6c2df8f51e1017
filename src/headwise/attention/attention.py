"""The attention at one site of one layer: `ScoreAttention`, and the base classes of all attentions.

Read `place.py` and `normaliser.py` first.

Axes: B batch, H heads, Q and K numbers of queries and keys, N a length, D model width, E head
width, of values if not stated otherwise.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from headwise.attention.cache import AttentionCache, KeyValueCache
from headwise.attention.mask import Mask
from headwise.attention.normaliser import Normaliser, Scaling, ScoreContext
from headwise.attention.pattern import Pattern
from headwise.attention.place import Place, Variant
from headwise.attention.positions import PlacePositions
from headwise.ops.attention import reference
from headwise.ops.linear import Linear, linear_of_each
from headwise.precision import full_precision


class Attention(Variant):
    """The interface of the attention at one site of one layer.

    Attributes:
        dropout: rate on the weights, if any; set by the factory.
        rotates: whether it supports rotary positions.
        without_documents: message why it cannot separate documents of a row; empty: it can.
        forms_weights: "exact", "effective" (see the class) or "no".
        recorders: callbacks for the weights (see `headwise.attention.recorder`). With at least
            one, `forward` forms the weights, unless `forms_weights` is "no", and calls `record`.
    """

    dropout: float = 0.0
    rotates: bool = False
    without_documents: str = ""
    forms_weights: str = "exact"
    recorders: tuple[Recorder, ...] = ()

    @property
    def max_keys(self) -> int | None:
        """Maximum number of keys, or None for no limit."""
        return None

    def distribution_heads(self) -> tuple[bool, ...]:
        """Return for each head whether its weights are non-negative and sum to one."""
        return (True,) * self.place.n_heads

    def forward(
        self, query_BQD: Tensor, key_BKD: Tensor, value_BKD: Tensor, mask: Mask,
        cache: AttentionCache | None = None,
    ) -> Tensor:  # fmt: skip
        """Return the context (B, Q, D).

        Args:
            query_BQD: input of the queries.
            key_BKD: input of the keys. With a growing cache: only the new positions; ignored with
                a filled static cache (cross-attention).
            value_BKD: input of the values, as `key_BKD`.
            mask: which keys may be attended to.
            cache: keys and values of earlier steps, extended in place.
        """
        raise NotImplementedError

    def record(self, weights_BHQK: Tensor) -> None:
        """Pass the weights of every head to the recorders."""
        for recorder in self.recorders:
            recorder(self, weights_BHQK)

    def make_cache(self, static: bool) -> AttentionCache:
        """Return an empty cache: growing (self-attention) or static (cross-attention)."""
        return KeyValueCache(static)


Recorder = Callable[[Attention, Tensor], None]  # called with weights (B, H, Q, K)


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
    """Base class: projections, gates and positions; subclasses, with scores or not, attend.

    Attributes:
        query, key: D -> H * `Place.key_dim`.
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

    def split(self, states_BND: Tensor) -> Tensor:
        """Split projected states (B, N, H * E) into heads (B, H, N, E)."""
        batch, length, inner = states_BND.shape
        n_heads = self.place.n_heads
        return states_BND.view(batch, length, n_heads, inner // n_heads).transpose(1, 2)

    def join(self, context_BHQE: Tensor) -> Tensor:
        """Gate, concatenate and project the contexts of the heads: (B, Q, D)."""
        if self.gate is not None:
            context_BHQE = self.gate(context_BHQE)
        joined: Tensor = self.output(context_BHQE.transpose(1, 2).flatten(2))
        return joined

    def stats(self) -> dict[str, Tensor]:
        """Return the values of the gate; subclasses add theirs."""
        return self.gate.stats() if self.gate is not None else {}


class ScoreAttention(MultiHeadAttention):
    """Multi-head scaled dot-product attention (Vaswani et al. 2017, section 3.2).

    The normaliser maps scores to weights, the pattern restricts the keys, the scaling multiplies
    the scores. Positions rotate queries and keys (cached keys are rotated) or bias the scores.
    """

    def __init__(
        self, place: Place, normaliser: Normaliser, pattern: Pattern | None, dropout: float,
        scaling: Scaling | None = None, positions: PlacePositions | None = None,
    ) -> None:  # fmt: skip
        super().__init__(place)
        self.normaliser = normaliser
        self.pattern = pattern if pattern is not None and pattern.restricts else None
        self.scaling = scaling if scaling is not None and scaling.scales else None
        self.positions = positions
        if self.scaling is not None:
            self.scaling.adapt(None if positions is None else positions.positioned(place.n_heads))
        self.dropout = dropout

    def forward(
        self, query_BQD: Tensor, key_BKD: Tensor, value_BKD: Tensor, mask: Mask,
        cache: AttentionCache | None = None,
    ) -> Tensor:  # fmt: skip
        query_BHQE, key_BHKE, value_BHKE = self._project(
            query_BQD, key_BKD, value_BKD, cache, mask.n_prefix
        )
        n_queries, n_keys, device = query_BQD.shape[1], key_BHKE.shape[2], query_BQD.device

        layout, distances = None, None
        if self.pattern is not None:
            mask = mask.restricted(self.pattern)
            layout = None if self.recorders else mask.layout(n_queries, n_keys, device)
        if self.positions is not None:
            distances = self.positions.distances(mask.n_prefix)
        context = ScoreContext(mask, query_BHQE, distances, layout)

        # the factor multiplies queries, not scores: kernels form no scores
        if self.positions is not None:
            first = mask.query_offset - mask.n_prefix
            query_BHQE = self.positions.rotated(query_BHQE, first)
        if self.scaling is not None:
            factor = self.scaling(query_BQD, mask.n_visible(n_queries, n_keys, device))
            query_BHQE = (full_precision(query_BHQE) * factor).to(query_BHQE.dtype)

        heads, result_BHQE = (query_BHQE, key_BHKE, value_BHKE), None
        dropout = self.dropout if self.training else 0.0
        if self.normaliser.is_fused and not self.recorders:
            result_BHQE = self.normaliser.attend(*heads, context, dropout)
        if result_BHQE is None:
            scores_BHQK = reference.scores(
                query_BHQE, key_BHKE, self.place.key_dim**-0.5, distances, mask.query_offset,
                layout=layout,
            )  # fmt: skip
            weights_BHQK = self.normaliser(scores_BHQK, context)
            self.record(weights_BHQK)
            result_BHQE = reference.context(weights_BHQK, value_BHKE, dropout, layout)
        return self.join(result_BHQE)

    def _project(
        self, query_BQD: Tensor, key_BKD: Tensor, value_BKD: Tensor, cache: AttentionCache | None,
        n_prefix: int,
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        """Return queries (B, H, Q, E), and rotated keys, and values (B, H, K, E).

        Keys and values start with those of earlier steps.
        """
        assert cache is None or isinstance(cache, KeyValueCache)
        if cache is not None and cache.is_complete:
            key_BHKE, value_BHKE = cache.content()
            return self.split(self.query(query_BQD)), key_BHKE, value_BHKE
        if key_BKD is not value_BKD:
            projected = [self.query(query_BQD), self.key(key_BKD), self.value(value_BKD)]
        elif query_BQD is not key_BKD:
            projected = [self.query(query_BQD), *linear_of_each(key_BKD, self.key, self.value)]
        else:
            projected = linear_of_each(query_BQD, self.query, self.key, self.value)
        query_BHQE, key_BHKE, value_BHKE = [self.split(states) for states in projected]
        if self.positions is not None:
            first = 0 if cache is None else cache.length
            key_BHKE = self.positions.rotated(key_BHKE, first - n_prefix)
        if cache is not None:
            key_BHKE, value_BHKE = cache.update(key_BHKE, value_BHKE)
        return query_BHQE, key_BHKE, value_BHKE

    def distribution_heads(self) -> tuple[bool, ...]:
        """Return the flags of the normaliser."""
        return self.normaliser.distribution_heads()

    def stats(self) -> dict[str, Tensor]:
        """Return the values of gate, normaliser and scaling."""
        scaling = self.scaling.stats() if self.scaling is not None else {}
        return {**super().stats(), **self.normaliser.stats(), **scaling}


class NoHeads(Attention):
    """A place whose heads are all pruned: only the bias of the output projection is left."""

    forms_weights: str = "no"

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self.bias = nn.Parameter(torch.zeros(place.d_model))

    def forward(self, query_BQD: Tensor, *_: Any, **__: Any) -> Tensor:
        return self.bias.expand_as(query_BQD)
