"""Distances of the projections of heads by hand, their gradients against the slope of the loss."""

import copy
import json
import math

import pytest
import torch

from headwise.analysis.importance import head_importance
from headwise.analysis.projections import projection_distances
from headwise.attention.build import AttentionFactory
from headwise.attention.protocol import Attention
from headwise.config.folders import group_node
from headwise.config.schema import SITES, ModelConfig
from headwise.losses.loss import CrossEntropy
from headwise.model.transformer import Transformer
from pruned_models import CPU, H, batches, model_of

FACTORY = AttentionFactory({"attention": group_node("attention", "softmax")}, dropout=0.0)


LOSS = CrossEntropy(0.1)


def make_model(make=FACTORY, heads=None):
    config = ModelConfig("test", 3, 2, 8, 4, 8)
    config.heads = heads
    return Transformer(config, 9, 9, True, make, seed=1)


def by_hand(attention, projection):
    rows = getattr(attention, projection).weight.tolist()
    n_heads, head_dim = attention.place.n_heads, attention.place.head_dim
    heads = [
        [number for row in rows[i * head_dim : (i + 1) * head_dim] for number in row]
        for i in range(n_heads)
    ]
    return [
        math.fsum(math.dist(heads[i], heads[j]) for j in range(n_heads) if j != i) / (n_heads - 1)
        for i in range(n_heads)
    ]


@pytest.mark.parametrize("projection", ["query", "key", "value"])
def test_distance_is_the_mean_to_other_heads_of_the_layer(projection):
    model = make_model()
    distances = projection_distances(model)[f"{projection}_distance"]
    assert {site: len(layers) for site, layers in distances.items()} == {
        "encoder_self": 3,
        "decoder_self": 2,
        "cross": 2,
    }
    for site, layer, attention in model.attentions():
        assert distances[site][layer - 1] == pytest.approx(by_hand(attention, projection), rel=1e-5)
    json.dumps(distances)  # heads.jsonl needs it


def test_single_or_pruned_heads_are_absent():
    """Distances need two heads in a layer; other layers have none."""
    heads = {"cross": [[1], [3]], "encoder_self": [[2], [1, 4], []]}
    distances = projection_distances(make_model(heads=heads))
    assert distances.keys() == {"query_distance", "key_distance", "value_distance"}
    for table in distances.values():
        assert table.keys() == {"encoder_self", "decoder_self"}
        assert [len(layer) for layer in table["encoder_self"]] == [0, 2, 0]
        assert table["encoder_self"][1][0] == pytest.approx(table["encoder_self"][1][1])
        assert [len(layer) for layer in table["decoder_self"]] == [4, 4]


def test_attention_without_projections_is_absent():
    class Nothing(Attention):
        pass

    distances = projection_distances(
        make_model(lambda place: Nothing(place) if place.site == "cross" else FACTORY(place))
    )
    assert all(table.keys() == set(SITES) - {"cross"} for table in distances.values())


def mean_loss(model):
    with torch.no_grad():
        parts = [
            (model.output.loss(b.scored(model.states(**model.inputs(b))), b.targets_R, LOSS), b)
            for b in batches()
        ]
    return sum(float(sums.loss) for sums, _ in parts) / sum(b.n_targets for _, b in parts)


def test_gradient_is_the_steepest_slope_of_the_mean_loss(make):
    model = model_of(make, "attention=tanh").double()
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


def test_frozen_projections_have_no_gradient(make):
    model = model_of(make, "attention=softmax", "gates=hard_concrete", "gates.freeze=[decoder]")
    tables = head_importance(model, batches(), LOSS, CPU).gradients
    assert all(map(len, tables["query_gradient"]["encoder_self"]))
    assert "decoder_self" not in tables["query_gradient"]
