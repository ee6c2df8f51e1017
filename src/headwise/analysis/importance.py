"""Importance of each head for the loss (Michel, Levy and Neubig 2019, section 4.1).

Axes: B batch, H heads, Q queries, E head width.

Results are `site -> layers -> heads`; a layer without heads is an empty list.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from headwise.analysis.projections import ProjectionGradients
from headwise.attention.attention import HeadGate, MultiHeadAttention
from headwise.attention.place import Place
from headwise.errors import DataError
from headwise.model.family import evaluating

if TYPE_CHECKING:
    from headwise.analysis.collect import HeadTable
    from headwise.data.batch import Batch
    from headwise.losses.loss import Loss
    from headwise.model.family import Model


class HeadFactors(HeadGate):
    """Factors ξ on the head outputs of one attention, applied after its gate if it has one.

    Attributes:
        place: site and layer of the attention.
        factors: (1 or B, H, 1, 1).
    """

    def __init__(self, place: Place, gate: HeadGate | None, like: Tensor) -> None:
        super().__init__()
        self.place = place
        self.gate = gate
        self.factors = torch.ones(1, place.n_heads, 1, 1, dtype=like.dtype, device=like.device)

    def forward(self, context_BHQE: Tensor) -> Tensor:
        """Multiply the context of every head by its factor."""
        if self.gate is not None:
            context_BHQE = self.gate(context_BHQE)
        return context_BHQE * self.factors.to(context_BHQE.dtype)


@contextmanager
def head_factors(model: Model) -> Iterator[list[HeadFactors]]:
    """Attach a factor of 1 to every head of a model; the block may change the factors.

    The model is in evaluation mode within the block. The factors are removed afterwards.
    """
    originals: list[tuple[MultiHeadAttention, HeadGate | None]] = []
    gates: list[HeadFactors] = []
    with evaluating(model):
        try:
            for _, _, attention in model.attentions():
                if isinstance(attention, MultiHeadAttention):
                    originals.append((attention, attention.gate))
                    gate = HeadFactors(attention.place, attention.gate, attention.output.weight)
                    attention.gate = gate.eval()
                    gates.append(gate)
            yield gates
        finally:
            for attention, original in originals:
                attention.gate = original


@dataclass(frozen=True)
class Importance:
    """Importance of every head.

    Attributes:
        raw: I_h, the mean over sentences of |∂L/∂ξ_h|.
        normalised: I_h divided by the L2 norm over its layer, comparable across layers and sites.
        n_sentences: number of sentences in the mean.
        gradients: those of the projections of each head, see `ProjectionGradients.tables`.
    """

    raw: HeadTable
    normalised: HeadTable
    n_sentences: int
    gradients: dict[str, HeadTable]


def head_importance(
    model: Model, batches: Iterable[Batch], loss: Loss, device: torch.device
) -> Importance:
    """Return I_h = E_x |∂L(x)/∂ξ_h| = E_x |Att_h(x)ᵀ ∂L(x)/∂Att_h(x)|.

    ξ_h is a factor of 1 on the output of head h, L(x) the loss summed over the target tokens of
    sentence x. Every sentence has separate factors, so one forward and backward pass per batch
    gives the derivatives for all its sentences and heads.

    Args:
        model: on `device`; its gates and training mode are restored.
        batches: sources with references.
        loss: the training loss.

    Raises:
        DataError: there is no sentence.
    """
    sums: dict[tuple[str, int], Tensor] = {}
    n_sentences, projections = 0, ProjectionGradients(model)
    with head_factors(model) as gates, torch.enable_grad():
        for batch in batches:
            batch = batch.to(device)
            n_sentences += len(batch)
            for gate in gates:
                ones = gate.factors.new_ones(len(batch), gate.place.n_heads, 1, 1)
                gate.factors = ones.requires_grad_()
            states_RD = batch.scored(model.states(**model.inputs(batch)))
            total = model.output.loss(states_RD, batch.targets_R, loss).loss
            with_heads = [gate for gate in gates if gate.place.n_heads]  # pruning can remove all
            if not with_heads:
                continue
            # without cross-attention the loss does not depend on the encoder
            factors = [gate.factors for gate in with_heads]
            inputs = [*factors, *projections.weights]
            grads = torch.autograd.grad(total, inputs, allow_unused=True, materialize_grads=True)
            projections.add(grads[len(factors) :], batch.n_targets)
            for gate, grad_BH11 in zip(with_heads, grads[: len(factors)], strict=True):
                grad_H = grad_BH11.flatten(1).double().abs().sum(0)
                key = gate.place.site, gate.place.layer
                sums[key] = sums[key] + grad_H if key in sums else grad_H
    if not n_sentences:
        raise DataError("the importance of heads needs at least one sentence")
    raw: HeadTable = {}
    for site, layer, _ in model.attentions():
        sum_H = sums.get((site, layer))
        raw.setdefault(site, []).append([] if sum_H is None else (sum_H / n_sentences).tolist())
    normalised = {site: [_unit(layer) for layer in layers] for site, layers in raw.items()}
    return Importance(raw, normalised, n_sentences, projections.tables())


def _unit(values: list[float]) -> list[float]:
    """Divide the values by their L2 norm; zeros are unchanged."""
    norm = math.hypot(*values)
    return [value / norm if norm else 0.0 for value in values]
