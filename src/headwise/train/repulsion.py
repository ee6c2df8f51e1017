"""Repulsion between heads: a transform of the gradients before the optimizer's step.

An et al. (2020) treat the heads of an attention as particles that sample a posterior over its
parameters. Particle-optimisation sampling smooths the gradients over the heads and repels the
heads; its result replaces the gradients. The loss and the model are unchanged.

`step_size` scales the replaced gradients only. Adam divides by the size of the gradients, so it
cancels there except for the optimizer's eps. It does not cancel with SGD, with a weight decay that
is added to the gradients (as in `torch.optim.Adam`, not AdamW), or with `trainer.clip_norm`, whose
norm then hardly depends on the replaced gradients.

The gradients are those of Stein variational gradient descent. With particles T, gradients G of the
loss and h the squared bandwidth (An et al. 2020, as in the authors' code):

    k_ij = exp(-|T_i - T_j|^2 / (2 h))
    R_i = sum_j k_ij (T_i - T_j) / h
    phi_i = (sum_j k_ij G_j - weight * R_i) / M

A step along -phi_i averages the gradients of all particles, weighted by proximity, and moves T_i
away from the others.

Axes: n independent sets, M particles per set, P numbers per particle.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from headwise.attention.attention import Attention, MultiHeadAttention
from headwise.attention.place import Site
from headwise.errors import ConfigError, refuse, require
from headwise.model.family import Model
from headwise.model.places import chosen_sites
from headwise.seed import derived_seed

PROJECTIONS = ("query", "key", "value")


def head_projections(attention: Attention) -> Iterator[tuple[str, nn.Parameter, int]]:
    """Name, weight (H * E, D) and number of heads of each projection into heads.

    Empty for other attentions, such as one without heads after pruning.
    """
    if not isinstance(attention, MultiHeadAttention):
        return
    for name in PROJECTIONS:
        yield name, getattr(attention, name).weight, attention.place.n_heads


def squared_distances(points: Tensor) -> Tensor:
    """Squared Euclidean distances (…, M, M) between the rows of (…, M, P).

    Computed from differences: |a|^2 + |b|^2 - 2<a, b> loses all digits where points are near.
    """
    return torch.cdist(points, points, compute_mode="donot_use_mm_for_euclid_dist").square()


def stein_gradient(
    particles_nMP: Tensor, gradients_nMP: Tensor, weight: float, bandwidth: float | None = None
) -> Tensor:
    """The direction phi (n, M, P) of the module's docstring.

    Args:
        particles_nMP: T.
        gradients_nMP: G.
        weight: of the repulsive term.
        bandwidth: h; None: `median_bandwidth` of each set.

    If h is the median and no larger than rounding errors, most particles are equal: their gradients
    are averaged, and the repulsion is zero. A single particle keeps its gradient.
    """
    squared_nMM = squared_distances(particles_nMP)
    if bandwidth is None:
        bandwidth_n11 = median_bandwidth(squared_nMM)[:, None, None]
    else:
        bandwidth_n11 = squared_nMM.new_full((len(squared_nMM), 1, 1), bandwidth)
    rounding_n11 = _rounding(particles_nMP)[:, None, None]
    strength_n11 = torch.where(bandwidth_n11 > rounding_n11, weight / bandwidth_n11, 0.0)
    kernel_nMM = torch.exp(-squared_nMM / (2 * torch.maximum(bandwidth_n11, rounding_n11)))
    # R is invariant to a common shift; positions relative to one particle keep the precision of
    # differences between near particles
    relative_nMP = particles_nMP - particles_nMP[:, :1]
    repulsion_nMP = kernel_nMM.sum(-1, keepdim=True) * relative_nMP - kernel_nMM @ relative_nMP
    phi_nMP = kernel_nMM @ gradients_nMP - strength_n11 * repulsion_nMP
    return phi_nMP / particles_nMP.shape[1]


def median_bandwidth(squared_nMM: Tensor) -> Tensor:
    """Median / (2 log(M + 1)) of each set, (n,): equal distances give k_ij = 1 / (M + 1).

    The median is over all M * M squared distances with the zeros of the diagonal, and is the lower
    middle value if their number is even, as in the authors' code. With two particles, where that
    is 0, it is the squared distance between them.
    """
    n_particles = squared_nMM.shape[-1]
    n_entries = n_particles**2
    middle = min(max((n_entries - 1) // 2, n_particles), n_entries - 1)
    median_n = squared_nMM.flatten(1).sort().values[:, middle]
    return median_n / (2 * math.log(n_particles + 1))


def median_magnitude(gradients_nMP: Tensor) -> Tensor:
    """Median of |G| of each set, (n,); the lower middle one of an even number of values."""
    # one set at a time: on a GPU the median along an axis is not deterministic
    return torch.stack([gradients.abs().median() for gradients in gradients_nMP])


def _rounding(particles_nMP: Tensor) -> Tensor:
    """Mean squared norm of the particles of each set times the squared machine epsilon, (n,)."""
    precision = torch.finfo(particles_nMP.dtype)
    squared_n = particles_nMP.square().sum(-1).mean(-1)
    return (precision.eps**2 * squared_n).clamp(min=precision.tiny)


KERNELS = ("rbf",)
NOISE_SCALES = ("median_gradient", "one")


class Repulsion:
    """Base class: replaces the gradients of the heads' projections (An et al. 2020)."""

    def check(self, sites: Sequence[Site]) -> None:
        """Raise `ConfigError` for settings that do not fit a model with these sites."""

    def check_model(self, model: Model) -> None:
        """Raise `ConfigError` if no gradient of a model is replaced, as all weights are frozen."""

    def __call__(self, model: Model, update: int, seed: int) -> None:
        """Overwrite gradients in place.

        Called once per update, after the sum over batches and ranks and before clipping. The result
        is the same on every rank: noise depends on (seed, update).
        """
        raise NotImplementedError


