"""Gates on the outputs of heads."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from headwise.attention.attention import HeadGate
from headwise.attention.place import Place, Site
from headwise.errors import refuse, require
from headwise.model.family import Model
from headwise.model.places import chosen_sites


class Gates:
    """Base class: creates the gate of each place and prepares the model."""

    def __call__(self, place: Place) -> HeadGate | None:
        """Return the gate of one place, or None for no gate."""
        raise NotImplementedError

    def check(self, sites: Sequence[Site]) -> None:
        """Raise ConfigError for settings that a model with these sites does not support."""

    def prepare(self, model: Model) -> None:
        """Prepare a complete model, before its optimizer is created."""


class NoGates(Gates):
    """No gates: every head is open."""

    def __call__(self, place: Place) -> None:
        """Return None."""
        return


class HardConcreteGate(HeadGate):
    """g = clip((ζ - γ)·s + γ, 0, 1) with s = σ((log u - log(1-u) + log a) / β), u ~ U(0, 1).

    The Hard Concrete distribution of Louizos et al. (2018) on heads, as in Voita et al. (2019),
    section 6. In training g is drawn once per head and batch, for all rows and positions. In
    evaluation a head is open (1) if P(g=1) >= P(g=0), else closed (0).

    Args:
        n_heads: heads of the place.
        gates: λ, β, γ, ζ and the initial log a.
    """

    def __init__(self, n_heads: int, gates: HardConcrete) -> None:
        super().__init__()
        self.penalty_weight, self.temperature = gates.penalty, gates.temperature
        self.low, self.high = gates.stretch
        self.lr_factor = gates.lr_factor
        # one-dimensional, hence without weight decay
        self.log_a = nn.Parameter(torch.full((n_heads,), float(gates.log_a)))

    @property
    def lr_factors(self) -> dict[nn.Parameter, float]:
        """Return parameter -> factor of its learning rate, for `build_optimizer`."""
        return {self.log_a: self.lr_factor}

    def p_open(self) -> Tensor:
        """Return P(g != 0) = σ(log a - β·log(-γ/ζ)) of every head, (H,)."""
        return torch.sigmoid(self.log_a - self.temperature * math.log(-self.low / self.high))

    def p_one(self) -> Tensor:
        """Return P(g = 1) = σ(log a - β·log((1-γ)/(ζ-1))) of every head, (H,)."""
        limit = math.log((1 - self.low) / (self.high - 1))
        return torch.sigmoid(self.log_a - self.temperature * limit)

    def open_heads(self) -> Tensor:
        """Return whether each head is open in evaluation, bool (H,)."""
        return self.p_one() >= 1 - self.p_open()

    def factors(self) -> Tensor:
        """Return g of every head (H,): drawn in training, 0 or 1 in evaluation."""
        if not self.training:
            return self.open_heads().to(self.log_a.dtype)
        uniform = torch.rand_like(self.log_a)  # in [0, 1); a 0 gives s = 0, not NaN
        noise = uniform.log() - torch.log1p(-uniform)
        concrete = torch.sigmoid((noise + self.log_a) / self.temperature)
        return ((self.high - self.low) * concrete + self.low).clamp(0, 1)

    def forward(self, context_BHQE: Tensor) -> Tensor:
        """Return the gated context of every head."""
        return context_BHQE * self.factors().to(context_BHQE.dtype)[:, None, None]

    def penalty(self) -> Tensor:
        """Return λ · Σ P(g != 0)."""
        return self.penalty_weight * self.p_open().sum()

    def stats(self) -> dict[str, Tensor]:
        """Return P(g != 0) of every head."""
        return {"gate_open": self.p_open().detach()}


@dataclass
class HardConcrete(Gates):
    """Learns which heads to close (Voita et al. 2019, section 6).

    Meant for fine-tuning: `init_from=RUN gates=hard_concrete`. Afterwards
    `headwise prune by=gates` removes the closed heads.

    Args:
        penalty: λ, in nats per head: λ · Σ P(g != 0) is added to the loss per token.
        sites: where heads have gates; None: everywhere.
        freeze: stacks whose weights are frozen: encoder, decoder, with their embeddings and
            modules that share these. Their gates are trained.
        temperature: β.
        stretch: γ < 0 and ζ > 1.
        log_a: initial log a of every head.
        lr_factor: factor on the learning rate of log a; above 1 for short fine-tuning.
    """

    penalty: float = 0.1
    sites: list[str] | None = None
    freeze: tuple[str, ...] = ()
    temperature: float = 0.33
    stretch: tuple[float, float] = (-0.1, 1.1)
    log_a: float = 2.0
    lr_factor: float = 1.0

    def __post_init__(self) -> None:
        fits = self.stretch[0] < 0 and self.stretch[1] > 1
        require(fits, "stretch", "a number below 0 and one above 1", self.stretch)
        require(0 <= self.penalty < math.inf, "penalty", "at least 0 and finite", self.penalty)
        for key in ("temperature", "lr_factor"):
            value = getattr(self, key)
            require(0 < value < math.inf, key, "above 0 and finite", value)
        require(math.isfinite(self.log_a), "log_a", "finite", self.log_a)

    def __call__(self, place: Place) -> HardConcreteGate | None:
        """Return the gate of one place; None if the site is not chosen or has no heads."""
        has_gate = self.sites is None or place.site in self.sites
        return HardConcreteGate(place.n_heads, self) if has_gate and place.n_heads else None

    def check(self, sites: Sequence[Site]) -> None:
        chosen_sites("gates.sites", self.sites, sites)
        sides = {site.side for site in sites}
        for side in self.freeze:
            if side not in sides:
                raise refuse("gates.freeze", side, sides)

    def prepare(self, model: Model) -> None:
        """Freeze the stacks of `freeze`, except for their gates."""
        for side in self.freeze:
            for module in model.side_modules(side):
                module.requires_grad_(False)
        for gate in head_gates(model):
            gate.requires_grad_(True)


def head_gates(model: nn.Module) -> Iterator[HeadGate]:
    """Yield every gate of a model."""
    return (module for module in model.modules() if isinstance(module, HeadGate))


def gate_penalty(model: nn.Module) -> Tensor | None:
    """Return the sum of the penalties of all gates, or None if there are none."""
    penalties = [gate.penalty() for gate in head_gates(model)]
    terms = [penalty for penalty in penalties if penalty is not None]
    return torch.stack(terms).sum() if terms else None
