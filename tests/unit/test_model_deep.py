"""Very deep models: blocks, initial weights, grids of positions.

Child et al. 2019, equations 9 to 15, implemented independently for one sentence in float64.
Axes: N positions, D width, E head width.
"""

import dataclasses
import math

import pytest
import torch

from headwise.attention.build import AttentionFactory
from headwise.attention.positions import DataDimensions, Grid, Learned
from headwise.config.folders import composed, group_node
from headwise.config.register import typed
from headwise.config.schema import ModelConfig
from headwise.errors import ConfigError
from headwise.losses.loss import CrossEntropy
from headwise.model.activations import QuickGELU
from headwise.model.build import parts_of
from headwise.model.family import n_parameters
from headwise.model.init import Glorot
from headwise.model.parts import SINUSOIDAL, Parts
from headwise.model.scaled import Scaled
from headwise.model.transformer import Transformer

V = 13
SCALED = Scaled()
GRID = Grid(width=4, max_positions=64)
NO_DROPOUT = {"dropout": 0.0, "attention_dropout": 0.0, "activation_dropout": 0.0}
DEEP = ModelConfig("deep", 3, 2, 16, 2, 32, share_embeddings="none", **NO_DROPOUT)


def build(attention="softmax", vocabulary=V, positions=GRID, init=SCALED, **changes):
    config = dataclasses.replace(DEEP, **changes)
    torch.manual_seed(0)
    node = group_node("attention", attention)
    factory = AttentionFactory({"attention": node}, dropout=config.attention_dropout)
    parts = Parts(activation=QuickGELU, init=init, positions=positions)
    return Transformer(config, vocabulary, vocabulary, True, factory, 1, parts)


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
        out = torch.zeros_like(rows_ND)
        for i, row in enumerate(rows_ND):
            mean = row.sum() / len(row)
            variance = ((row - mean) ** 2).sum() / len(row)
            out[i] = (row - mean) / torch.sqrt(variance + 1e-6)
        return out * self.weights[f"{name}.weight"] + self.weights[f"{name}.bias"]

    def attention(self, name, read_ND, other_ND, causal):
        query, key, value = (
            self.linear(f"{name}.{part}", rows)
            for part, rows in (("query", read_ND), ("key", other_ND), ("value", other_ND))
        )
        head_dim = self.config.d_model // self.config.n_heads
        joined = torch.zeros_like(query)
        for head in range(self.config.n_heads):
            columns = slice(head * head_dim, (head + 1) * head_dim)
            for i in range(len(query)):
                last = i + 1 if causal else len(key)
                scores = key[:last, columns] @ query[i, columns] / math.sqrt(head_dim)
                powers = torch.exp(scores)
                for j in range(last):
                    joined[i, columns] += powers[j] / powers.sum() * value[j, columns]
        return self.linear(f"{name}.output", joined)

    def feed_forward(self, name, read_ND):
        inner = self.linear(f"{name}.inner", read_ND)
        return self.linear(f"{name}.outer", inner / (1 + torch.exp(-1.702 * inner)))

    def embed(self, side, ids):
        table = self.weights[f"{side}_embedding.token.weight"]
        row = self.weights[f"{side}_embedding.positions.row.weight"]
        column = self.weights[f"{side}_embedding.positions.column.weight"]
        width = GRID.width
        vectors = [row[math.floor(i / width)] + column[i % width] for i in range(len(ids))]
        return table[ids] + torch.stack(vectors)

    def logits(self, source, target):
        states = self.embed("source", source)
        if self.config.cls_tokens:
            states = torch.cat((self.weights["source_embedding.cls.weight"], states))
        for layer in range(self.config.encoder_layers):
            name = f"encoder.layers.{layer}"
            read = self.norm(f"{name}.self_residual.norm", states)
            a = self.attention(f"{name}.self_attention", read, read, causal=False)
            read = self.norm(f"{name}.feed_forward_residual.norm", states + a)
            b = self.feed_forward(f"{name}.feed_forward", read)
            states = states + (a + b)
        memory = self.norm("encoder.norm", states)
        states = self.embed("target", target)
        for layer in range(self.config.decoder_layers):
            name = f"decoder.layers.{layer}"
            read = self.norm(f"{name}.self_residual.norm", states)
            a = self.attention(f"{name}.self_attention", read, read, causal=True)
            read = self.norm(f"{name}.cross_residual.norm", states + a)
            c = self.attention(f"{name}.cross_attention", read, memory, causal=False)
            read = self.norm(f"{name}.feed_forward_residual.norm", states + a + c)
            b = self.feed_forward(f"{name}.feed_forward", read)
            states = states + (a + c + b)
        return self.norm("decoder.norm", states) @ self.weights["output.weight"].T


