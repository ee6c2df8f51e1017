"""How much gradient reaches the projections of each head: does it vanish in some layer?

Axes: M heads, E head width, D model width.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch

from headwise.errors import DataError
from headwise.model.family import evaluating
from headwise.train.particles import PROJECTIONS, head_projections

if TYPE_CHECKING:
    from headwise.analysis.collect import HeadTable
    from headwise.data.batch import Batch
    from headwise.losses.loss import Loss
    from headwise.model.family import Model


def projection_gradients(
    model: Model, batches: Iterable[Batch], loss: Loss, device: torch.device
) -> dict[str, HeadTable]:
    """Return |∂L/∂W| / |W| of the rows (E, D) of each head in its projections W.

    L is the mean loss over the targets of all batches, |·| the Frobenius norm: the share by which
    plain gradient descent with a rate of 1 would change the weights. Without dropout.

    Args:
        model: on `device`; its training mode is restored.
        batches: of inputs and targets.
        loss: the training loss.

    Returns:
        {"query_gradient": site -> layers -> heads, "key_gradient", "value_gradient": the same}; a
        layer without per-head projections is an empty list.

    Raises:
        DataError: there is no target.
    """
    projections = [
        (site, {name: (weight, n) for name, weight, n in head_projections(attention)})
        for site, _, attention in model.attentions()
    ]
    weights = [weight for _, named in projections for weight, _ in named.values()]
    sums, n_targets = [torch.zeros_like(weight) for weight in weights], 0
    with evaluating(model), torch.enable_grad():
        for batch in batches:
            batch = batch.to(device)
            states_RD = batch.scored(model.states(**model.inputs(batch)))
            total = model.output.loss(states_RD, batch.targets_R, loss).loss
            grads = torch.autograd.grad(total, weights, allow_unused=True, materialize_grads=True)
            torch._foreach_add_(sums, grads)
            n_targets += batch.n_targets
    if not n_targets:
        raise DataError("the gradients of heads need at least one target")
    grad_of = dict(zip(map(id, weights), sums, strict=True))
    tables: dict[str, HeadTable] = {f"{name}_gradient": {} for name in PROJECTIONS}
    for site, named in projections:
        for name in PROJECTIONS:
            shares: list[float] = []
            if name in named:
                weight, n_heads = named[name]
                of_heads = (values.view(n_heads, -1) for values in (grad_of[id(weight)], weight))
                grad_M, weight_M = (values.norm(dim=1) for values in of_heads)
                shares = (grad_M / weight_M / n_targets).tolist()
            tables[f"{name}_gradient"].setdefault(site, []).append(shares)
    return tables
