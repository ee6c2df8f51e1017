"""Measures of the query, key and value projections of each head.

Their distances show whether the heads of a layer are alike, their gradients whether any vanish.

Axes: M heads, E head width, D model width.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from headwise.train.repulsion import PROJECTIONS, head_projections, squared_distances

if TYPE_CHECKING:
    from headwise.analysis.collect import HeadTable
    from headwise.model.family import Model


def _tables(
    model: Model, measure: str, values: Callable[[nn.Parameter, int], list[float]]
) -> dict[str, HeadTable]:
    """Return {"query_<measure>": site -> layers -> heads, "key_<measure>", "value_<measure>"}.

    A layer without values, or without projections per head, is an empty list; a site of such layers
    only is absent.

    Args:
        values: weight (M * E, D) and M -> a value per head.
    """
    tables: dict[str, HeadTable] = {name: {} for name in PROJECTIONS}
    for site, _, attention in model.attentions():
        projections = {name: (weight, n) for name, weight, n in head_projections(attention)}
        for name, table in tables.items():
            of_layer = values(*projections[name]) if name in projections else []
            table.setdefault(site, []).append(of_layer)
    return {
        f"{name}_{measure}": {site: layers for site, layers in table.items() if any(layers)}
        for name, table in tables.items()
    }


def projection_distances(model: Model) -> dict[str, HeadTable]:
    """Return the mean Euclidean distance of each head to the others of its layer.

    Each projection of a layer is a set of M points: head i is its E rows of the weight (M * E, D),
    flattened. See `_tables`; the measure is "distance", of at least two heads.
    """

    def mean_distances(weight: nn.Parameter, n_heads: int) -> list[float]:
        if n_heads < 2:
            return []
        distances_MM = squared_distances(weight.detach().view(n_heads, -1)).sqrt()
        means: list[float] = (distances_MM.double().sum(-1) / (n_heads - 1)).tolist()
        return means

    return _tables(model, "distance", mean_distances)


class ProjectionGradients:
    """Gradients of the loss with respect to the projections of each head, summed over batches.

    Attributes:
        weights: those to differentiate with respect to; frozen ones are left out.
    """

    def __init__(self, model: Model) -> None:
        projections = [
            p for _, _, attention in model.attentions() for p in head_projections(attention)
        ]
        self.weights = [weight for _, weight, _ in projections if weight.requires_grad]
        self._model, self._n_targets = model, 0
        self._sums = [torch.zeros_like(weight) for weight in self.weights]

    def add(self, grads: Sequence[Tensor], n_targets: int) -> None:
        """Add the gradients of `weights` of the loss summed over so many targets."""
        torch._foreach_add_(self._sums, list(grads))
        self._n_targets += n_targets

    def tables(self) -> dict[str, HeadTable]:
        """Return |∂L/∂W| / |W| of the rows (E, D) of each head in its projections W.

        L is the mean loss over all targets, |·| the Frobenius norm: the share by which plain
        gradient descent with a rate of 1 would change the weights. See `_tables`; the measure is
        "gradient", of trained weights.
        """
        sums = dict(zip(map(id, self.weights), self._sums, strict=True))

        def shares(weight: nn.Parameter, n_heads: int) -> list[float]:
            if id(weight) not in sums:
                return []
            of_heads = (w.view(n_heads, -1) for w in (sums[id(weight)], weight))
            grad_M, weight_M = (w.norm(dim=1) for w in of_heads)
            of_layer: list[float] = (grad_M / weight_M / self._n_targets).tolist()
            return of_layer

        return _tables(self._model, "gradient", shares)
