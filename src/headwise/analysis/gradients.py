"""How much gradient reaches the projections of each head: does it vanish in some layer?

Axes: M heads, E head width, D model width.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from headwise.train.particles import PROJECTIONS, head_projections

if TYPE_CHECKING:
    from headwise.analysis.collect import HeadTable
    from headwise.model.family import Model


class ProjectionGradients:
    """Gradients of the loss with respect to the projections of each head, summed over batches.

    Attributes:
        weights: those to differentiate with respect to; frozen ones are left out.
    """

    def __init__(self, model: Model) -> None:
        self._projections = [
            (site, {name: (w, n) for name, w, n in head_projections(attention) if w.requires_grad})
            for site, _, attention in model.attentions()
        ]
        self.weights = [weight for _, named in self._projections for weight, _ in named.values()]
        self._sums, self._n_targets = [torch.zeros_like(weight) for weight in self.weights], 0

    def add(self, grads: Sequence[Tensor], n_targets: int) -> None:
        """Add the gradients of `weights` of the loss summed over so many targets."""
        torch._foreach_add_(self._sums, list(grads))
        self._n_targets += n_targets

    def tables(self) -> dict[str, HeadTable]:
        """Return |∂L/∂W| / |W| of the rows (E, D) of each head in its projections W.

        L is the mean loss over all targets, |·| the Frobenius norm: the share by which plain
        gradient descent with a rate of 1 would change the weights.

        Returns:
            {"query_gradient": site -> layers -> heads, "key_gradient", "value_gradient": the same};
            a layer without trained projections per head is an empty list.
        """
        grad_of = dict(zip(map(id, self.weights), self._sums, strict=True))
        tables: dict[str, HeadTable] = {f"{name}_gradient": {} for name in PROJECTIONS}
        for site, named in self._projections:
            for name in PROJECTIONS:
                shares: list[float] = []
                if name in named:
                    weight, n_heads = named[name]
                    of_heads = (w.view(n_heads, -1) for w in (grad_of[id(weight)], weight))
                    grad_M, weight_M = (w.norm(dim=1) for w in of_heads)
                    shares = (grad_M / weight_M / self._n_targets).tolist()
                tables[f"{name}_gradient"].setdefault(site, []).append(shares)
        return tables
