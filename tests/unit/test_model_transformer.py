"""The Transformer around the attention sites, and recomputation of its layers."""

import dataclasses
import itertools
import math
from contextlib import nullcontext, suppress
from functools import partial

import pytest
import torch
from benchmarks.saved_storages import n_bytes, saved_storages
from torch import nn

from headwise.attention.build import AttentionFactory
from headwise.attention.heads import HeadGate
from headwise.attention.positions import Learned, Sinusoids, sinusoids
from headwise.attention.recorder import recorded_weights
from headwise.config.folders import group_choices, group_node
from headwise.config.instantiate import instantiate
from headwise.config.schema import ModelConfig
from headwise.errors import DataError
from headwise.losses.loss import CrossEntropy
from headwise.model.activations import GELU, ReLU
from headwise.model.blocks import FeedForward, PostNorm, PreNorm, Residual
from headwise.model.family import evaluating, n_parameters
from headwise.model.parts import Parts
from headwise.model.transformer import Transformer
from kernel_marks import needs_kernels

SMALL = ModelConfig("test", 2, 3, 16, 2, 32, dropout=0.0, activation_dropout=0.0)
V = 13
PARTS = Parts()


def build(config=SMALL, attention="softmax", seed=1, parts=PARTS):
    nodes = {"attention": group_node("attention", attention)}
    factory = AttentionFactory(nodes, positions=parts.positions)
    return Transformer(config, V, V, True, factory, seed, parts).eval()


def batch():
    generator = torch.Generator().manual_seed(0)
    source = torch.randint(4, V, (3, 6), generator=generator)
    target = torch.randint(4, V, (3, 5), generator=generator)
    return source, torch.tensor([6, 4, 2]), target


def test_overlapping_evaluations_restore_the_mode_before_the_first():
    model = build().train()
    model.encoder.eval()
    modes = [module.training for module in model.modules()]
    first, part = evaluating(model), evaluating(model.decoder)
    first.__enter__()
    with suppress(KeyError), evaluating(model):
        part.__enter__()
        first.__exit__(None, None, None)
        assert not any(module.training for module in model.modules())
        raise KeyError
    part.__exit__(None, None, None)
    assert [module.training for module in model.modules()] == modes


@pytest.mark.parametrize("choice", group_choices("activation"))
def test_activation_dropout_is_applied_in_training_only(choice):
    activation = instantiate(group_node("activation", choice), "activation")
    feed_forward = FeedForward(16, 64, activation, 0.5)
    nn.init.eye_(feed_forward.inner.weight)
    nn.init.eye_(feed_forward.outer.weight)
    states = torch.rand(2, 30, 16) + 0.5
    zeros = [feed_forward.train(mode)(states) == feed_forward.outer.bias for mode in (True, False)]
    assert 0.3 < zeros[0].float().mean() < 0.7
    assert not zeros[1].any()


@needs_kernels
def test_dropout_of_relu_saves_no_tensor():
    states, sizes = torch.rand(2, 30, 16, requires_grad=True), []
    for rate in (0.0, 0.5):
        feed_forward = FeedForward(16, 64, ReLU(), rate)
        with saved_storages(feed_forward) as saved:
            feed_forward(states)
        sizes.append(n_bytes(saved))
    assert sizes[0] == sizes[1] > 0


def test_every_layer_has_both_dropout_rates():
    model = build(dataclasses.replace(SMALL, dropout=0.1, activation_dropout=0.3))
    parts = list(model.modules())
    inner = [part.dropout.rate for part in parts if isinstance(part, FeedForward)]
    around = [part.dropout.rate for part in parts if isinstance(part, Residual)]
    assert inner == [0.3] * 5
    assert around == [0.1] * (2 * 2 + 3 * 3)


@pytest.mark.parametrize("norm", [PreNorm, PostNorm])
def test_residual_dropout_is_applied_in_training_only(norm):
    residual, pre_norm = norm(16, 0.5), norm is PreNorm
    states, change = torch.randn(2, 30, 16), torch.rand(2, 30, 16) + 0.5
    evaluated = residual.eval().after(states, change)
    expected = states + change if pre_norm else residual.norm(states + change)
    assert torch.allclose(evaluated, expected)
    residual.train()
    assert not torch.equal(residual.after(states, change), residual.after(states, change))
    if pre_norm:
        assert 0.3 < (residual.after(states, change) == states).float().mean() < 0.7


def test_base_model_has_the_parameters_of_the_paper():
    config = ModelConfig("base", 6, 6, 512, 8, 2048)
    with torch.device("meta"):
        dense, sparse = build(config, "softmax"), build(config, "alpha_entmax")
    # 6 encoder layers of 3.15M, 6 decoder layers of 4.2M, the embedding of 13 tokens
    assert n_parameters(dense) == pytest.approx(44.1e6, rel=0.01)
    assert n_parameters(sparse) - n_parameters(dense) == 3 * 6 * 8


