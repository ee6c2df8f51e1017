"""The Transformer around the attention sites."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from headwise.attention.build import AttentionFactory
from headwise.config_dir import group_choices, group_node
from headwise.errors import ConfigError, DataError
from headwise.model.transformer import Transformer, n_parameters
from headwise.schema import ModelConfig

SMALL = ModelConfig("test", 2, 3, 16, 2, 32, dropout=0.0, activation_dropout=0.0)
V = 13


def build(config: ModelConfig = SMALL, attention: str = "softmax", seed: int = 1) -> Transformer:
    factory = AttentionFactory({"attention": group_node("attention", attention)})
    return Transformer(config, V, V, True, factory, seed).eval()


def batch() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    source = torch.randint(4, V, (3, 6), generator=generator)
    target = torch.randint(4, V, (3, 5), generator=generator)
    return source, torch.tensor([6, 4, 2]), target


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("positions", ["sinusoidal", "learned"])
def test_shapes_weights_and_padding(norm: str, positions: str) -> None:
    model = build(dataclasses.replace(SMALL, norm=norm, positions=positions))
    source, lengths, target = batch()
    output = model(source, lengths, target, need_weights=True)
    assert output.logits_BTV.shape == (3, 5, V)
    assert output.weights is not None
    assert [len(output.weights[s]) for s in ("encoder_self", "decoder_self", "cross")] == [2, 3, 3]
    assert output.weights["cross"][0].shape == (3, 2, 5, 6)
    longer = torch.nn.functional.pad(source, (0, 4))
    padded = model(longer, lengths, target).logits_BTV
    torch.testing.assert_close(padded, output.logits_BTV, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("tiny", (2, 2, 128, 4, 512)),
        ("small", (3, 3, 256, 4, 1024)),
        ("base", (6, 6, 512, 8, 2048)),
        ("big", (6, 6, 1024, 16, 4096)),
    ],
)
def test_named_sizes(name: str, sizes: tuple[int, ...]) -> None:
    node = group_node("model", name)
    keys = ("encoder_layers", "decoder_layers", "d_model", "n_heads", "d_ff")
    assert tuple(node[key] for key in keys) == sizes
    assert name in group_choices("model")


def test_base_has_the_parameters_of_the_paper_and_one_alpha_a_head() -> None:
    config = ModelConfig("base", 6, 6, 512, 8, 2048)
    with torch.device("meta"):
        dense, sparse = build(config, "softmax"), build(config, "alpha_entmax")
    # 6 encoder layers of 3.15M, 6 decoder layers of 4.2M, the table of 13 pieces
    assert n_parameters(dense) == pytest.approx(44.1e6, rel=0.01)
    assert n_parameters(sparse) - n_parameters(dense) == 3 * 6 * 8


def test_sharing_of_embeddings() -> None:
    everything = build()
    assert everything.source_embedding.token is everything.target_embedding.token
    assert everything.output.weight is everything.target_embedding.token.weight
    decoder = build(dataclasses.replace(SMALL, share_embeddings="decoder"))
    assert decoder.source_embedding.token is not decoder.target_embedding.token
    assert decoder.output.weight is decoder.target_embedding.token.weight
    none = build(dataclasses.replace(SMALL, share_embeddings="none"))
    assert none.output.weight is not none.target_embedding.token.weight


def test_two_vocabularies_cannot_share_one_table() -> None:
    factory = AttentionFactory({"attention": group_node("attention", "softmax")})
    with pytest.raises(ConfigError, match="share_embeddings"):
        Transformer(SMALL, V, V, False, factory, 1)


def test_variants_start_from_the_same_projections() -> None:
    dense = dict(build(attention="softmax", seed=5).named_parameters())
    torch.manual_seed(77)
    sparse = dict(build(attention="alpha_entmax", seed=5).named_parameters())
    for name, weight in dense.items():
        assert torch.equal(weight, sparse[name]), name
    other = dict(build(attention="softmax", seed=6).named_parameters())
    name = "encoder.layers.0.attention.query.weight"
    assert not torch.equal(dense[name], other[name])


def test_positions_go_on_beyond_the_table_or_are_refused() -> None:
    sinusoidal = build(dataclasses.replace(SMALL, max_positions=4))
    source, lengths, target = batch()
    wide = build(dataclasses.replace(SMALL, max_positions=64))
    torch.testing.assert_close(
        sinusoidal(source, lengths, target).logits_BTV, wide(source, lengths, target).logits_BTV
    )
    learned = build(dataclasses.replace(SMALL, max_positions=4, positions="learned"))
    with pytest.raises(DataError, match="max_positions=4"):
        learned(source, lengths, target)


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"n_heads": 3}, "model.n_heads"),
        ({"d_model": 0}, "model.d_model"),
        ({"dropout": 1.0}, "model.dropout"),
        ({"norm": "middle"}, "model.norm"),
        ({"positions": "rotary"}, "model.positions"),
        ({"activation": "rel"}, "relu"),
        ({"share_embeddings": "al"}, "all"),
    ],
)
def test_what_cannot_be_built_is_refused_by_key(change: dict[str, object], key: str) -> None:
    with pytest.raises(ConfigError, match=key):
        build(dataclasses.replace(SMALL, **change))  # type: ignore[arg-type]
