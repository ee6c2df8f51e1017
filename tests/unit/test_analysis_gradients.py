"""Gradients of the projections of heads, against the slope of the loss."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from headwise.analysis.importance import head_importance
from headwise.config.schema import SITES
from headwise.losses.loss import CrossEntropy
from headwise.model.family import Model
from pruned_models import CPU, H, batches, model_of

LOSS = CrossEntropy(0.1)


def mean_loss(model: Model) -> float:
    with torch.no_grad():
        parts = [
            (model.output.loss(b.scored(model.states(**model.inputs(b))), b.targets_R, LOSS), b)
            for b in batches()
        ]
    return sum(float(sums.loss) for sums, _ in parts) / sum(b.n_targets for _, b in parts)


@pytest.mark.parametrize("variant", ["alpha_entmax", "tanh"])
def test_gradient_is_the_steepest_slope_of_the_mean_loss(make: Any, variant: str) -> None:
    model = model_of(make, f"attention={variant}").double()
    tables = head_importance(model, batches(), LOSS, CPU).gradients
    assert set(tables) == {"query_gradient", "key_gradient", "value_gradient"}
    step = 1e-5
    for site, layer, attention in model.attentions():
        for name in ("query", "value"):
            weight = getattr(attention, name).weight
            loss = sum(
                model.output.loss(b.scored(model.states(**model.inputs(b))), b.targets_R, LOSS).loss
                for b in batches()
            )
            (grad,) = torch.autograd.grad(loss, weight)
            values = tables[f"{name}_gradient"][site][layer - 1]
            head = layer % H
            rows = slice(head * len(weight) // H, (head + 1) * len(weight) // H)
            direction = torch.zeros_like(weight)
            direction[rows] = grad[rows] / grad[rows].norm()
            losses = []
            for sign in (1, -1):
                moved = copy.deepcopy(model)
                places = {(s, n): a for s, n, a in moved.attentions()}
                with torch.no_grad():
                    getattr(places[site, layer], name).weight.add_(direction, alpha=sign * step)
                losses.append(mean_loss(moved))
            slope = (losses[0] - losses[1]) / (2 * step)
            expected = slope / float(weight[rows].detach().norm())
            assert values[head] == pytest.approx(expected, rel=1e-4)
    assert set(tables["key_gradient"]) == set(SITES)


def test_gradients_leave_the_model_unchanged(make: Any) -> None:
    model = model_of(make, "attention=softmax").train()
    before = copy.deepcopy(model.state_dict())
    tables = head_importance(model, batches(), LOSS, CPU).gradients
    again = head_importance(model, batches(), LOSS, CPU).gradients
    assert tables == again
    assert model.training
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_frozen_projections_have_no_gradient(make: Any) -> None:
    model = model_of(make, "attention=softmax", "gates=hard_concrete", "gates.freeze=[decoder]")
    tables = head_importance(model, batches(), LOSS, CPU).gradients
    assert all(map(len, tables["query_gradient"]["encoder_self"]))
    assert not any(map(len, tables["query_gradient"]["decoder_self"]))