def test_sharing_of_embeddings():
    everything = build()
    assert everything.source_embedding.token is everything.target_embedding.token
    assert everything.output.weight is everything.target_embedding.token.weight
    decoder = build(dataclasses.replace(SMALL, share_embeddings="decoder"))
    assert decoder.source_embedding.token is not decoder.target_embedding.token
    assert decoder.output.weight is decoder.target_embedding.token.weight
    none = build(dataclasses.replace(SMALL, share_embeddings="none"))
    assert none.output.weight is not none.target_embedding.token.weight


@pytest.mark.parametrize("width", [8, 7, 1])
def test_sinusoids_match_the_paper(width):
    signal = sinusoids(60, width)
    assert signal.shape == (60, width)
    for position, column in itertools.product((0, 1, 2, 59), range(width)):
        angle = position / 10000 ** (2 * (column // 2) / width)
        expected = math.cos(angle) if column % 2 else math.sin(angle)
        assert signal[position, column].item() == pytest.approx(expected, abs=1e-5)


def test_sinusoids_extend_and_learned_positions_are_limited():
    short = Sinusoids(16, n_positions=4)
    torch.testing.assert_close(short(3, 70), sinusoids(73, 16)[3:])
    source, lengths, target = batch()
    learned = build(parts=Parts(positions=Learned(4)))
    with pytest.raises(DataError, match="max_positions=4"):
        learned(source, lengths, target)


# -- recomputation ----------------------------------------------------------------------------


class NoisyGate(HeadGate):
    """Multiplies every head by a random factor, as gates in training do."""

    def forward(self, context_BHQE):
        factors = torch.rand(context_BHQE.shape[1], 1, 1, device=context_BHQE.device)
        return context_BHQE * factors.to(context_BHQE.dtype)

    def penalty(self):
        return torch.zeros(())


def noisy(recompute, node, parts=PARTS, **changes):
    """A model with dropout everywhere and random gates."""
    config = dataclasses.replace(
        SMALL,
        dropout=0.2,
        activation_dropout=0.2,
        recompute=recompute,
        **changes,
    )
    torch.manual_seed(0)
    factory = AttentionFactory({"attention": node}, {}, 0.2)
    model = Transformer(config, V, V, True, factory, 1, parts)
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


def assert_same_bits(node, half, **changes):
    plain_loss, expected = loss_and_gradients(noisy(False, node, **changes), half)
    loss, gradients = loss_and_gradients(noisy(True, node, **changes), half)
    assert torch.equal(loss, plain_loss)
    assert set(gradients) == set(expected)
    for name, gradient in expected.items():
        recomputed = gradients[name]
        assert torch.equal(recomputed, gradient), name
    first = expected["encoder.layers.0.self_attention.value.weight"]
    assert first.all()


@pytest.mark.parametrize("attention", group_choices("attention"))
def test_recomputing_gives_the_same_bits(attention):
    assert_same_bits(group_node("attention", attention), half=attention != "alpha_entmax")


@pytest.mark.parametrize(
    "changes",
    [{"parts": Parts(PostNorm, GELU)}, {"cls_tokens": 2}, {"share_embeddings": "none"}],
)
def test_recomputing_gives_the_same_bits_in_other_models(changes):
    assert_same_bits(group_node("attention", "alpha_entmax"), False, **changes)


def test_recomputing_sums_shared_gradients_in_the_same_order():
    assert_same_bits({**group_node("attention", "alpha_entmax"), "share": "site"}, half=True)


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


def test_only_training_recomputes(monkeypatch):
    calls = []

    def counted(layer, *arguments, **options):
        calls.append(layer)
        return layer(*arguments)

    monkeypatch.setattr("headwise.model.blocks.checkpoint", counted)
    model, (source, lengths, target) = noisy(True, group_node("attention", "softmax")), batch()
    model(source, lengths, target)
    assert calls == [*model.encoder.layers, *model.decoder.layers]
    calls.clear()
    with recorded_weights(model):
        model(source, lengths, target)
    with torch.no_grad():
        model(source, lengths, target)
    memory = model.eval().encode(source, lengths)
    model.decode(target, memory, model.make_cache())
    model(source, lengths, target)
    assert not calls


@pytest.mark.slow
def test_recomputing_works_with_torch_compile():
    config = dataclasses.replace(SMALL, encoder_layers=1, decoder_layers=1)
    plain = build(config).train()
    recomputing = build(dataclasses.replace(config, recompute=True)).train()
    recomputing.load_state_dict(plain.state_dict())
    plain(*batch()).square().sum().backward()
    torch.compile(recomputing, backend="eager")(*batch()).square().sum().backward()
    for one, other in zip(plain.parameters(), recomputing.parameters(), strict=True):
        torch.testing.assert_close(other.grad, one.grad)
