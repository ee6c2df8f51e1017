"""What every kernel of the family computes: the map, its α, which keys, and dropout.

Letters: B batch, H heads, Q and K numbers of queries and keys.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import torch
from torch import Tensor

ALPHA_SLACK = 1e-6  # 1.01 + 0.99 · 1 in float32 may round to just above 2
BETA_MIN = 1e-7  # α = 1 to within 3e-7 in p, and every formula stays finite
DRAWN = 1 << 32  # equally likely numbers that decide on a weight


class Power(IntEnum):
    """How x is raised to 1/β; numbered as in csrc/rows.h."""

    EXP = 0  # softmax, β = 0
    ANY = 1  # logarithm and exponential, β in [0, 1] of each row
    SQUARE = 2  # α = 1.5
    LINEAR = 3  # α = 2


ALPHAS = {Power.EXP: 1.0, Power.SQUARE: 1.5, Power.LINEAR: 2.0}
POWERS = {alpha: power for power, alpha in ALPHAS.items()}  # the α with a way of their own


@dataclass(frozen=True)
class Visible:
    """Which keys a row may see; what is left out restricts nothing.

    Attributes:
        mask: bool, broadcastable to the scores, True = may attend.
        lengths_B: int64, keys before padding begins.
        is_causal: no key behind the position of the query.
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
        slopes_H: float32, one a head; 0 for none.
        n_prefix: so many positions in front of all are at no distance from anything.
    """

    slopes_H: Tensor
    n_prefix: int = 0

    def between(self, queries_Q: Tensor, keys_K: Tensor) -> Tensor:
        """|i - j| in float32 for positions that broadcast; 0 where one of them is in the prefix."""
        distance = (queries_Q.float() - keys_K.float()).abs_()
        if not self.n_prefix:
            return distance
        return distance * ((queries_Q >= self.n_prefix) & (keys_K >= self.n_prefix))

    def biased(self, scores_BHQK: Tensor, first: int, keys: Tensor | None = None) -> Tensor:
        """Scores with their bias, at least float32.

        Args:
            scores_BHQK: of queries from position `first` on.
            keys: positions, which broadcast to the scores; None: from 0 on.
        """
        n_queries, n_keys = scores_BHQK.shape[2:]
        if keys is None:
            keys = torch.arange(n_keys, device=scores_BHQK.device)
        queries_Q = torch.arange(first, first + n_queries, device=scores_BHQK.device)
        distance = self.between(queries_Q[:, None], keys)
        return torch.addcmul(scores_BHQK, self.slopes_H[:, None, None], distance, value=-1)


def slopes_of(distances: Distances | None) -> tuple[Tensor | None, int]:
    """The slopes and the prefix, as operators take them."""
    return (None, 0) if distances is None else (distances.slopes_H, distances.n_prefix)


@dataclass(frozen=True)
class Draws:
    """Dropout by numbers that anyone can draw again.

    Attributes:
        seed: decides them, together with the number of the row and the key, or of the entry.
        rate: share of weights or entries to drop; kept to 2^-32.
        first_row: number of the first row.
    """

    seed: int
    rate: float
    first_row: int = 0

    @property
    def n_kept(self) -> int:
        """Of `DRAWN` draws, how many keep a weight: never none, never all."""
        return min(max(round((1 - self.rate) * DRAWN), 1), DRAWN - 1)


EVERYTHING = Visible()


def check_alpha(alpha: Tensor | None) -> None:
    """Look at the range of α where looking costs nothing.

    Raises:
        ValueError: α outside of [1, 2], on a CPU.
    """
    if alpha is None or alpha.device.type != "cpu" or not alpha.numel():
        return
    least, most = (float(bound) for bound in alpha.aminmax())
    # NaN passes: it shows up as a NaN loss, which the caller knows how to report
    if least < 1 - ALPHA_SLACK or most > 2 + ALPHA_SLACK:
        raise ValueError(f"alpha must be in [1, 2], got values from {least} to {most}")


def beta_of(alpha: Tensor | None) -> Tensor | None:
    """α - 1, held to where every formula stays finite."""
    return None if alpha is None else (alpha - 1.0).clamp_(BETA_MIN, 1.0)
