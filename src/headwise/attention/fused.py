"""Base class of normalisers of the entmax family, whose maps and attention have kernels.

Axes: B batch, H heads, Q and K numbers of queries and keys, E head width.
"""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from headwise.attention.parts import Normaliser, ScoreContext
from headwise.ops.attention import reference
from headwise.ops.attention.operator import attend
from headwise.ops.family import Power


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
        self,
        query_BHQE: Tensor,
        key_BHKE: Tensor,
        value_BHKE: Tensor,
        context: ScoreContext,
        dropout: float,
    ) -> Tensor | None:
        """Return the context (B, H, Q, E), or None if no kernel is faster than forming weights."""
        return attend(
            query_BHQE, key_BHKE, value_BHKE, self.power, lambda: self.row_alpha(context),
            self.alpha_per_query, context.mask, dropout, context.distances, context.layout,
        )  # fmt: skip
