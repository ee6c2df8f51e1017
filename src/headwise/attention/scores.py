"""Score-based attention, composed of a normaliser, a pattern, a scaling and positions.

Axes: B batch, H heads, Q and K numbers of queries and keys, D model width, E head width.
"""

from __future__ import annotations

from torch import Tensor

from headwise.attention.cache import AttentionCache, KeyValueCache
from headwise.attention.heads import MultiHeadAttention
from headwise.attention.mask import Mask
from headwise.attention.parts import Normaliser, Scaling, ScoreContext
from headwise.attention.pattern import Pattern
from headwise.attention.place import Place
from headwise.attention.positions import PlacePositions
from headwise.ops.attention import reference


class ScoreAttention(MultiHeadAttention):
    """Multi-head scaled dot-product attention (Vaswani et al. 2017, section 3.2).

    The normaliser maps scores to weights, the pattern restricts the keys, the scaling multiplies
    the scores. Positions rotate queries and keys (cached keys are rotated) or bias the scores.
    """

    def __init__(
        self,
        place: Place,
        normaliser: Normaliser,
        pattern: Pattern | None,
        dropout: float,
        scaling: Scaling | None = None,
        positions: PlacePositions | None = None,
    ) -> None:
        super().__init__(place)
        self.normaliser = normaliser
        self.pattern = pattern if pattern is not None and pattern.restricts else None
        self.scaling = scaling if scaling is not None and scaling.scales else None
        self.positions = positions
        if self.scaling is not None:
            self.scaling.adapt(None if positions is None else positions.positioned(place.n_heads))
        self.dropout = dropout

    def forward(
        self,
        query_BQD: Tensor,
        key_BKD: Tensor,
        value_BKD: Tensor,
        mask: Mask,
        cache: AttentionCache | None = None,
    ) -> Tensor:
        query_BHQE, key_BHKE, value_BHKE = self._heads(
            query_BQD, key_BKD, value_BKD, cache, mask.n_prefix
        )
        n_queries, n_keys, device = query_BQD.shape[1], key_BHKE.shape[2], query_BQD.device
        layout = None
        if self.pattern is not None:
            mask = mask.restricted(self.pattern)
            layout = None if self.recorders else mask.layout(n_queries, n_keys, device)
        distances = None
        if self.positions is not None:
            distances = self.positions.distances(mask.n_prefix)
        context = ScoreContext(mask, query_BHQE, distances, layout)
        query_BHQE = self.rotated(query_BHQE, mask.query_offset - mask.n_prefix)
        if self.scaling is not None:
            # scaling the queries scales the scores, for fused kernels too
            factor = self.scaling(query_BQD, mask.n_visible(n_queries, n_keys, device))
            query_BHQE = query_BHQE * factor.to(query_BHQE.dtype)
        dropout = self.dropout if self.training else 0.0
        if self.normaliser.is_fused and not self.recorders:
            fused = self.normaliser.attend(query_BHQE, key_BHKE, value_BHKE, context, dropout)
            if fused is not None:
                return self.join(fused)
        scores_BHQK = reference.scores(
            query_BHQE, key_BHKE, self.place.key_dim**-0.5, distances, mask.query_offset,
            layout=layout,
        )  # fmt: skip
        weights_BHQK = self.normaliser(scores_BHQK, context)
        self.record(weights_BHQK)
        return self.join(reference.context(weights_BHQK, value_BHKE, dropout, layout))

    def _heads(
        self,
        query_BQD: Tensor,
        key_BKD: Tensor,
        value_BKD: Tensor,
        cache: AttentionCache | None,
        n_prefix: int,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries (B, H, Q, E), and keys and values (B, H, K, E) with earlier steps'."""
        assert cache is None or isinstance(cache, KeyValueCache)
        if cache is not None and cache.is_complete:
            key_BHKE, value_BHKE = cache.content()
            return self.split(self.query(query_BQD)), key_BHKE, value_BHKE
        query_BHQE, key_BHKE, value_BHKE = self.projected(query_BQD, key_BKD, value_BKD)
        first = 0 if cache is None else cache.length
        key_BHKE = self.rotated(key_BHKE, first - n_prefix)
        if cache is not None:
            key_BHKE, value_BHKE = cache.update(key_BHKE, value_BHKE)
        return query_BHQE, key_BHKE, value_BHKE

    def make_cache(self, static: bool) -> KeyValueCache:
        return KeyValueCache(static)

    def distribution_heads(self) -> tuple[bool, ...]:
        """Return the flags of the normaliser."""
        return self.normaliser.distribution_heads()

    def stats(self) -> dict[str, Tensor]:
        """Return the values of gate, normaliser and scaling."""
        scaling = self.scaling.stats() if self.scaling is not None else {}
        return {**super().stats(), **self.normaliser.stats(), **scaling}
