"""Scores scaled by the number of keys (ASEntmax, arXiv 2506.16640).

Axes: B batch, H heads, Q number of queries, D model width.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from headwise.attention.normaliser import Scaling
from headwise.attention.place import Place
from headwise.errors import refuse, require
from headwise.precision import full_precision, without_autocast

LEARNED = ("query", "head")


class LengthScaling(Scaling):
    """Factor δ + β (log n)^γ on the scores, so that weights stay concentrated as n grows.

    n is one more than the number of keys that padding, causality and documents allow the query, so
    that log n ≥ log 2, which can be raised to any power.

    Args:
        place: site, layer and sizes.
        learned: "query": β = softplus(<u, x> + b) and γ = 2 tanh(<v, x> + c) for every head and
            query, from the layer's query input x. u and v are initialised uniformly within
            ±1/√D, b and c with zeros. "head": one learned β and γ per head, initialised as
            β ~ U(0.1, 1) and γ ~ N(0, 0.1), with standard deviation 0.1.
        delta: δ, at least 0; 0 leaves only the learned part.
    """

    beta_weight: nn.Parameter | None
    gamma_weight: nn.Parameter | None

    def __init__(self, place: Place, learned: str = "query", delta: float = 1.0) -> None:
        super().__init__(place)
        if learned not in LEARNED:
            raise refuse("learned", learned, LEARNED)
        require(0 <= delta < float("inf"), "delta", "a number of at least 0", delta)
        self.delta = float(delta)
        n_heads = place.n_heads
        self.register_parameter("beta_weight", None)
        self.register_parameter("gamma_weight", None)
        if learned == "head":
            self.beta = nn.Parameter(torch.empty(n_heads).uniform_(0.1, 1.0))
            self.gamma = nn.Parameter(0.1 * torch.randn(n_heads))
        else:
            self.beta = nn.Parameter(torch.zeros(n_heads))  # b
            self.gamma = nn.Parameter(torch.zeros(n_heads))  # c
            # not nn.Linear: the model initialises all linear layers from one generator, and its
            # other weights would differ from those of a model without this module
            bound = place.d_model**-0.5
            for name in ("beta_weight", "gamma_weight"):
                weight_HD = torch.empty(n_heads, place.d_model).uniform_(-bound, bound)
                setattr(self, name, nn.Parameter(weight_HD))
        names = [name for name, _ in self.named_parameters()]
        self.head_axes = dict.fromkeys(names, 0)

    def forward(self, query_BQD: Tensor, n_visible_BQ: Tensor) -> Tensor:
        """Return the factor (B or 1, H, Q, 1), float32 even under autocast."""
        # a padded query may have no key
        n_BQ = n_visible_BQ.clamp(min=1) + 1
        with without_autocast(query_BQD.device):
            beta, gamma = self._beta_and_gamma(query_BQD)
            log_n_B1Q1 = n_BQ.to(beta.dtype).log()[:, None, :, None]
            return self.delta + beta * log_n_B1Q1.pow(gamma)

    def _beta_and_gamma(self, query_BQD: Tensor) -> tuple[Tensor, Tensor]:
        """Return β and γ, (H, 1, 1) or (B, H, Q, 1) each."""
        beta_H, gamma_H = full_precision(self.beta), full_precision(self.gamma)
        if self.beta_weight is None or self.gamma_weight is None:
            return beta_H[:, None, None], gamma_H[:, None, None]
        x_BQD = full_precision(query_BQD)
        beta_BQH = functional.linear(x_BQD, full_precision(self.beta_weight), beta_H)
        gamma_BQH = functional.linear(x_BQD, full_precision(self.gamma_weight), gamma_H)
        beta_BHQ1 = functional.softplus(beta_BQH).transpose(1, 2)[..., None]
        gamma_BHQ1 = 2 * torch.tanh(gamma_BQH).transpose(1, 2)[..., None]
        return beta_BHQ1, gamma_BHQ1

    def stats(self) -> dict[str, Tensor]:
        """Return β and γ per head, unless they depend on the query."""
        if self.beta_weight is not None:
            return {}
        return {"scale_beta": self.beta.detach(), "scale_gamma": self.gamma.detach()}
