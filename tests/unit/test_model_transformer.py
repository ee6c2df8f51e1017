"""The Transformer around its attentions: blocks, embeddings, CLS tokens, initial weights.

Child et al. 2019, equations 9 to 15, implemented independently for one sentence in float64.
Axes: B batch, S source length, T target length, D width, E head width.
"""

import math
from contextlib import suppress
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn.functional import layer_norm

import oracle
from headwise.attention.build import AttentionFactory
from headwise.attention.positions import Grid, Learned
from headwise.config.instantiate import instantiate
from headwise.config.register import group_choices, group_node
from headwise.config.schema import ModelConfig
from headwise.errors import DataError
from headwise.losses.loss import CrossEntropy
from headwise.model.blocks import FeedForward, PostNorm, PreNorm, QuickGELU, Residual
from headwise.model.family import evaluating, n_parameters
from headwise.model.init import Glorot
from headwise.model.parts import SINUSOIDAL, Parts
from headwise.model.scaled import Scaled
from headwise.model.transformer import Transformer

V, GRID = 13, Grid(width=4, max_positions=64)
NO_DROPOUT = {"dropout": 0.0, "attention_dropout": 0.0, "activation_dropout": 0.0}
SMALL = ModelConfig("test", 2, 3, 16, 2, 32, **NO_DROPOUT)
DEEP = replace(SMALL, encoder_layers=3, decoder_layers=2, share_embeddings="none")


def build(config=SMALL, attention="softmax", vocabulary=V, parts=None, **changes):
    config = replace(config, **changes)
    torch.manual_seed(0)
    factory = AttentionFactory({"attention": group_node("attention", attention)})
    return Transformer(config, vocabulary, vocabulary, True, factory, 1, parts or Parts()).eval()


def deep(positions=GRID, init=None, **options):
    parts = Parts(activation=QuickGELU, init=init or Scaled(), positions=positions)
    return build(DEEP, parts=parts, **options)


def batch():
    generator = torch.Generator().manual_seed(0)
    source = torch.randint(4, V, (4, 9), generator=generator)
    target = torch.randint(4, V, (4, 7), generator=generator)
    return source, torch.tensor([9, 6, 3, 1]), target


# -- the formulas -----------------------------------------------------------------------------


