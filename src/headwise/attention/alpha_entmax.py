"""α-entmax with a learned α per head (Correia, Niculae and Martins 2019).

Axes: B batch, H heads, Q and K numbers of queries and keys, E head width.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from headwise.attention.normaliser import FusedNormaliser, ScoreContext
from headwise.attention.place import Place
from headwise.errors import refuse, require
from headwise.ops.family import Power
from headwise.precision import full_precision

SHARING = ("none", "layer", "site")
DEPENDENCIES = ("head", "query")


class AlphaEntmax(FusedNormaliser):
    """Sparse weights with a learned α per head.

    α = alpha_min + (alpha_max - alpha_min) · sigmoid(a) with one learned scalar a per head: a
    smooth form of 1 + sigmoid(a) clamped to [1.01, 2], without zero gradients at the bounds.
    If α depends on the query q, a + <w, q> replaces a, as in 1 + sigmoid(<w, q> + c), at least
    1.01, in later code of the authors' group (deep-spin/S7). w is initialised with zeros, so that
    the initial α does not depend on the query.

    Args:
        place: site, layer and sizes.
        alpha_min, alpha_max: the open range of α, within [1, 2].
        alpha_init: "normal" draws a ~ N(0, 1) per head, as the authors do; a number is the
            initial α of every head.
        share: "none" (one α per head, layer and site), "layer" (one for the heads of a layer
            at a site) or "site" (one for all layers and heads of a site). a and w are
            shared; an α that depends on the query still differs by query.
        depends_on: "head", or "query": a different α for each query of a head.
        lr_factor: factor of the learning rate of α's parameters. If not 1, it is used instead of
            `task.encoder_lr` in fine-tuning.
    """

    power = Power.ANY
    alpha_weight: nn.Parameter | None

    def __init__(
        self,
        place: Place,
        alpha_min: float = 1.01,
        alpha_max: float = 2.0,
        alpha_init: float | str = "normal",
        share: str = "none",
        depends_on: str = "head",
        lr_factor: float = 1.0,
    ) -> None:
        super().__init__(place)
        require(1 <= alpha_min < 2, "alpha_min", "in [1, 2)", alpha_min)
        require(alpha_min < alpha_max <= 2, "alpha_max", f"in ({alpha_min}, 2]", alpha_max)
        if share not in SHARING:
            raise refuse("share", share, SHARING)
        if depends_on not in DEPENDENCIES:
            raise refuse("depends_on", depends_on, DEPENDENCIES)
        require(0 < lr_factor < math.inf, "lr_factor", "above 0 and finite", lr_factor)
        self.lr_factor = lr_factor
        self.alpha_min = float(alpha_min)
        self.alpha_max = float(alpha_max)
        n_free = place.n_heads if share == "none" else 1
        if isinstance(alpha_init, str):
            if alpha_init != "normal":
                raise refuse("alpha_init", alpha_init, ["normal", "a number"])
            start = torch.randn(n_free)
        else:
            is_inside = alpha_min < alpha_init < alpha_max
            require(is_inside, "alpha_init", f"in ({alpha_min}, {alpha_max})", alpha_init)
            position = (alpha_init - alpha_min) / (alpha_max - alpha_min)
            start = torch.full((n_free,), math.log(position / (1 - position)))
        # one-dimensional, hence without weight decay, which would pull α to the middle of its range
        self.alpha_logit = nn.Parameter(start)
        self.register_parameter("alpha_weight", None)
        self.alpha_per_query = depends_on == "query"
        if self.alpha_per_query:
            # a matrix, hence with weight decay, which pulls towards an α independent of the query
            self.alpha_weight = nn.Parameter(torch.zeros(n_free, place.key_dim))
        per_head = [name for name, _ in self.named_parameters()] if share == "none" else []
        self.head_axes = dict.fromkeys(per_head, 0)

    @property
    def lr_factors(self) -> dict[nn.Parameter, float]:
        """Return parameter -> factor of its learning rate, for `build_optimizer`; none if 1."""
        return dict.fromkeys(self.parameters(), self.lr_factor) if self.lr_factor != 1 else {}

    @classmethod
    def share_key(cls, place: Place, settings: Mapping[str, Any]) -> str | None:
        """One module for all layers of a site when `share` is "site"."""
        return place.site if settings.get("share") == "site" else None

    def alpha(self) -> Tensor:
        """Return α of every head (H,), float32 even under autocast; for q = 0 if α depends on q."""
        return self._alpha(full_precision(self.alpha_logit)).expand(self.place.n_heads)

    def query_alpha(self, queries_BHQE: Tensor) -> Tensor:
        """Return α of every query (B, H, Q), if it depends on it; float32 even under autocast."""
        assert self.alpha_weight is not None
        # no matmul: autocast would compute it in half precision
        weighted_BHQE = full_precision(queries_BHQE) * full_precision(self.alpha_weight)[:, None]
        return self._alpha(full_precision(self.alpha_logit)[:, None] + weighted_BHQE.sum(-1))

    def _alpha(self, logit: Tensor) -> Tensor:
        return self.alpha_min + (self.alpha_max - self.alpha_min) * torch.sigmoid(logit)

    def row_alpha(self, context: ScoreContext) -> Tensor:
        """Return α of every row of scores, broadcastable to (B, H, Q, 1)."""
        if self.alpha_weight is None:
            return self.alpha()[None, :, None, None]
        return self.query_alpha(context.queries_BHQE)[..., None]

    def query_stats(self, context: ScoreContext) -> dict[str, Tensor]:
        """Return α of every query (B, H, Q) if it depends on the query, else nothing."""
        if self.alpha_weight is None:
            return {}
        return {"alpha": self.query_alpha(context.queries_BHQE).detach()}

    def stats(self) -> dict[str, Tensor]:
        """Return α per head, unless it depends on the query."""
        return {"alpha": self.alpha().detach()} if self.alpha_weight is None else {}
