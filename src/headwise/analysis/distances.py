"""Distances between the projection weights of the heads of a layer.

Each query, key and value projection of a layer is a set of M points: head i is its E rows of the
weight (M * E, D), flattened.

Axes: M heads, E head width, D model width.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from headwise.analysis.collect import HeadTable
from headwise.train.particles import PROJECTIONS, head_projections, squared_distances

if TYPE_CHECKING:
    from headwise.model.family import Model


def projection_distances(model: Model) -> dict[str, HeadTable]:
    """Return the mean Euclidean distance of each head to the others of its layer.

    Returns:
        {"query_distance": site -> layers -> heads, "key_distance", "value_distance": the same}.
        A layer of fewer than two heads, or without per-head projections, is an empty list; a site
        of such layers only is absent.
    """
    tables: dict[str, HeadTable] = {f"{name}_distance": {} for name in PROJECTIONS}
    for site, _, attention in model.attentions():
        projections = {name: (weight, n) for name, weight, n in head_projections(attention)}
        for name in PROJECTIONS:
            values = _mean_distances(*projections[name]) if name in projections else []
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
