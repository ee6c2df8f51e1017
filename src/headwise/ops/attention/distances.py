"""A bias on scores by the distance of query and key.

Axes: B batch, H heads, Q and K numbers of queries and keys.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


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
