"""The parts of an attention by scores: `Normaliser` and `Scaling`; see also `Pattern`.

`headwise.attention.scores.ScoreAttention` composes them.

Letters: B batch, H heads, Q and K numbers of queries and keys, D model width, E head width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from headwise.attention.mask import Mask
from headwise.attention.place import Variant
from headwise.kernels.problem import Distances


class Scaling(Variant):
    """A factor on the scores of each head and query, before whatever normaliser follows.

    Attributes:
        scales: whether it scales anything; if not, it is left out.
    """

    scales: ClassVar[bool] = True

    def forward(self, query_BQD: Tensor, n_visible_BQ: Tensor) -> Tensor:
        """Factor (B or 1, H, Q, 1), float32.

        Args:
            query_BQD: what the layer reads for its queries.
            n_visible_BQ: keys that padding and causality leave to each query, (B or 1, Q).
        """
        raise NotImplementedError


@dataclass(frozen=True)
class ScoreContext:
    """What a normaliser may read beside the scores.

    Attributes:
        mask: which keys may be attended to.
        queries_BHQE: of the heads whose scores these are, without rotation or scaling.
        distances: bias on the scores by distance, or None. Scores given to `Normaliser.forward`
            have it; `Normaliser.attend` adds it.
        allowed_BHQK: the dense form where it is not that of `mask`: the scores are those of some
            heads, or stand as a `BlockLayout` puts them (K then counts its places).
    """

    mask: Mask
    queries_BHQE: Tensor
    distances: Distances | None = None
    allowed_BHQK: Tensor | None = None

    def dense_mask(self, scores_BHQK: Tensor) -> Tensor | None:
        """Bool (B or 1, H or 1, Q or 1, K), True = may attend; None: every key is allowed."""
        if self.allowed_BHQK is not None:
            return self.allowed_BHQK
        n_queries, n_keys = scores_BHQK.shape[-2:]
        return self.mask.dense(n_queries, n_keys, scores_BHQK.device)


class Normaliser(Variant):
    """Turns the scores of one site of one layer into weights.

    Attributes:
        is_distribution: rows are non-negative and sum to one.
        is_fused: has `attend`.
    """

    is_distribution: ClassVar[bool] = True
    is_fused: ClassVar[bool] = False

    def distribution_heads(self) -> tuple[bool, ...]:
        """Whether the rows of each head are non-negative and sum to one."""
        return (self.is_distribution,) * self.place.n_heads

    def forward(self, scores_BHQK: Tensor, context: ScoreContext) -> Tensor:
        """Weights (B, H, Q, K); keys that are not allowed get exactly 0."""
        raise NotImplementedError

    def attend(
        self,
        query_BHQE: Tensor,
        key_BHKE: Tensor,
        value_BHKE: Tensor,
        context: ScoreContext,
        dropout: float,
    ) -> Tensor | None:
        """Context (B, H, Q, E) without forming the weights; asked only where `is_fused`.

        The scores are those of the queries given here, times E^-0.5. None where no kernel is at
        hand, or none that gains anything: then the weights are formed after all.
        """
        raise NotImplementedError

    def query_stats(self, context: ScoreContext) -> dict[str, Tensor]:
        """Values to log as a mean over queries: name -> (B, H, Q), NaN as in `stats`."""
        return {}
