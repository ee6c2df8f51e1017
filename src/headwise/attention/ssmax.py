"""Scores that grow with the logarithm of the number of keys (SSMax, arXiv 2501.19399).

Softmax over more keys is flatter: to keep the weight of one key among n, its score must grow as
log n.

Axes: B batch, H heads, Q number of queries, D model width.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from headwise.attention.normaliser import Scaling
from headwise.attention.place import Place
from headwise.errors import refuse, require
from headwise.precision import full_precision

HEADS = ("all", "without_positions")


class SSMax(Scaling):
    """Factor β log n / log reference on the scores, with one β per head.

    n is the number of keys that padding, causality and documents allow the query. At n = reference
    and β = 1 scores are unchanged, so it can also be added to a trained model.

    Args:
        place: site, layer and sizes.
        reference: n at which scores are unchanged, such as the trained length; at least 2.
        learned: whether β is learned; else it stays 1.
        heads: "all", or "without_positions": the factor of heads whose scores depend on the
            distance (ALiBi, rotary) is 1.
    """

    beta: Tensor
    scaled_H: Tensor

    def __init__(
        self, place: Place, reference: int = 64, learned: bool = True, heads: str = "all"
    ) -> None:
        super().__init__(place)
        require(reference >= 2, "reference", "at least 2", reference)
        if heads not in HEADS:
            raise refuse("heads", heads, HEADS)
        self.reference, self.heads = reference, heads
        beta_H = torch.ones(place.n_heads)
        if learned:
            self.beta = nn.Parameter(beta_H)
        else:
            self.register_buffer("beta", beta_H, persistent=False)
        self.head_axes = {"beta": 0} if learned else {}
        self.register_buffer(
            "scaled_H", torch.ones(place.n_heads, dtype=torch.bool), persistent=False
        )

    def adapt(self, positioned: Sequence[bool] | None) -> None:
        """See `Scaling.adapt`: which heads keep their scores."""
        if self.heads == "all" or positioned is None:
            return
        allowed = "all with positions that every head has"
        require(not all(positioned), "scaling.heads", allowed, self.heads)
        self.scaled_H = ~torch.tensor(positioned)

    @classmethod
    def unlearned(cls, settings: Mapping[str, Any]) -> Mapping[str, Any]:
        return {**settings, "learned": False}

    def forward(self, query_BQD: Tensor, n_visible_BQ: Tensor) -> Tensor:
        """Return the factor (B or 1, H, Q, 1), float32 even under autocast."""
        n_B1Q1 = full_precision(n_visible_BQ.clamp(min=1))[:, None, :, None]
        ratio_B1Q1 = n_B1Q1.log() / math.log(self.reference)
        factor_BHQ1 = full_precision(self.beta)[:, None, None] * ratio_B1Q1
        return factor_BHQ1.where(self.scaled_H[:, None, None], 1.0)

    def stats(self) -> dict[str, Tensor]:
        """Return β per head."""
        return {"scale_beta": self.beta.detach()}
