"""From scores to weights: base classes of normalisers, and of scalings of the scores before them.

`headwise.attention.attention.ScoreAttention` composes them; see also `headwise.attention.pattern`.

Axes: B batch, H heads, Q and K numbers of queries and keys, D model width, E head width.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from headwise.attention.mask import Mask
from headwise.attention.place import Variant
from headwise.errors import ConfigError
from headwise.ops.attention import reference
from headwise.ops.attention.distances import Distances
from headwise.ops.attention.layout import BlockLayout
from headwise.ops.attention.operator import attend
from headwise.ops.family import Power


@dataclass(frozen=True)
class ScoreContext:
    """Inputs of a normaliser other than the scores.

    Attributes:
        mask: which keys may be attended to.
        queries_BHQE: queries of the heads, without rotation or scaling.
        distances: bias on the scores by distance, or None. It is already in the scores passed to
            `Normaliser.forward`; `Normaliser.attend` adds it.
        layout: of the scores, whose K then counts its slots, or None.
        allowed_BHQK: replaces the dense form of `mask` for scores of some heads only; else None.
    """

    mask: Mask
    queries_BHQE: Tensor
    distances: Distances | None = None
    layout: BlockLayout | None = None
    allowed_BHQK: Tensor | None = None

    def dense_mask(self, scores_BHQK: Tensor) -> Tensor | None:
        """Return bool (B or 1, H or 1, Q or 1, K), True = may attend; None: all allowed."""
        if self.allowed_BHQK is not None:
            return self.allowed_BHQK
        if self.layout is not None:
            return self.layout.allowed_BHNK
        n_queries, n_keys = scores_BHQK.shape[-2:]
        return self.mask.dense(n_queries, n_keys, scores_BHQK.device)


class Normaliser(Variant):
    """Maps the scores of one site of one layer to weights.

    Attributes:
        is_distribution: rows are non-negative and sum to one.
        is_fused: whether `attend` is implemented.
    """

    is_distribution: ClassVar[bool] = True
    is_fused: ClassVar[bool] = False

    def distribution_heads(self) -> tuple[bool, ...]:
        """Return for each head whether its rows are non-negative and sum to one."""
        return (self.is_distribution,) * self.place.n_heads

    def forward(self, scores_BHQK: Tensor, context: ScoreContext) -> Tensor:
        """Return weights (B, H, Q, K), exactly 0 for keys that are not allowed."""
        raise NotImplementedError

    def attend(
        self, query_BHQE: Tensor, key_BHKE: Tensor, value_BHKE: Tensor, context: ScoreContext,
        dropout: float,
    ) -> Tensor | None:  # fmt: skip
        """Return the context (B, H, Q, E) without forming weights; called only if `is_fused`.

        Scores are query · key · E^-0.5. None if no kernel is available or faster: the caller then
        forms the weights.
        """
        raise NotImplementedError

    def query_stats(self, context: ScoreContext) -> dict[str, Tensor]:
        """Return values to log as a mean over queries: name -> (B, H, Q), NaN as in `stats`."""
        return {}


class FusedNormaliser(Normaliser):
    """A normaliser of the entmax family, whose maps have kernels.

    Attributes:
        power: the map.
        alpha_per_query: whether α differs by query.
    """

    is_fused = True
    power: ClassVar[Power]
    alpha_per_query: bool = False

    def row_alpha(self, context: ScoreContext) -> Tensor | None:
        """Return α, float32, broadcastable to (B, H, Q, 1); None if `power` determines it."""
        return None

    def forward(self, scores_BHQK: Tensor, context: ScoreContext) -> Tensor:
        """Return weights (B, H, Q, K), differentiable in the scores and in α."""
        alpha, mask = self.row_alpha(context), context.dense_mask(scores_BHQK)
        return reference.weights(scores_BHQK, self.power, alpha, mask)

    def attend(
        self, query_BHQE: Tensor, key_BHKE: Tensor, value_BHKE: Tensor, context: ScoreContext,
        dropout: float,
    ) -> Tensor | None:  # fmt: skip
        """Return the context (B, H, Q, E), or None if no kernel is faster than forming weights."""
        return attend(
            query_BHQE, key_BHKE, value_BHKE, self.power, self.row_alpha(context),
            self.alpha_per_query, context.mask, dropout, context.distances, context.layout,
        )  # fmt: skip


class Scaling(Variant):
    """A factor on the scores of each head and query, applied before the normaliser.

    Attributes:
        scales: False for the identity, which is skipped.
    """

    scales: ClassVar[bool] = True

    def adapt(self, positioned: Sequence[bool] | None) -> None:
        """Learn, after construction, which heads have positions; None: there are none at the place.

        Raises:
            ConfigError: the settings do not fit the positions.
        """

    @classmethod
    def unlearned(cls, settings: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return settings for a model that was trained without scaling: without weights.

        Raises:
            ConfigError: the scaling needs weights.
        """
        raise ConfigError(f"scaling: {cls.__name__} has weights that the run has not learned")

    def forward(self, query_BQD: Tensor, n_visible_BQ: Tensor) -> Tensor:
        """Return the factor (B or 1, H, Q, 1), float32.

        Args:
            query_BQD: input of the layer's query projection.
            n_visible_BQ: number of keys that are allowed without the pattern, (B or 1, Q).
        """
        raise NotImplementedError


class NoScaling(Scaling):
    """Scores are the scaled dot products of Vaswani et al. (2017)."""

    scales = False

    @classmethod
    def unlearned(cls, settings: Mapping[str, Any]) -> Mapping[str, Any]:
        return settings
