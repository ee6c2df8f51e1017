"""Parts of a score-based attention: `Normaliser` and `Scaling`; see also `Pattern`.

`headwise.attention.scores.ScoreAttention` composes them.

Axes: B batch, H heads, Q and K numbers of queries and keys, D model width, E head width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from headwise.attention.mask import Mask
from headwise.attention.place import Variant
from headwise.kernels.problem import Distances


class Scaling(Variant):
    """A factor on the scores of each head and query, applied before the normaliser.

    Attributes:
        scales: False for the identity, which is skipped.
    """

    scales: ClassVar[bool] = True

    def forward(self, query_BQD: Tensor, n_visible_BQ: Tensor) -> Tensor:
        """Return the factor (B or 1, H, Q, 1), float32.

        Args:
            query_BQD: input of the layer's query projection.
            n_visible_BQ: number of keys that padding and causality allow, (B or 1, Q).
        """
        raise NotImplementedError


@dataclass(frozen=True)
class ScoreContext:
    """Inputs of a normaliser other than the scores.

    Attributes:
        mask: which keys may be attended to.
        queries_BHQE: queries of the heads, without rotation or scaling.
        distances: bias on the scores by distance, or None. It is already in the scores passed to
            `Normaliser.forward`; `Normaliser.attend` adds it.
        allowed_BHQK: replaces the dense form of `mask` for scores of some heads only, or in a
            `BlockLayout` (K then counts its slots); else None.
    """

    mask: Mask
    queries_BHQE: Tensor
    distances: Distances | None = None
    allowed_BHQK: Tensor | None = None

    def dense_mask(self, scores_BHQK: Tensor) -> Tensor | None:
        """Return bool (B or 1, H or 1, Q or 1, K), True = may attend; None: all allowed."""
        if self.allowed_BHQK is not None:
            return self.allowed_BHQK
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
        self,
        query_BHQE: Tensor,
        key_BHKE: Tensor,
        value_BHKE: Tensor,
        context: ScoreContext,
        dropout: float,
    ) -> Tensor | None:
        """Return the context (B, H, Q, E) without forming weights; called only if `is_fused`.

        Scores are query · key · E^-0.5. None if no kernel is available or faster: the caller then
        forms the weights.
        """
        raise NotImplementedError

    def query_stats(self, context: ScoreContext) -> dict[str, Tensor]:
        """Return values to log as a mean over queries: name -> (B, H, Q), NaN as in `stats`."""
        return {}
