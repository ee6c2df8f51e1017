"""Importance of heads, gradients and distances of their projections, by hand and by differences."""

import copy
import json
import math

import pytest
import torch

from headwise.analysis.importance import head_importance
from headwise.analysis.projections import projection_distances
from headwise.attention.attention import Attention
from headwise.attention.build import AttentionFactory
from headwise.config.register import group_node
from headwise.config.schema import SITES, ModelConfig
from headwise.losses.loss import CrossEntropy
from headwise.model.transformer import Transformer
from pruned_models import (
    CPU,
    SOURCES,
    TARGETS,
    H,
    batches,
    close_gates,
    model_of,
    scale_head,
)

STEP = 1e-5
SMOOTHING = 0.1
LOSS = CrossEntropy(SMOOTHING)


def losses(model):
    """Smoothed cross-entropy of each sentence alone, token by token."""
    totals = []
    for ids, targets in zip(SOURCES, TARGETS, strict=True):
        source, target = torch.tensor([[*ids, 3]]), [2, *targets, 3]
        with torch.no_grad():
            logits = model(source, torch.tensor([source.shape[1]]), torch.tensor([target[:-1]]))
        log_p = logits[0].log_softmax(-1)
        right = log_p[range(len(log_p)), target[1:]]
        totals.append(float(-(1 - SMOOTHING) * right.sum() - SMOOTHING * log_p.mean(-1).sum()))
    return torch.tensor(totals, dtype=torch.float64)


def slopes(model, change):
    """Of the loss of each sentence; `change` changes a copy of the model by a step."""
    moved = [copy.deepcopy(model) for _ in range(2)]
    for one, sign in zip(moved, (1, -1), strict=True):
        with torch.no_grad():
            change(one, sign * STEP)
    return (losses(moved[0]) - losses(moved[1])) / (2 * STEP)


@pytest.mark.parametrize("variant", ["softmax", "linear"])
def test_importance_is_the_mean_absolute_slope(make, variant):
    model = model_of(make, f"attention={variant}", "attention@sites.cross=softmax")
    importance = head_importance(model, batches(), LOSS, CPU)
    assert importance.n_sentences == 3
    for site, layer, _ in model.attentions():
        of_heads = [
            slopes(model, lambda m, step, n=head: scale_head(m, site, layer, n, 1 + step))  # noqa: B023
            for head in range(H)
        ]
        expected = torch.stack(of_heads).abs().mean(-1)
        for values, given in (
            (importance.raw, expected), (importance.normalised, expected / expected.norm())
        ):  # fmt: skip
            assert values[site][layer - 1] == pytest.approx(given.tolist(), rel=1e-6, abs=1e-8)


def test_importance_is_independent_of_batches_and_leaves_the_model_unchanged(make):
    model = model_of(make, "attention=softmax", "model.dropout=0.2").train()
    model.decoder.layers[0].eval()
    modes = [module.training for module in model.modules()]
    before = {name: value.clone() for name, value in model.state_dict().items()}
    together = head_importance(model, batches(100), CrossEntropy(), CPU)
    alone = head_importance(model, batches(1), CrossEntropy(), CPU)
    for site in SITES:
        torch.testing.assert_close(together.raw[site], alone.raw[site], rtol=1e-10, atol=0)
    assert [module.training for module in model.modules()] == modes
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(getattr(a, "gate", None) is None for _, _, a in model.attentions())
    after = model.state_dict()
    assert list(after) == list(before)
    assert all(torch.equal(value, before[name]) for name, value in after.items())


def test_closed_pruned_and_frozen_heads(make):
    overrides = ("attention=softmax", "gates=hard_concrete", "gates.freeze=[decoder]")
    model = model_of(make, *overrides, heads={"cross": [[1, 3], []]})
    close_gates(model, "cross", 1, [False, True])
    importance = head_importance(model, batches(), LOSS, CPU)
    assert importance.raw["cross"][0][0] == 0
    assert importance.raw["cross"][0][1] > 0
    assert importance.raw["cross"][1] == importance.normalised["cross"][1] == []
    gates = [getattr(a, "gate", None) for _, _, a in model.attentions()]
    assert sum(gate is not None for gate in gates) == 5, "the gates are restored"
    assert importance.gradients["query_gradient"].keys() == {"encoder_self"}
    assert all(map(len, importance.gradients["query_gradient"]["encoder_self"]))


