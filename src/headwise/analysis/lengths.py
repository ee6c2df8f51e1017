"""Heads by the length of the input: do they still find the key that they need among many others?

Axes: H heads, Q queries, K keys.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from headwise.analysis.diversity import entropies
from headwise.analysis.observe import Observation


def by_length(
    observed: Iterable[tuple[int, Observation, Sequence[int]]],
) -> list[dict[str, Any]]:
    """Return one row per site, layer, head and length, with means over queries.

    Args:
        observed: length of an input, the attention on it of some queries, and the number of the key
            that each query needs; -1: none is known; empty: for no query.
    """
    # (site, layer, length) -> numbers of heads, and values of queries by name: (H, n) each
    places: dict[tuple[str, int, int], tuple[Sequence[int], dict[str, list[Tensor]]]] = {}
    for length, obs, keys in observed:
        used_HQ = (obs.weights_BHQK[0] != 0).sum(-1)
        of_input = {
            "used_keys": used_HQ,
            "visible_keys": obs.allowed_BHQK[0].sum(-1).expand_as(used_HQ),
            "entropy": entropies(obs.shares_BHQK)[0],
        }
        keys_Q = torch.tensor(keys, dtype=torch.long)
        queries_R = (keys_Q >= 0).nonzero()[:, 0]
        if len(queries_R):
            of_input["relevant_weight"] = obs.shares_BHQK[0][:, queries_R, keys_Q[queries_R]]
        _, values = places.setdefault((obs.site, obs.layer, length), (obs.head_numbers, {}))
        for name, value in of_input.items():
            values.setdefault(name, []).append(value.double().cpu())
    rows = []
    for (site, layer, length), (heads, values) in places.items():
        joined = {name: torch.cat(parts, 1) for name, parts in values.items()}
        n_queries = joined["entropy"].shape[1]
        for index, head in enumerate(heads):
            place = {"site": site, "layer": layer, "head": head, "length": length}
            means = {name: float(value_HQ.mean(1)[index]) for name, value_HQ in joined.items()}
            rows.append({**place, **means, "n_queries": n_queries})
    return rows
