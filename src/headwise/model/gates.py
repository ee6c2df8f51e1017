"""Gates on the outputs of heads."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from headwise.attention.heads import HeadGate
from headwise.attention.place import Place, Site
from headwise.errors import refuse, require
from headwise.model.family import Model
from headwise.model.places import chosen_sites


class Gates:
    """Makes the gate of each place, and says what else gates ask of the model."""

    def __call__(self, place: Place) -> HeadGate | None:
        """The gate of one place, or None for an open one."""
        raise NotImplementedError

    def check(self, sites: Sequence[Site]) -> None:
        """Refuse choices for which a model with these sites has no place, before it is built."""

    def prepare(self, model: Model) -> None:
        """Called with the whole model once it is made, before its optimizer is."""


class NoGates(Gates):
    """Every head is open."""

    def __call__(self, place: Place) -> None:
        """None."""
        return


class HardConcreteGate(HeadGate):
    """g = clip((ζ - γ)·s + γ, 0, 1) with s = σ((log u - log(1-u) + log a) / β), u ~ U(0, 1).

    The Hard Concrete distribution of Louizos et al. (2018) on heads, as in Voita et al. (2019),
    section 6: in training one draw a head and batch, the same for all rows and positions.
    Otherwise a head is open (1) or closed (0) by which of P(g=1) and P(g=0) is larger.

    Args:
        n_heads: heads of the place.
        gates: λ, β, γ and ζ, and where log a of every head starts.
    """

    def __init__(self, n_heads: int, gates: HardConcrete) -> None:
        super().__init__()
        self.price, self.temperature = gates.penalty, gates.temperature
        self.low, self.high = gates.stretch
        self.rate = gates.rate
        # one-dimensional, hence outside of weight decay
        self.log_a = nn.Parameter(torch.full((n_heads,), float(gates.log_a)))

    def p_open(self) -> Tensor:
        """P(g != 0) = σ(log a - β·log(-γ/ζ)) of every head, (H,)."""
        return torch.sigmoid(self.log_a - self.temperature * math.log(-self.low / self.high))

    def p_whole(self) -> Tensor:
        """P(g = 1) = σ(log a - β·log((1-γ)/(ζ-1))) of every head, (H,)."""
        reach = math.log((1 - self.low) / (self.high - 1))
        return torch.sigmoid(self.log_a - self.temperature * reach)

    def open_heads(self) -> Tensor:
        """Whether each head is open when the model is used, bool (H,)."""
        return self.p_whole() >= 1 - self.p_open()

    def factors(self) -> Tensor:
        """The g of every head, (H,): drawn in training, else 0 or 1."""
        if not self.training:
            return self.open_heads().to(self.log_a.dtype)
        uniform = torch.rand_like(self.log_a)  # below 1; a 0 makes s = 0, not NaN
        noise = uniform.log() - torch.log1p(-uniform)
        concrete = torch.sigmoid((noise + self.log_a) / self.temperature)
        return ((self.high - self.low) * concrete + self.low).clamp(0, 1)

    def forward(self, context_BHQE: Tensor) -> Tensor:
        """The context of every head, gated."""
        return context_BHQE * self.factors().to(context_BHQE.dtype)[:, None, None]

    def penalty(self) -> Tensor:
        """λ · Σ P(g != 0)."""
        return self.price * self.p_open().sum()

    def stats(self) -> dict[str, Tensor]:
        """P(g != 0) of every head."""
        return {"gate_open": self.p_open().detach()}


class HardConcrete(Gates):
    """Learns which heads can be closed for good (Voita et al. 2019, section 6).

    Meant for fine-tuning: `init_from=RUN gates=hard_concrete`. Afterwards
    `headwise prune by=gates` removes what was closed.

    Args:
        penalty: λ, in nats a head: the loss of a token gains λ · Σ P(g != 0).
        sites: where heads have gates; None: everywhere.
        freeze: stacks whose weights stay as they are: encoder, decoder, with their embeddings and
            whatever shares these. Gates in them are learned all the same.
        temperature: β.
        stretch: γ < 0 and ζ > 1.
        log_a: where log a of every head starts.
        rate: factor on the learning rate of log a; a short fine-tuning wants it above 1.
    """

    def __init__(
        self,
        penalty: float = 0.1,
        sites: list[str] | None = None,
        freeze: list[str] | None = None,
        temperature: float = 0.33,
        stretch: list[float] | None = None,
        log_a: float = 2.0,
        rate: float = 1.0,
    ) -> None:
        low, high = stretch if stretch is not None and len(stretch) == 2 else (-0.1, 1.1)
        fits = stretch is None or (len(stretch) == 2 and low < 0 and high > 1)
        require(fits, "stretch", "a number below 0 and one above 1", stretch)
        require(0 <= penalty < math.inf, "penalty", "a number from 0", penalty)
        require(0 < temperature < math.inf, "temperature", "a number above 0", temperature)
        require(math.isfinite(log_a), "log_a", "a finite number", log_a)
        require(0 < rate < math.inf, "rate", "a number above 0", rate)
        self.sites, self.freeze = sites, freeze or []
        self.penalty, self.temperature = penalty, temperature
        self.stretch = (float(low), float(high))
        self.log_a, self.rate = log_a, rate

    def __call__(self, place: Place) -> HardConcreteGate | None:
        """The gate of one place; None where none was asked for, or there are no heads."""
        is_chosen = self.sites is None or place.site in self.sites
        return HardConcreteGate(place.n_heads, self) if is_chosen and place.n_heads else None

    def check(self, sites: Sequence[Site]) -> None:
        """See `Gates.check`."""
        chosen_sites("gates.sites", self.sites, sites)
        sides = {site.side for site in sites}
        for side in self.freeze:
            if side not in sides:
                raise refuse("gates.freeze", side, sides)

    def prepare(self, model: Model) -> None:
        """Freeze what is to stay as it is."""
        for side in self.freeze:
            for module in model.of_side(side):
                module.requires_grad_(False)
        for gate in head_gates(model):
            gate.requires_grad_(True)


def head_gates(model: nn.Module) -> Iterator[HeadGate]:
    """Every gate of a model."""
    return (module for module in model.modules() if isinstance(module, HeadGate))


def gate_penalty(model: nn.Module) -> Tensor | None:
    """Sum of the penalties of all gates, or None without any."""
    penalties = [gate.penalty() for gate in head_gates(model)]
    terms = [penalty for penalty in penalties if penalty is not None]
    return torch.stack(terms).sum() if terms else None