def test_gradient_is_the_steepest_slope_of_the_mean_loss(make):
    model = model_of(make, "attention=tanh").double()
    tables = head_importance(model, batches(), LOSS, CPU).gradients
    assert set(tables) == {"query_gradient", "key_gradient", "value_gradient"}
    assert set(tables["key_gradient"]) == set(SITES)
    n_targets = sum(batch.n_targets for batch in batches())
    for batch in batches():
        states = batch.scored(model.states(**model.inputs(batch)))
        (model.output.loss(states, batch.targets_R, LOSS).loss / n_targets).backward()
    weights = dict(model.named_parameters())
    for module, attention in model.named_modules():
        if not isinstance(attention, Attention):
            continue
        place = attention.place
        for name in ("query", "value"):
            weight = weights[f"{module}.{name}.weight"]
            head = place.layer % H
            rows = slice(head * len(weight) // H, (head + 1) * len(weight) // H)
            direction = torch.zeros_like(weight)
            direction[rows] = weight.grad[rows] / weight.grad[rows].norm()

            def move(model, step, path=f"{module}.{name}.weight", direction=direction):
                model.get_parameter(path).add_(direction, alpha=step)

            slope = float(slopes(model, move).sum() / n_targets)
            value = tables[f"{name}_gradient"][place.site][place.layer - 1][head]
            assert value == pytest.approx(slope / float(weight[rows].detach().norm()), rel=1e-4)


# -- distances of projections ---------------------------------------------------------------------

FACTORY = AttentionFactory({"attention": group_node("attention", "softmax")}, dropout=0.0)


def distances_of(make_attention=FACTORY, heads=None):
    """The model, and statistic -> site -> layers -> heads."""
    config = ModelConfig("test", 3, 2, 8, 4, 8, heads=heads)
    model = Transformer(config, 9, 9, True, make_attention, seed=1)
    return model, projection_distances(model)


@pytest.mark.parametrize("projection", ["query", "key", "value"])
def test_distance_is_the_mean_to_other_heads_of_the_layer(projection):
    model, distances = distances_of()
    table = distances[f"{projection}_distance"]
    n_layers = {"encoder_self": 3, "decoder_self": 2, "cross": 2}
    assert {site: len(layers) for site, layers in table.items()} == n_layers
    for site, layer, attention in model.attentions():
        heads = getattr(attention, projection).weight.view(4, -1).tolist()
        means = [math.fsum(math.dist(one, other) for other in heads) / 3 for one in heads]
        assert table[site][layer - 1] == pytest.approx(means, rel=1e-5)
    json.dumps(distances)  # heads.jsonl needs it


class Nothing(Attention):
    pass


@pytest.mark.parametrize(
    ("make_attention", "heads", "n_heads"),
    [
        # distances need two heads in a layer; other layers have none
        (FACTORY, {"cross": [[1], [3]], "encoder_self": [[2], [1, 4], []]},
         {"encoder_self": [0, 2, 0], "decoder_self": [4, 4]}),
        (lambda place: Nothing(place) if place.site == "cross" else FACTORY(place), None,
         {"encoder_self": [4, 4, 4], "decoder_self": [4, 4]}),
    ],
    ids=["pruned", "without projections"],
)  # fmt: skip
def test_absent_distances(make_attention, heads, n_heads):
    _, distances = distances_of(make_attention, heads)
    assert distances.keys() == {"query_distance", "key_distance", "value_distance"}
    for table in distances.values():
        assert {site: list(map(len, layers)) for site, layers in table.items()} == n_heads
