"""CLS tokens: learned vectors in front of the source.

Axes: B batch, S source length, T target length, D width, H heads.
"""

import dataclasses

import pytest
import torch

from headwise.attention.build import AttentionFactory
from headwise.attention.positions import Grid, Learned
from headwise.config.folders import group_node
from headwise.config.schema import ModelConfig
from headwise.errors import DataError
from headwise.model.init import Glorot
from headwise.model.parts import GLOROT, SINUSOIDAL, Parts
from headwise.model.scaled import Scaled
from headwise.model.transformer import Transformer

M, V, D = 3, 13, 16
PLAIN = ModelConfig("cls", 2, 2, D, 2, 32, dropout=0.0, activation_dropout=0.0)


def build(attention="softmax", positions=SINUSOIDAL, init=GLOROT, **changes):
    config = dataclasses.replace(PLAIN, cls_tokens=M)
    config = dataclasses.replace(config, **changes)
    torch.manual_seed(0)
    factory = AttentionFactory({"attention": group_node("attention", attention)})
    return Transformer(config, V, V, True, factory, 1, Parts(init=init, positions=positions)).eval()


def batch():
    generator = torch.Generator().manual_seed(0)
    source = torch.randint(4, V, (3, 6), generator=generator)
    target = torch.randint(4, V, (3, 5), generator=generator)
    return source, torch.tensor([6, 4, 1]), target


@pytest.mark.parametrize("n_cls", [0, M])
def test_cls_tokens_shorten_the_longest_source(n_cls):
    model = build("linformer", cls_tokens=n_cls)
    longest = group_node("attention", "linformer")["max_length"] - n_cls
    assert model.max_source == longest
    source = torch.full((1, longest), 4)
    model.encode(source, torch.tensor([longest]))
    with pytest.raises(DataError, match="max_length"):
        model.encode(torch.cat((source, source[:, :1]), dim=1), torch.tensor([longest + 1]))


@pytest.mark.parametrize(("init", "scale"), [(Glorot(), 4.0), (Scaled(), 1.0)])
def test_cls_tokens_are_scaled_as_tokens_but_have_no_position(init, scale):
    model = build(init=init, share_embeddings="none", positions=Grid())
    encoder_inputs = []
    model.encoder.register_forward_pre_hook(lambda _, inputs: encoder_inputs.append(inputs[0]))
    source, lengths, _ = batch()
    model.encode(source, lengths)
    cls = model.source_embedding.cls
    expected = cls.weight * scale
    for row in encoder_inputs[0]:
        torch.testing.assert_close(row[:M], expected, rtol=0, atol=0)
    for i in range(1, 6):  # the second token has position 1
        token = model.source_embedding(source[:, i : i + 1], i)[:, 0]
        torch.testing.assert_close(encoder_inputs[0][:, M + i], token, rtol=0, atol=0)


def test_cls_tokens_use_no_learned_position():
    model, (source, lengths, target) = build(positions=Learned(6)), batch()
    assert model(source, lengths, target).isfinite().all()