class NoRepulsion(Repulsion):
    """No repulsion: the gradients are unchanged."""

    def __call__(self, model: Model, update: int, seed: int) -> None:
        """Do nothing."""


@dataclass
class SVGD(Repulsion):
    """Stein variational gradient descent over heads (An et al. 2020).

    In each attention the query, key and value weights (H * E, D) are separate sets of M particles:
    the rows of a head, flattened. Their gradients G become

        G'_i = step_size * (sum_j k_ij G_j - weight * R_i) / M

    with the kernel k and the repulsion R of `headwise.train.repulsion`. Biases, the output
    projection and everything outside attention keep their gradients. A single head (after
    pruning) gets step_size * G.

    Args:
        step_size: factor on the replaced gradients; see the module's docstring.
        weight: of the repulsive term (the paper's alpha).
        kernel: rbf, the only one of the paper.
        bandwidth: "median" computes h from the distances between the heads at each update; a
            number is h itself, a squared distance.
        sites: sites to transform; None: all.
        projections: weights to transform, of query, key and value.
        layers: numbers of the layers to transform, from 1; None: all. Each must exist at one of
            the sites.
    """

    step_size: float = 0.01
    weight: float = 0.01
    kernel: str = "rbf"
    bandwidth: float | str = "median"
    sites: list[str] | None = None
    projections: list[str] | tuple[str, ...] = PROJECTIONS
    layers: list[int] | None = None

    def __post_init__(self) -> None:
        finite = "above 0 and finite"
        require(0 < self.step_size < math.inf, "step_size", finite, self.step_size)
        require(0 <= self.weight < math.inf, "weight", "at least 0 and finite", self.weight)
        if self.kernel not in KERNELS:
            raise refuse("kernel", self.kernel, KERNELS)
        if not isinstance(self.bandwidth, str):
            require(0 < self.bandwidth < math.inf, "bandwidth", finite, self.bandwidth)
        elif self.bandwidth != "median":
            raise refuse("bandwidth", self.bandwidth, ["median", "a number"])
        allowed = f"a list of some of {', '.join(PROJECTIONS)}"
        require(len(self.projections) > 0, "projections", allowed, self.projections)
        for name in self.projections:
            if name not in PROJECTIONS:
                raise refuse("projections", name, PROJECTIONS)
        counted = self.layers is None or (len(self.layers) > 0 and min(self.layers) >= 1)
        require(counted, "layers", "null (all) or a list of numbers from 1", self.layers)

    def check(self, sites: Sequence[Site]) -> None:
        """Raise `ConfigError` for sites that do not exist, and layers that no chosen site has."""
        chosen = chosen_sites("repulsion.sites", self.sites, sites)
        depths = {site.name: site.n_layers for site in sites if site.name in chosen}
        deepest = max(depths.values())
        for layer in self.layers or []:
            if layer > deepest:
                layers = ", ".join(f"{depth} at {site}" for site, depth in depths.items())
                raise ConfigError(
                    f"repulsion.layers must be numbers of layers that the model has ({layers}), "
                    f"got {layer}"
                )

    def check_model(self, model: Model) -> None:
        chosen = [weight for _, weight in self._chosen(model)]
        if chosen and not any(weight.requires_grad for weight in chosen):
            raise ConfigError(
                "repulsion chooses only frozen weights: freeze fewer (task.frozen_layers, "
                "gates.freeze), or set repulsion=none"
            )

    @torch.no_grad()
    def __call__(self, model: Model, update: int, seed: int) -> None:
        groups = self._weights(model)
        generator = torch.Generator(next(model.parameters()).device)
        generator.manual_seed(derived_seed(seed, update, "repulsion"))
        for (n_heads, _), weights in groups.items():
            gradients = [weight.grad for weight in weights if weight.grad is not None]
            particles_nMP = torch.stack([weight.view(n_heads, -1) for weight in weights])
            gradients_nMP = torch.stack([gradient.reshape(n_heads, -1) for gradient in gradients])
            direction_nMP = self.direction(particles_nMP, gradients_nMP, generator)
            replaced_nMP = direction_nMP.mul_(self.step_size)
            for gradient, replaced_MP in zip(gradients, replaced_nMP, strict=True):
                gradient.copy_(replaced_MP.view_as(gradient))

    def direction(
        self, particles_nMP: Tensor, gradients_nMP: Tensor, generator: torch.Generator
    ) -> Tensor:
        """The new gradients (n, M, P), without the factor `step_size`.

        Args:
            particles_nMP: n weights of M heads.
            gradients_nMP: of the loss.
            generator: for noise.
        """
        bandwidth = None if isinstance(self.bandwidth, str) else self.bandwidth
        return stein_gradient(particles_nMP, gradients_nMP, self.weight, bandwidth)

    def _weights(self, model: Model) -> dict[tuple[int, torch.Size], list[nn.Parameter]]:
        """Weights to transform that have a gradient, by number of heads and shape."""
        groups: dict[tuple[int, torch.Size], list[nn.Parameter]] = {}
        for n_heads, weight in self._chosen(model):
            if weight.grad is not None:
                groups.setdefault((n_heads, weight.shape), []).append(weight)
        return groups

    def _chosen(self, model: Model) -> Iterator[tuple[int, nn.Parameter]]:
        """Yield the number of heads and the weight of each projection to transform."""
        for site, layer, attention in model.attentions():
            if self.sites is not None and site not in self.sites:
                continue
            if self.layers is not None and layer not in self.layers:
                continue
            for name, weight, n_heads in head_projections(attention):
                if name in self.projections:
                    yield n_heads, weight


