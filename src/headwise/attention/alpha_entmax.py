"""α-entmax with a learned α per head (Correia, Niculae and Martins 2019, section 3)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from headwise import entmax
from headwise.attention.base import Normaliser, Place, ScoreContext
from headwise.errors import refuse, require

SHARING = ("none", "layer", "site")


class AlphaEntmax(Normaliser):
    """Sparse weights whose α each head learns.

    α = alpha_min + (alpha_max - alpha_min) · sigmoid(a) with one free scalar a per head: the
    smooth form of 1 + sigmoid(a) clamped to [1.01, 2], so that no gradient dies at the border.

    Args:
        place: site, layer and sizes.
        alpha_min, alpha_max: the open range of α, within [1, 2].
        alpha_init: "normal" draws a ~ N(0, 1) per head, as the authors do; a number is the α
            every head starts from.
        share: "none" (one α per head, layer and site), "layer" (one for the heads of a layer
            at a site) or "site" (one for all layers and heads of a site).
    """

    def __init__(
        self,
        place: Place,
        alpha_min: float = 1.01,
        alpha_max: float = 2.0,
        alpha_init: float | str = "normal",
        share: str = "none",
    ) -> None:
        super().__init__(place)
        require(1 <= alpha_min < 2, "alpha_min", "in [1, 2)", alpha_min)
        require(alpha_min < alpha_max <= 2, "alpha_max", f"in ({alpha_min}, 2]", alpha_max)
        if share not in SHARING:
            raise refuse("share", share, SHARING)
        self.alpha_min = float(alpha_min)
        self.alpha_max = float(alpha_max)
        n_free = place.n_heads if share == "none" else 1
        if isinstance(alpha_init, str):
            if alpha_init != "normal":
                raise refuse("alpha_init", alpha_init, ["normal", "a number"])
            start = torch.randn(n_free)
        else:
            inside = alpha_min < alpha_init < alpha_max
            require(inside, "alpha_init", f"in ({alpha_min}, {alpha_max})", alpha_init)
            position = (alpha_init - alpha_min) / (alpha_max - alpha_min)
            start = torch.full((n_free,), math.log(position / (1 - position)))
        # one-dimensional, hence outside of weight decay, which would pull α to the middle
        self.alpha_logit = nn.Parameter(start)

    @classmethod
    def share_key(cls, place: Place, settings: Mapping[str, Any]) -> str | None:
        """One module for all layers of a site when `share` is "site"."""
        return place.site if settings.get("share") == "site" else None

    def alpha(self) -> Tensor:
        """α of every head, (H,), float32 also under autocast."""
        span = self.alpha_max - self.alpha_min
        alpha = self.alpha_min + span * torch.sigmoid(self.alpha_logit.float())
        return alpha.expand(self.place.n_heads)

    def forward(self, scores_BHQK: Tensor, context: ScoreContext) -> Tensor:
        """Weights (B, H, Q, K) with exact zeros; differentiable in the scores and in α."""
        mask = context.dense_mask(scores_BHQK)
        return entmax.alpha_entmax(scores_BHQK, self.alpha()[:, None, None], dim=-1, mask=mask)

    def stats(self) -> dict[str, Tensor]:
        """α per head."""
        return {"alpha": self.alpha().detach()}
