"""Contract of every choice of `positions=`, found by its yaml."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from omegaconf import OmegaConf
from torch import Tensor

from headwise.attention.build import AttentionFactory
from headwise.attention.positions import Positions
from headwise.attention.recorder import recorded_weights
from headwise.config.folders import group_choices, group_node
from headwise.config.instantiate import instantiate
from headwise.config.schema import ModelConfig
from headwise.model.parts import Parts
from headwise.model.transformer import Transformer

V = 13
CONFIG = ModelConfig("contract", 2, 2, 16, 2, 32, dropout=0.0, activation_dropout=0.0)
SETTINGS = {"data_dims": {"shape": [2, 2, 3]}}  # without data, which has the shape
CHOICES = pytest.mark.parametrize("choice", group_choices("positions"))


def build(choice: str, n_cls: int = 0, qk_width: int | None = None) -> Transformer:
    node = OmegaConf.create(group_node("positions", choice) | SETTINGS.get(choice, {}))
    positions = instantiate(node, "positions", Positions)
    nodes = {"attention": group_node("attention", "alpha_entmax")}
    factory = AttentionFactory(nodes, positions=positions)
    config = replace(CONFIG, cls_tokens=n_cls, qk_width=qk_width)
    return Transformer(config, V, V, True, factory, 1, Parts(positions=positions)).eval()


def batch() -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    source = torch.randint(4, V, (3, 6), generator=generator)
    target = torch.randint(4, V, (3, 5), generator=generator)
    return source, torch.tensor([6, 4, 2]), target


@pytest.mark.parametrize("qk_width", [None, 8])
@CHOICES
def test_cached_decoding_equals_uncached(choice: str, qk_width: int | None) -> None:
    model, (source, lengths, target) = build(choice, 2, qk_width), batch()
    memory, cache = model.encode(source, lengths), model.make_cache()
    whole = model.decode(target, memory)
    with torch.no_grad():
        steps = [model.decode(target[:, i : i + 1], memory, cache) for i in range(5)]
    torch.testing.assert_close(torch.cat(steps, dim=1), whole, rtol=1e-4, atol=1e-5)


@CHOICES
def test_other_rows_and_padding_change_nothing(choice: str) -> None:
    model, (source, lengths, target) = build(choice, n_cls=2), batch()
    together = model(source, lengths, target)
    for i, length in enumerate(lengths.tolist()):
        alone = model(source[i : i + 1, :length], lengths[i : i + 1], target[i : i + 1])
        torch.testing.assert_close(alone[0], together[i], rtol=1e-4, atol=1e-5)


@CHOICES
def test_recording_weights_changes_nothing(choice: str) -> None:
    model, pairs = build(choice, n_cls=2), batch()
    with recorded_weights(model):
        formed = model(*pairs)
    torch.testing.assert_close(model(*pairs), formed, rtol=1e-4, atol=1e-5)


@CHOICES
def test_order_of_tokens_changes_the_states(choice: str) -> None:
    model, (source, _, _) = build(choice), batch()
    lengths = torch.full((3,), 6)
    before = model.encode(source, lengths).states_BSD[:, -1]
    after = model.encode(source[:, [1, 0, 2, 3, 4, 5]], lengths).states_BSD[:, -1]
    assert torch.allclose(before, after, atol=1e-5) == (choice == "none")
