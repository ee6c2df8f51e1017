"""Heads by the length of the input: do they still find the key that they need among many others?

Axes: H heads, Q queries, K keys.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from headwise.analysis.diversity import entropies
from headwise.analysis.observe import Observation


class ByLength:
    """Means of every head over queries, by length, site and layer."""

    def __init__(self) -> None:
        # (site, layer, length) -> numbers of heads, and values of queries by name: (H, n) each
        self._values: dict[tuple[str, int, int], tuple[Sequence[int], dict[str, list[Tensor]]]] = {}

    def add(
        self, length: int, observed: Sequence[Observation], relevant: Mapping[str, Sequence[int]]
    ) -> None:
        """Add the attention on one input.

        Args:
            length: of the input.
            observed: of some queries, the same at all sites that `relevant` names.
            relevant: site -> number of the key that each query needs; -1: none is known.
        """
        for obs in observed:
            shares_HQK, allowed_HQK = obs.shares_BHQK[0], obs.allowed_BHQK[0]
            used_HQ = (obs.weights_BHQK[0] != 0).sum(-1)
            values = {
                "used_keys": used_HQ,
                "visible_keys": allowed_HQK.sum(-1).expand_as(used_HQ),
                "entropy": entropies(obs.shares_BHQK)[0],
            }
            keys_Q = torch.tensor(relevant.get(obs.site, ()), dtype=torch.long)
            queries_R = (keys_Q >= 0).nonzero()[:, 0]
            if len(queries_R):
                values["relevant_weight"] = shares_HQK[:, queries_R, keys_Q[queries_R]]
            place = obs.site, obs.layer, length
            _, of_place = self._values.setdefault(place, (obs.head_numbers, {}))
            for name, value in values.items():
                of_place.setdefault(name, []).append(value.double().cpu())

    def rows(self) -> list[dict[str, Any]]:
        """Return one row per site, layer, head and length, with means over queries."""
        rows = []
        for (site, layer, length), (heads, values) in self._values.items():
            means = {name: torch.cat(parts, 1).mean(1) for name, parts in values.items()}
            n_queries = sum(part.shape[1] for part in values["entropy"])
            rows += [
                {
                    "site": site, "layer": layer, "head": head, "length": length,
                    **{name: float(mean_H[index]) for name, mean_H in means.items()},
                    "n_queries": n_queries,
                }
                for index, head in enumerate(heads)
            ]  # fmt: skip
        return rows
