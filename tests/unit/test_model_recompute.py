"""Recomputation of layers in the backward pass: the same bits, less memory.

Axes: B batch, N positions, D width.
"""

from contextlib import nullcontext
from dataclasses import replace
from functools import partial

import pytest
import torch
from benchmarks.saved_storages import n_bytes, saved_storages

from headwise.attention.attention import HeadGate
from headwise.attention.build import AttentionFactory
from headwise.attention.recorder import recorded_weights
from headwise.config.register import group_choices, group_node
from headwise.config.schema import ModelConfig
from headwise.losses.loss import CrossEntropy
from headwise.model.blocks import GELU, FeedForward, PostNorm, ReLU
from headwise.model.parts import Parts
from headwise.model.transformer import Transformer
from kernel_marks import needs_kernels

V = 13
DROPPING = ModelConfig("test", 2, 3, 16, 2, 32, dropout=0.2, activation_dropout=0.2)


def batch():
    generator = torch.Generator().manual_seed(0)
    source = torch.randint(4, V, (3, 6), generator=generator)
    target = torch.randint(4, V, (3, 5), generator=generator)
    return source, torch.tensor([6, 4, 2]), target


class NoisyGate(HeadGate):
    """Multiplies every head by a random factor, as gates in training do."""

    def forward(self, context_BHQE):
        factors = torch.rand(context_BHQE.shape[1], 1, 1, device=context_BHQE.device)
        return context_BHQE * factors.to(context_BHQE.dtype)

    def penalty(self):
        return torch.zeros(())


def noisy(recompute, node, parts=None, **changes):
    """A model with dropout everywhere and random gates."""
    torch.manual_seed(0)
    factory, config = AttentionFactory({"attention": node}, {}, 0.2), replace(DROPPING, **changes)
    config = replace(config, recompute=recompute)
    model = Transformer(config, V, V, True, factory, 1, parts or Parts())
    for _, _, attention in model.attentions():
        attention.gate = NoisyGate()
    return model.train()


def loss_and_gradients(model, half):
    source, lengths, target = batch()
    torch.manual_seed(6)
    with torch.autocast("cpu", torch.bfloat16) if half else nullcontext():
        loss = CrossEntropy(0.1)(model(source, lengths, target), target).loss
    torch.rand(3)  # other random numbers before the backward pass
    loss.backward()
    return loss.detach(), {name: p.grad for name, p in model.named_parameters()}


ENTMAX = group_node("attention", "alpha_entmax")
MODELS = {
    **{choice: (group_node("attention", choice), {}) for choice in group_choices("attention")},
    "post-norm, gelu": (ENTMAX, {"parts": Parts(PostNorm, GELU)}),
    "cls tokens": (ENTMAX, {"cls_tokens": 2}),
    "own embeddings": (ENTMAX, {"share_embeddings": "none"}),
    "shared alpha": ({**ENTMAX, "share": "site"}, {}),  # gradients are summed in the same order
}


@pytest.mark.parametrize("name", MODELS)
def test_recomputing_gives_the_same_bits(name):
    node, changes = MODELS[name]
    half = not changes and name != "alpha_entmax"
    plain_loss, expected = loss_and_gradients(noisy(False, node, **changes), half)
    loss, gradients = loss_and_gradients(noisy(True, node, **changes), half)
    assert torch.equal(loss, plain_loss)
    assert set(gradients) == set(expected)
    for parameter, gradient in expected.items():
        assert torch.equal(gradients[parameter], gradient), parameter
    assert expected["encoder.layers.0.self_attention.value.weight"].all()


def saved_bytes(attention, **changes):
    """Bytes that the forward pass saves for the backward pass, without weights."""
    model = noisy(node=group_node("attention", attention), **changes)
    with saved_storages(model) as saved:
        model(*batch())
    return n_bytes(saved)


@pytest.mark.parametrize("attention", ["softmax", "alpha_entmax"])
def test_recomputing_saves_only_the_inputs_of_layers(attention):
    def per_layer(recompute, stack):
        saved = partial(saved_bytes, attention, recompute=recompute)
        few, many = (saved(**{stack: n_layers}) for n_layers in (2, 5))
        return (many - few) / 3

    source_bytes, target_bytes = 3 * 6 * 16 * 4, 3 * 5 * 16 * 4  # B · N · D of float32
    assert per_layer(True, "encoder_layers") == source_bytes
    assert per_layer(True, "decoder_layers") == target_bytes
    assert per_layer(False, "encoder_layers") > 10 * source_bytes
    assert per_layer(False, "decoder_layers") > 15 * target_bytes


def test_only_training_recomputes():
    model, (source, lengths, target) = noisy(True, group_node("attention", "softmax")), batch()
    layers, calls = [*model.encoder.layers, *model.decoder.layers], []
    for layer in layers:
        layer.register_forward_pre_hook(lambda called, _: calls.append(called))

    def backward_calls(is_recorded=False):
        """Layers called in the backward pass."""
        with recorded_weights(model) if is_recorded else nullcontext():
            logits = model(source, lengths, target)
        calls.clear()
        logits.sum().backward()
        return list(calls)

    assert backward_calls() == layers[::-1]
    assert not backward_calls(is_recorded=True)
    model.eval()
    assert not backward_calls()
    memory = model.encode(source, lengths)
    calls.clear()
    model.decode(target, memory, model.make_cache()).sum().backward()
    assert calls == [*model.decoder.layers]  # forward only


@needs_kernels
def test_dropout_of_relu_saves_no_tensor():
    states, sizes = torch.rand(2, 30, 16, requires_grad=True), []
    for rate in (0.0, 0.5):
        feed_forward = FeedForward(16, 64, ReLU(), rate)
        with saved_storages(feed_forward) as saved:
            feed_forward(states)
        sizes.append(n_bytes(saved))
    assert sizes[0] == sizes[1] > 0


@pytest.mark.slow
def test_recomputing_works_with_torch_compile():
    sizes = {"encoder_layers": 1, "decoder_layers": 1, "dropout": 0.0, "activation_dropout": 0.0}
    factory = AttentionFactory({"attention": group_node("attention", "softmax")})
    plain, recomputing = (
        Transformer(replace(DROPPING, recompute=flag, **sizes), V, V, True, factory, 1).train()
        for flag in (False, True)
    )
    recomputing.load_state_dict(plain.state_dict())
    plain(*batch()).square().sum().backward()
    torch.compile(recomputing, backend="eager")(*batch()).square().sum().backward()
    for one, other in zip(plain.parameters(), recomputing.parameters(), strict=True):
        torch.testing.assert_close(other.grad, one.grad)
