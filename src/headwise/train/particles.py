"""Stein variational gradients: particles that follow a smoothed gradient and repel each other.

Axes: n independent sets, M particles per set, P numbers per particle.

With particles T, gradients G of the loss and h the squared bandwidth (An et al. 2020, as in the
authors' code):

    k_ij = exp(-|T_i - T_j|^2 / (2 h))
    R_i = sum_j k_ij (T_i - T_j) / h
    phi_i = (sum_j k_ij G_j - weight * R_i) / M

A step along -phi_i averages the gradients of all particles, weighted by proximity, and moves T_i
away from the others.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from headwise.attention.attention import Attention, MultiHeadAttention

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
