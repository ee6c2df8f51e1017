"""Definitions shared by all kernels: the map, its α, visible keys, bias and dropout.

Axes: B batch, H heads, Q and K numbers of queries and keys.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import torch
from torch import Tensor
from torch.nn.functional import pad

ALPHA_SLACK = 1e-6  # 1.01 + 0.99 · 1 in float32 may round to just above 2
BETA_MIN = 1e-7  # equals α = 1 to within 3e-7 in p; every formula is finite
N_DRAWS = 1 << 32  # number of equally likely draws per weight


class Power(IntEnum):
    """How x is raised to 1/β; numbered as in csrc/rows.h."""

    EXP = 0  # softmax, β = 0
    ANY = 1  # by logarithm and exponential, β in [0, 1] per row
    SQUARE = 2  # α = 1.5
    LINEAR = 3  # α = 2


ALPHAS = {Power.EXP: 1.0, Power.SQUARE: 1.5, Power.LINEAR: 2.0}
POWERS = {alpha: power for power, alpha in ALPHAS.items()}  # α -> specialised kernel


@dataclass(frozen=True)
class Visible:
    """Which keys a row may attend to; defaults restrict nothing.

    Attributes:
        mask: bool, broadcastable to the scores, True = may attend.
        lengths_B: int64, number of keys before padding.
        is_causal: whether keys after the position of the query are excluded.
        query_offset: position of the first query.
    """

    mask: Tensor | None = None
    lengths_B: Tensor | None = None
    is_causal: bool = False
    query_offset: int = 0


@dataclass(frozen=True)
class Distances:
    """A bias on scores by the distance of query and key: -slope · |i - j| (ALiBi).

    Attributes:
        slopes_H: float32, one per head; 0 for no bias.
        n_prefix: number of positions at the start that get no bias.
    """

    slopes_H: Tensor
    n_prefix: int = 0

    def between(self, queries_Q: Tensor, keys_K: Tensor) -> Tensor:
        """Return |i - j| in float32 for positions that broadcast; 0 if either is in the prefix."""
        distance = (queries_Q.float() - keys_K.float()).abs_()
        if not self.n_prefix:
            return distance
        return distance * ((queries_Q >= self.n_prefix) & (keys_K >= self.n_prefix))

    def biased(self, scores_BHQK: Tensor, first: int, keys: Tensor | None = None) -> Tensor:
        """Return scores with the bias, in at least float32.

        Args:
            scores_BHQK: of queries from position `first` on.
            keys: positions, broadcastable to the scores; None: from 0 on.
        """
        n_queries, n_keys = scores_BHQK.shape[2:]
        if keys is None:
            keys = torch.arange(n_keys, device=scores_BHQK.device)
        queries_Q = torch.arange(first, first + n_queries, device=scores_BHQK.device)
        distance = self.between(queries_Q[:, None], keys)
        return torch.addcmul(scores_BHQK, self.slopes_H[:, None, None], distance, value=-1)


def slopes_of(distances: Distances | None) -> tuple[Tensor | None, int]:
    """Return slopes and prefix as arguments of operators."""
    return (None, 0) if distances is None else (distances.slopes_H, distances.n_prefix)


def of_one_width(*heads: Tensor) -> list[Tensor]:
    """Pad queries, keys and values (..., E) with zeros to one width, which changes no scores."""
    width = max(states.shape[-1] for states in heads)
    missing = [width - states.shape[-1] for states in heads]
    return [pad(x, (0, n)) if n else x for x, n in zip(heads, missing, strict=True)]


@dataclass(frozen=True)
class Draws:
    """Dropout by a counter-based generator, so that draws can be repeated.

    Attributes:
        seed: determines the draws, together with the indices of row and key, or of the entry.
        rate: share of weights or entries to drop, with a resolution of 2^-32.
        first_row: index of the first row.
    """

    seed: int
    rate: float
    first_row: int = 0

    @property
    def n_kept(self) -> int:
        """How many of the `N_DRAWS` draws keep a weight: at least 1, at most all but 1."""
        return min(max(round((1 - self.rate) * N_DRAWS), 1), N_DRAWS - 1)


EVERYTHING = Visible()


def check_alpha(alpha: Tensor | None) -> None:
    """Check the range of α on CPU, where reading values is cheap.

    Raises:
        ValueError: α is outside [1, 2], on CPU.
    """
    if alpha is None or alpha.device.type != "cpu" or not alpha.numel():
        return
    low, high = (float(bound) for bound in alpha.detach().aminmax())
    # NaN passes: it leads to a NaN loss, which the trainer reports
    if low < 1 - ALPHA_SLACK or high > 2 + ALPHA_SLACK:
        raise ValueError(f"alpha must be in [1, 2], got values from {low} to {high}")


def beta_of(alpha: Tensor | None) -> Tensor | None:
    """Return α - 1, clamped to where every formula is finite."""
    return None if alpha is None else (alpha - 1.0).clamp_(BETA_MIN, 1.0)
