"""Density: the share of visible keys that a query uses (Correia et al. 2019, section 5.1).

A key is used if its weight is not exactly 0. All real tokens count as queries and keys, the
end-of-sentence token included. The first position of the decoder has one visible key, so its
density is always 1.

Axes: H heads, Q queries, K keys, N bins.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from headwise.analysis.observe import Observation
from headwise.analysis.tables import HEAD_KEY

N_BINS = 20  # of equal width, below 1; one more bin counts densities of exactly 1


class Densities:
    """Histograms of the density of every head over queries."""

    def __init__(self) -> None:
        # (site, layer) -> numbers of queries (H, N), NaN at invalid heads
        self._counts: dict[tuple[str, int], Tensor] = {}
        self._numbers: dict[tuple[str, int], tuple[int, ...]] = {}

    def add(self, obs: Observation) -> None:
        """Add a block of queries."""
        place, n_heads = (obs.site, obs.layer), len(obs.head_numbers)
        used_BHQ, visible_BHQ = (obs.weights_BHQK != 0).sum(-1), obs.allowed_BHQK.sum(-1)
        # integers: rounding must not move a query to another bin
        bins_BHQ = (used_BHQ * N_BINS).div(visible_BHQ.clamp(min=1), rounding_mode="floor")
        heads_H1 = torch.arange(n_heads, device=bins_BHQ.device)[:, None]
        flat = (heads_H1 * (N_BINS + 1) + bins_BHQ)[visible_BHQ > 0]
        counts_HN = flat.bincount(minlength=n_heads * (N_BINS + 1)).view(n_heads, -1)
        counts_HN = counts_HN.double().where(obs.is_valid_H1, torch.nan)
        self._counts[place] = self._counts.get(place, 0) + counts_HN
        self._numbers[place] = obs.head_numbers

    def histograms(self) -> list[dict[str, Any]]:
        """Return one row per head and bin, low <= density < high; the last bin is [1, 1]."""
        edges = [*(index / N_BINS for index in range(N_BINS + 1)), 1.0]
        return [
            {
                **dict(zip(HEAD_KEY, (*place, number), strict=True)),
                "low": edges[index],
                "high": edges[index + 1],
                "n_queries": int(n_queries),
            }
            for place, counts_HN in self._counts.items()
            for number, counts in zip(self._numbers[place], counts_HN.tolist(), strict=True)
            for index, n_queries in enumerate(counts)
            if not math.isnan(n_queries)
        ]
