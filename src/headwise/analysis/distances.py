"""How far apart the heads of a layer stand in the space of their projections.

Letters: M heads, E head width, D model width, P = E * D numbers of one head's projection.

Each of a layer's query, key and value projections is taken by itself, as M points: head i is its
E rows of the weight (H * E, D), flattened.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from headwise.analysis.collect import HeadTable
from headwise.attention.base import Attention
from headwise.attention.heads import MultiHeadAttention

if TYPE_CHECKING:
    from headwise.model.transformer import Transformer

PROJECTIONS = ("query", "key", "value")


def head_projections(attention: Attention) -> Iterator[tuple[str, nn.Parameter, int]]:
    """Name, weight (H * E, D) and number of heads of each projection into heads.

    An attention that is no `MultiHeadAttention`, such as one that lost all its heads, has none.
    """
    if not isinstance(attention, MultiHeadAttention):
        return
    for name in PROJECTIONS:
        yield name, getattr(attention, name).weight, attention.place.n_heads


def squared_distances(points: Tensor) -> Tensor:
    """Squared Euclidean distances (…, M, M) between the rows of (…, M, P).

    Taken from differences: |a|^2 + |b|^2 - 2<a, b> loses all digits where points are near.
    """
    return torch.cdist(points, points, compute_mode="donot_use_mm_for_euclid_dist").square()


def projection_distances(model: Transformer) -> dict[str, HeadTable]:
    """Mean Euclidean distance of each head to the others of its layer, by projection.

    Returns:
        {"query_distance": site -> layers -> heads, "key_distance", "value_distance": the same}.
        A layer of fewer than two heads, or without projections into heads, is an empty list; a
        site of such layers alone is left out.
    """
    tables: dict[str, HeadTable] = {f"{name}_distance": {} for name in PROJECTIONS}
    for site, _, attention in model.attentions():
        found = {name: (weight, n) for name, weight, n in head_projections(attention)}
        for name in PROJECTIONS:
            values = _mean_distances(*found[name]) if name in found else []
            tables[f"{name}_distance"].setdefault(site, []).append(values)
    return {
        name: {site: layers for site, layers in table.items() if any(layers)}
        for name, table in tables.items()
    }


def _mean_distances(weight: Tensor, n_heads: int) -> list[float]:
    if n_heads < 2:
        return []
    distances_MM = squared_distances(weight.detach().view(n_heads, -1)).sqrt()
    means: list[float] = (distances_MM.double().sum(-1) / (n_heads - 1)).tolist()
    return means
