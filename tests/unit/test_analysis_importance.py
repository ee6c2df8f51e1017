"""Importance of heads, and the factors on them."""

import copy
import math

import pytest
import torch

from headwise.analysis.importance import head_importance
from headwise.config.schema import SITES
from headwise.losses.loss import CrossEntropy
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


def sentence_loss(model, sentence, smoothing=0.1):
    """Smoothed cross-entropy of one sentence alone, token by token."""
    source = torch.tensor([[*SOURCES[sentence], 3]])
    target = [2, *TARGETS[sentence], 3]
    with torch.no_grad():
        logits = model(source, torch.tensor([source.shape[1]]), torch.tensor([target[:-1]]))
    total = 0.0
    for row, target_id in zip(logits[0].tolist(), target[1:], strict=True):
        norm = math.log(sum(math.exp(value) for value in row))
        log_p = [value - norm for value in row]
        total -= (1 - smoothing) * log_p[target_id] + smoothing * sum(log_p) / len(row)
    return total


@pytest.mark.parametrize("variant", ["softmax", "linear"])
def test_importance_is_the_mean_absolute_slope(make, variant):
    model = model_of(make, f"attention={variant}", "attention@sites.cross=softmax")
    importance = head_importance(model, batches(), CrossEntropy(0.1), CPU)
    assert importance.n_sentences == 3
    step = 1e-5
    for site in SITES:
        for layer in (1, 2):
            expected = []
            for head in range(H):
                up, down = copy.deepcopy(model), copy.deepcopy(model)
                scale_head(up, site, layer, head, 1 + step)
                scale_head(down, site, layer, head, 1 - step)
                slopes = [
                    abs(sentence_loss(up, sentence) - sentence_loss(down, sentence)) / (2 * step)
                    for sentence in range(3)
                ]
                expected.append(sum(slopes) / 3)
            raw = importance.raw[site][layer - 1]
            torch.testing.assert_close(raw, expected, rtol=1e-6, atol=1e-8)
            norm = math.sqrt(sum(value**2 for value in expected))
            torch.testing.assert_close(
                importance.normalised[site][layer - 1],
                [value / norm for value in expected],
                rtol=1e-6,
                atol=1e-8,
            )


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


def test_closed_and_pruned_heads_have_no_importance(make):
    overrides = ("attention=softmax", "gates=hard_concrete")
    model = model_of(make, *overrides, heads={"cross": [[1, 3], []]})
    close_gates(model, "cross", 1, [False, True])
    importance = head_importance(model, batches(), CrossEntropy(), CPU)
    assert importance.raw["cross"][0][0] == 0
    assert importance.raw["cross"][0][1] > 0
    assert importance.raw["cross"][1] == importance.normalised["cross"][1] == []
    gates = [getattr(a, "gate", None) for _, _, a in model.attentions()]
    assert sum(gate is not None for gate in gates) == 5, "the gates are restored"