@dataclass
class SPOS(SVGD):
    """Stochastic particle-optimisation sampling over heads (An et al. 2020).

    As `SVGD`, plus a fraction of each head's gradient and noise against the collapse of particles:

        G'_i = step_size * (phi_i + beta * G_i - sqrt(2 * beta / step_size) * N(0, I) * scale)

    where phi is SVGD's direction.

    Args:
        beta: the paper's 1 / beta, a temperature; no value is published. The default gives noise
            of sqrt(2) times its scale.
        noise_scale: "median_gradient" multiplies the noise by the median of |G| over the weight,
            as the authors' code does; "one" does not, as in the paper: Adam, which is invariant
            to the scale of gradients, then follows noise alone.
        step_size, weight, kernel, bandwidth, sites, projections, layers: as in `SVGD`.
    """

    beta: float = 0.01
    noise_scale: str = "median_gradient"

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 <= self.beta < math.inf, "beta", "at least 0 and finite", self.beta)
        if self.noise_scale not in NOISE_SCALES:
            raise refuse("noise_scale", self.noise_scale, NOISE_SCALES)

    def direction(
        self, particles_nMP: Tensor, gradients_nMP: Tensor, generator: torch.Generator
    ) -> Tensor:
        """See `SVGD.direction`; every rank and a resumed run draw the same noise."""
        direction_nMP = super().direction(particles_nMP, gradients_nMP, generator)
        noise_nMP = torch.empty_like(direction_nMP).normal_(generator=generator)
        size = math.sqrt(2 * self.beta / self.step_size)
        if self.noise_scale == "median_gradient":
            noise_nMP *= median_magnitude(gradients_nMP)[:, None, None]
        return direction_nMP.add_(gradients_nMP, alpha=self.beta).sub_(noise_nMP, alpha=size)