@pytest.mark.parametrize("n_cls", [0, 3])
def test_logits_match_the_formulas(n_cls):
    model = build(cls_tokens=n_cls).double().eval()
    generator = torch.Generator().manual_seed(3)
    for parameter in model.parameters():  # biases, norms and the output are no longer 0 and 1
        noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        parameter.data += 0.3 * noise
    source, target = [5, 7, 4, 12, 5, 9], [6, 11, 4, 8, 10]
    config = dataclasses.replace(DEEP, cls_tokens=n_cls)
    expected = Reference(model.state_dict(), config).logits(source, target)
    logits = model(torch.tensor([source]), torch.tensor([6]), torch.tensor([target]))
    torch.testing.assert_close(logits[0], expected, rtol=1e-10, atol=1e-10)


def test_quick_gelu():
    x = torch.linspace(-4, 4, 41, dtype=torch.float64, requires_grad=True)
    output = QuickGELU()(x)
    expected = [v / (1 + math.exp(-1.702 * v)) for v in x.tolist()]
    torch.testing.assert_close(output, torch.tensor(expected, dtype=torch.float64))
    assert torch.autograd.gradcheck(QuickGELU(), (x,))
    assert (output - torch.nn.functional.gelu(x)).abs().max() < 0.021


def test_positions_of_images_sum_row_column_and_channel():
    vectors = DataDimensions([2, 3, 4]).embedding(5)
    tables = [vectors.get_submodule(name).weight for name in ("row", "column", "channel")]
    pictures = [(r, c, k) for r in range(2) for c in range(3) for k in range(4)]
    expected = torch.stack([sum(t[i] for t, i in zip(tables, at, strict=True)) for at in pictures])
    torch.testing.assert_close(vectors(0, 24), expected)
    next_image = [21, 22, 23, 0, 1, 2]
    torch.testing.assert_close(vectors(21, 6), expected[next_image])
    with pytest.raises(ConfigError, match="shape must be rows, columns and channels"):
        DataDimensions([4, 4])


def test_attention_positions_use_the_stride_of_the_pattern():
    chosen = composed("positions=attention_dims", "pattern=strided", "pattern.stride=32")
    assert (chosen.positions.width, chosen.positions.max_positions) == (32, 1024)
    text = typed(composed("positions=data_dims"))
    with pytest.raises(ConfigError, match=r"positions\.shape must be .*; use attention_dims else"):
        parts_of(text)


# -- initial weights --------------------------------------------------------------------------


def deviation(weight):
    return float(weight.detach().double().std())


def test_scaled_weights_have_the_deviations_of_the_paper():
    width, inner, layers = 256, 1024, 3
    model = build(
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
    learned = build(positions=Learned(512), d_model=128).source_embedding.positions
    assert deviation(learned.table.weight) == pytest.approx(0.125 / math.sqrt(128), rel=0.03)
    scaled = build(positions=SINUSOIDAL, d_model=128).source_embedding
    glorot = build(positions=SINUSOIDAL, d_model=128, init=Glorot()).source_embedding
    ids = torch.full((1, 6), 5)
    for embedding, token_scale in ((scaled, 1.0), (glorot, math.sqrt(128))):
        tokens = embedding.token.weight[5] * token_scale
        added = embedding(ids)[0] - tokens
        ratio = float(added.detach().norm() / tokens.detach().norm()) / math.sqrt(len(added))
        assert ratio == pytest.approx(math.sqrt(0.5), rel=0.15)


def test_pruned_attention_is_scaled_by_its_width():
    layers = [[1], [1, 2], [2]]
    heads = {"encoder_self": layers, "decoder_self": layers[:2], "cross": layers[:2]}
    model = build(d_model=256, heads=heads)
    output = model.encoder.layers[0].self_attention.output
    assert output.weight.shape == (256, 128)
    assert deviation(output.weight) == pytest.approx(0.125 / math.sqrt(128 * 6), rel=0.03)


# -- whole models ------------------------------------------------------------------------------


@pytest.mark.slow
def test_hundred_layers_learn():
    model = build(encoder_layers=20, decoder_layers=80, recompute=True).train()
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
        factory = AttentionFactory({"attention": group_node("attention", "softmax")})
        model = Transformer(config, 100, 100, True, factory, seed=1)
    assert len(model.decoder.layers) == 60
    assert n_parameters(model) == pytest.approx(2 * 0.198e6 + 60 * 0.265e6, rel=0.01)