class Reference:
    """Logits of one sentence pair from named weights; CLS tokens go in front of the source."""

    def __init__(self, weights, config):
        self.weights, self.config = weights, config

    def linear(self, name, rows_ND):
        return rows_ND @ self.weights[f"{name}.weight"].T + self.weights[f"{name}.bias"]

    def norm(self, name, rows_ND):
        weight, bias = self.weights[f"{name}.weight"], self.weights[f"{name}.bias"]
        return layer_norm(rows_ND, rows_ND.shape[-1:], weight, bias, 1e-6)

    def attention(self, name, read_ND, other_ND, causal):
        rows = {"query": read_ND, "key": other_ND, "value": other_ND}
        query, key, value = (
            self.linear(f"{name}.{part}", x).unflatten(1, (self.config.n_heads, -1)).transpose(0, 1)
            for part, x in rows.items()
        )
        mask = oracle.visible(len(read_ND), len(other_ND), is_causal=causal)[0]
        context_HNE = oracle.attention(query, key, value, 1, mask)
        return self.linear(f"{name}.output", context_HNE.transpose(0, 1).flatten(1))

    def feed_forward(self, name, read_ND):
        inner = self.linear(f"{name}.inner", read_ND)
        return self.linear(f"{name}.outer", inner / (1 + torch.exp(-1.702 * inner)))

    def embed(self, side, ids):
        token, row, column = (
            self.weights[f"{side}_embedding.{table}.weight"]
            for table in ("token", "positions.row", "positions.column")
        )
        positions = torch.arange(len(ids))
        return token[ids] + row[positions // GRID.width] + column[positions % GRID.width]

    def stack(self, side, states, memory=None):
        for layer in range(getattr(self.config, f"{side}_layers")):
            name = f"{side}.layers.{layer}"
            read = self.norm(f"{name}.self_residual.norm", states)
            branches = self.attention(f"{name}.self_attention", read, read, side == "decoder")
            if memory is not None:
                read = self.norm(f"{name}.cross_residual.norm", states + branches)
                cross = self.attention(f"{name}.cross_attention", read, memory, causal=False)
                branches = branches + cross
            read = self.norm(f"{name}.feed_forward_residual.norm", states + branches)
            states = states + branches + self.feed_forward(f"{name}.feed_forward", read)
        return self.norm(f"{side}.norm", states)

    def logits(self, source, target):
        states = self.embed("source", source)
        if self.config.cls_tokens:
            states = torch.cat((self.weights["source_embedding.cls.weight"], states))
        memory = self.stack("encoder", states)
        states = self.stack("decoder", self.embed("target", target), memory)
        return states @ self.weights["output.weight"].T


@pytest.mark.parametrize("n_cls", [0, 3])
def test_logits_match_the_formulas(n_cls):
    model = deep(cls_tokens=n_cls).double()
    generator = torch.Generator().manual_seed(3)
    for parameter in model.parameters():  # biases, norms and the output are no longer 0 and 1
        noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        parameter.data += 0.3 * noise
    source, target = [5, 7, 4, 12, 5, 9], [6, 11, 4, 8, 10]
    logits = model(torch.tensor([source]), torch.tensor([6]), torch.tensor([target]))
    config = replace(DEEP, cls_tokens=n_cls)
    expected = Reference(model.state_dict(), config).logits(source, target)
    torch.testing.assert_close(logits[0], expected, rtol=1e-10, atol=1e-10)


def test_quick_gelu():
    x = torch.linspace(-4, 4, 41, dtype=torch.float64, requires_grad=True)
    output = QuickGELU()(x)
    expected = [v / (1 + math.exp(-1.702 * v)) for v in x.tolist()]
    torch.testing.assert_close(output, torch.tensor(expected, dtype=torch.float64))
    assert torch.autograd.gradcheck(QuickGELU(), (x,))
    assert (output - torch.nn.functional.gelu(x)).abs().max() < 0.021


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


def test_every_layer_has_both_dropout_rates():
    model = build(dropout=0.1, activation_dropout=0.3)
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
        dense, sparse = build(config), build(config, "alpha_entmax")
    # 6 encoder layers of 3.15M, 6 decoder layers of 4.2M, the embedding of 13 tokens
    assert n_parameters(dense) == pytest.approx(44.1e6, rel=0.01)
    assert n_parameters(sparse) - n_parameters(dense) == 3 * 6 * 8


def test_sharing_of_embeddings():
    everything = build()
    assert everything.source_embedding.token is everything.target_embedding.token
    assert everything.output.weight is everything.target_embedding.token.weight
    decoder = build(share_embeddings="decoder")
    assert decoder.source_embedding.token is not decoder.target_embedding.token
    assert decoder.output.weight is decoder.target_embedding.token.weight
    none = build(share_embeddings="none")
    assert none.output.weight is not none.target_embedding.token.weight


def test_listed_heads_are_built_and_other_sites_have_all():
    model = build(heads={"cross": [[2], [], [1, 2]]})
    places = {(site, layer): attention.place for site, layer, attention in model.attentions()}
    numbers = [places["cross", layer].head_numbers for layer in (1, 2, 3)]
    assert numbers == [(2,), (), (1, 2)]
    assert places["encoder_self", 2].head_numbers == (1, 2)
    assert {place.d_model for place in places.values()} == {16}


# -- CLS tokens -------------------------------------------------------------------------------


@pytest.mark.parametrize("n_cls", [0, 3])
def test_cls_tokens_shorten_the_longest_source(n_cls):
    model = build(attention="linformer", cls_tokens=n_cls)
    longest = group_node("attention", "linformer")["max_length"] - n_cls
    assert model.max_source == longest
    source = torch.full((1, longest), 4)
    model.encode(source, torch.tensor([longest]))
    with pytest.raises(DataError, match="max_length"):
        model.encode(torch.cat((source, source[:, :1]), dim=1), torch.tensor([longest + 1]))


@pytest.mark.parametrize(("init", "scale"), [(Glorot(), 4.0), (Scaled(), 1.0)])
def test_cls_tokens_are_scaled_as_tokens_but_have_no_position(init, scale):
    model = deep(Grid(), init, cls_tokens=3)
    encoder_inputs = []
    model.encoder.register_forward_pre_hook(lambda _, inputs: encoder_inputs.append(inputs[0]))
    source, lengths, _ = batch()
    model.encode(source, lengths)
    cls = model.source_embedding.cls
    expected = cls.weight * scale
    for row in encoder_inputs[0]:
        torch.testing.assert_close(row[:3], expected, rtol=0, atol=0)
    for i in range(1, 6):  # the second token has position 1
        token = model.source_embedding(source[:, i : i + 1], i)[:, 0]
        torch.testing.assert_close(encoder_inputs[0][:, 3 + i], token, rtol=0, atol=0)


def test_learned_positions_are_limited_and_cls_tokens_use_none():
    assert deep(Learned(9), cls_tokens=3)(*batch()).isfinite().all()
    with pytest.raises(DataError, match="max_positions=8"):
        deep(Learned(8))(*batch())


# -- initial weights --------------------------------------------------------------------------


def deviation(weight):
    return float(weight.detach().double().std())


def test_scaled_weights_have_the_deviations_of_the_paper():
    width, inner, layers = 256, 1024, 3
    model = deep(
        vocabulary=400, d_model=width, d_ff=inner, encoder_layers=layers, decoder_layers=layers,
        positions=Grid(32, 1024), cls_tokens=64,
    )  # fmt: skip
    branches = {"encoder": 2 * layers, "decoder": 3 * layers}
    checked_kinds = set()
    for name, weight in model.named_parameters():
        if name.endswith("bias"):
            assert not weight.any(), name
        elif "norm" in name:
            assert (weight == 1).all(), name
        elif name == "output.weight":
            assert not weight.any()
        else:
            kind = name.split(".")[-2]
            expected = 0.125 / math.sqrt(inner if kind == "outer" else width)
            if kind in ("output", "outer"):
                expected /= math.sqrt(branches[name.split(".")[0]])
            if kind in ("row", "column"):
                expected /= math.sqrt(2)
            checked_kinds.add(kind)
            assert deviation(weight) == pytest.approx(expected, rel=0.03), name
            bound = 0.03 * expected + 3 * expected / weight.numel() ** 0.5
            assert abs(float(weight.detach().mean())) < bound
    kinds = {"query", "key", "value", "output", "inner", "outer", "token", "row", "column"}
    kinds |= {"cls"}
    assert checked_kinds == kinds


def test_positions_are_scaled_with_the_tokens():
    learned = deep(positions=Learned(512), d_model=128).source_embedding.positions
    assert deviation(learned.table.weight) == pytest.approx(0.125 / math.sqrt(128), rel=0.03)
    scaled = deep(positions=SINUSOIDAL, d_model=128).source_embedding
    glorot = deep(positions=SINUSOIDAL, d_model=128, init=Glorot()).source_embedding
    ids = torch.full((1, 6), 5)
    for embedding, token_scale in ((scaled, 1.0), (glorot, math.sqrt(128))):
        tokens = embedding.token.weight[5] * token_scale
        added = embedding(ids)[0] - tokens
        ratio = float(added.detach().norm() / tokens.detach().norm()) / math.sqrt(len(added))
        assert ratio == pytest.approx(math.sqrt(0.5), rel=0.15)


def test_pruned_attention_is_scaled_by_its_width():
    layers = [[1], [1, 2], [2]]
    heads = {"encoder_self": layers, "decoder_self": layers[:2], "cross": layers[:2]}
    model = deep(d_model=256, heads=heads)
    output = model.encoder.layers[0].self_attention.output
    assert output.weight.shape == (256, 128)
    assert deviation(output.weight) == pytest.approx(0.125 / math.sqrt(128 * 6), rel=0.03)


@pytest.mark.slow
def test_hundred_layers_learn():
    model = deep(encoder_layers=20, decoder_layers=80, recompute=True).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    loss, (source, lengths, target) = CrossEntropy(0.0), batch()
    target_in = torch.nn.functional.pad(target[:, :-1], (1, 0), value=1)
    losses = []
    for _ in range(3):
        batch_loss = loss(model(source, lengths, target_in), target).loss / target.numel()
        batch_loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(batch_loss.item())
    assert losses[0] == pytest.approx(math.log(V), rel=1e-5)  # the output matrix starts at 0
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < losses[0] - 0.01


def test_deep_yaml_has_narrow_layers_at_any_depth():
    node = {k: v for k, v in group_node("model", "deep").items() if not k.startswith("_")}
    config = ModelConfig(**{**node, "encoder_layers": 2, "decoder_layers": 60})
    with torch.device("meta"):
        model = build(config, vocabulary=100)
    assert len(model.decoder.layers) == 60
    assert n_parameters(model) == pytest.approx(2 * 0.198e6 + 60 * 0.265e6, rel=0.01)
