"""What every attention variant is made of.

Letters: B batch, H heads, Q and K numbers of queries and keys, D model width, E head width.
Layers and heads count from 1 in names, options and logs.

A variant is a `Normaliser` (scores to weights), a `Pattern` (which keys a query may see), or a
whole `Attention` of its own without a weight matrix. `ScoreAttention` composes the first two.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from headwise.attention.cache import AttentionCache, KeyValueCache


@dataclass(frozen=True)
class Place:
    """Where in the model an attention stands, and its sizes."""

    site: str  # encoder_self, decoder_self or cross
    layer: int  # from 1
    n_heads: int
    head_dim: int

    @property
    def d_model(self) -> int:
        """Width D of the model."""
        return self.n_heads * self.head_dim


class Pattern:
    """Which keys a query may see, beside padding and causality (Child et al. 2019)."""

    unsupported_sites: ClassVar[Mapping[str, str]] = {}  # site -> reason
    restricts: ClassVar[bool] = True

    def __init__(self, place: Place) -> None:
        self.place = place

    def allowed(self, query_positions_Q: Tensor, n_keys: int, causal: bool) -> Tensor | None:
        """Bool tensor broadcastable to (B, H, Q, K), True = may attend; None: no restriction."""
        raise NotImplementedError


@dataclass(frozen=True)
class Mask:
    """Which keys may be attended to, as a small structured value.

    Fused and block-sparse paths read the fields; only who needs it makes the dense form.

    Attributes:
        key_lengths_B: number of real keys of each row (padding stands on the right), or None.
        causal: a query sees keys up to its own position only.
        pattern: a further restriction, or None.
        query_offset: position of the first query (the length of the cached prefix).
    """

    key_lengths_B: Tensor | None = None
    causal: bool = False
    pattern: Pattern | None = None
    query_offset: int = 0
    _dense: dict[tuple[int, int], Tensor | None] = field(
        default_factory=dict, repr=False, compare=False
    )

    @property
    def is_plain_causal(self) -> bool:
        """Causal from the first position on, and restricted by nothing else."""
        alone = self.key_lengths_B is None and self.pattern is None
        return self.causal and alone and self.query_offset == 0

    def dense(self, n_queries: int, n_keys: int, device: torch.device) -> Tensor | None:
        """Bool (B or 1, H or 1, Q or 1, K), True = may attend; None when all is allowed.

        Kept after the first call: all layers of a stack ask for the same one.
        """
        size = (n_queries, n_keys)
        if size not in self._dense:
            self._dense[size] = self._make_dense(n_queries, n_keys, device)
        return self._dense[size]

    def _make_dense(self, n_queries: int, n_keys: int, device: torch.device) -> Tensor | None:
        keys_K = torch.arange(n_keys, device=device)
        queries_Q = torch.arange(n_queries, device=device) + self.query_offset
        parts: list[Tensor] = []
        if self.key_lengths_B is not None:
            parts.append((keys_K < self.key_lengths_B[:, None])[:, None, None, :])
        if self.causal and n_keys > self.query_offset + 1:
            parts.append((keys_K <= queries_Q[:, None])[None, None])
        if self.pattern is not None:
            allowed = self.pattern.allowed(queries_Q, n_keys, self.causal)
            if allowed is not None:
                parts.append(allowed)
        if not parts:
            return None
        allowed_BHQK = parts[0]
        for part in parts[1:]:
            allowed_BHQK = allowed_BHQK & part
        return allowed_BHQK


@dataclass(frozen=True)
class AttentionOutput:
    """Context (B, Q, D) and, on request, the weights (B, H, Q, K) of every head."""

    context_BQD: Tensor
    weights_BHQK: Tensor | None = None


@dataclass(frozen=True)
class ScoreContext:
    """What a normaliser may look at beside the scores."""

    mask: Mask
    queries_BHQE: Tensor

    def dense_mask(self, scores_BHQK: Tensor) -> Tensor | None:
        """The mask in dense form for these scores, or None when every key is allowed."""
        n_queries, n_keys = scores_BHQK.shape[-2:]
        return self.mask.dense(n_queries, n_keys, scores_BHQK.device)

    def query_positions_Q(self) -> Tensor:
        """Positions of the queries, from 0."""
        n_queries = self.queries_BHQE.shape[-2]
        return torch.arange(n_queries, device=self.queries_BHQE.device) + self.mask.query_offset


class Normaliser(nn.Module):
    """Turns the scores of one site of one layer into weights.

    A subclass takes `place` as first argument and its own choices as keywords.
    """

    unsupported_sites: ClassVar[Mapping[str, str]] = {}  # site -> reason
    is_distribution: ClassVar[bool] = True  # rows are non-negative and sum to one
    is_fused: ClassVar[bool] = False  # `attend` exists

    def __init__(self, place: Place) -> None:
        super().__init__()
        self.place = place

    @classmethod
    def share_key(cls, place: Place, settings: Mapping[str, Any]) -> str | None:
        """Places with an equal key share one module; None (the default): no sharing."""
        return None

    def forward(self, scores_BHQK: Tensor, context: ScoreContext) -> Tensor:
        """Weights (B, H, Q, K); keys that are not allowed get exactly 0."""
        raise NotImplementedError

    def attend(
        self, query_BHQE: Tensor, key_BHKE: Tensor, value_BHKE: Tensor, mask: Mask, dropout: float
    ) -> Tensor:
        """Context (B, H, Q, E) without forming the weights; only where `is_fused`."""
        raise NotImplementedError

    def stats(self) -> dict[str, Tensor]:
        """What this module would have logged, one value a head: name -> (H,)."""
        return {}


class Attention(nn.Module):
    """The protocol of one attention site of one layer."""

    unsupported_sites: ClassVar[Mapping[str, str]] = {}

    def forward(
        self,
        query_BQD: Tensor,
        key_BKD: Tensor,
        value_BKD: Tensor,
        mask: Mask,
        cache: AttentionCache | None = None,
        need_weights: bool = False,
    ) -> AttentionOutput:
        """Attend.

        Args:
            query_BQD: the queries' side.
            key_BKD, value_BKD: the keys' side. With a growing cache these are the new positions
                only; a filled static cache (cross-attention) answers instead of them.
            mask: which keys may be seen.
            cache: keys and values of earlier steps, extended in place.
            need_weights: return the weights of every head, never averaged.
        """
        raise NotImplementedError

    def make_cache(self, static: bool) -> AttentionCache:
        """An empty cache: growing (self-attention) or static (cross-attention)."""
        raise NotImplementedError

    def stats(self) -> dict[str, Tensor]:
        """One value a head: name -> (H,)."""
        return {}


class ScoreAttention(Attention):
    """Multi-head scaled dot-product attention (Vaswani et al. 2017, section 3.2).

    Owns the projections; the normaliser decides how scores become weights and the pattern which
    keys take part.
    """

    def __init__(
        self, place: Place, normaliser: Normaliser, pattern: Pattern | None, dropout: float
    ) -> None:
        super().__init__()
        self.place = place
        self.normaliser = normaliser
        self.pattern = pattern if pattern is not None and pattern.restricts else None
        self.dropout = dropout
        d_model = place.d_model
        self.query = nn.Linear(d_model, d_model)
        self.key = nn.Linear(d_model, d_model)
        self.value = nn.Linear(d_model, d_model)
        self.output = nn.Linear(d_model, d_model)

    def _split(self, states_BND: Tensor) -> Tensor:
        batch, length, _ = states_BND.shape
        return states_BND.view(batch, length, self.place.n_heads, -1).transpose(1, 2)

    def forward(
        self,
        query_BQD: Tensor,
        key_BKD: Tensor,
        value_BKD: Tensor,
        mask: Mask,
        cache: AttentionCache | None = None,
        need_weights: bool = False,
    ) -> AttentionOutput:
        """See `Attention.forward`."""
        query_BHQE = self._split(self.query(query_BQD))
        if cache is not None and cache.is_complete:
            key_BHKE, value_BHKE = cache.content()
        else:
            key_BHKE = self._split(self.key(key_BKD))
            value_BHKE = self._split(self.value(value_BKD))
            if cache is not None:
                key_BHKE, value_BHKE = cache.update(key_BHKE, value_BHKE)
        if self.pattern is not None:
            mask = Mask(mask.key_lengths_B, mask.causal, self.pattern, mask.query_offset)
        dropout = self.dropout if self.training else 0.0
        weights_BHQK = None
        if self.normaliser.is_fused and not need_weights:
            context = self.normaliser.attend(query_BHQE, key_BHKE, value_BHKE, mask, dropout)
        else:
            # scaling the queries is the same product on a smaller tensor
            scaled_BHQE = query_BHQE * self.place.head_dim**-0.5
            scores_BHQK = scaled_BHQE @ key_BHKE.transpose(-1, -2)
            weights_BHQK = self.normaliser(scores_BHQK, ScoreContext(mask, query_BHQE))
            dropped_BHQK = nn.functional.dropout(weights_BHQK, dropout, training=dropout > 0)
            context = dropped_BHQK.to(value_BHKE.dtype) @ value_BHKE
        context_BQD = context.transpose(1, 2).flatten(2)
        return AttentionOutput(self.output(context_BQD), weights_BHQK if need_weights else None)

    def make_cache(self, static: bool) -> KeyValueCache:
        """See `Attention.make_cache`."""
        return KeyValueCache(static)

    def stats(self) -> dict[str, Tensor]:
        """What the normaliser reports."""
        return self.normaliser.stats()
