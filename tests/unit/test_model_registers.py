"""Learned vectors in front of the source.

Letters: B batch, S source length, T target length, D width, H heads.
"""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor

from headwise.attention.build import AttentionFactory
from headwise.attention.positions import Grid, Learned, Positions
from headwise.config.folders import group_node
from headwise.config.schema import ModelConfig
from headwise.errors import DataError
from headwise.model.family import n_parameters
from headwise.model.init import Glorot, Init
from headwise.model.parts import GLOROT, SINUSOIDAL, Parts
from headwise.model.scaled import Scaled
from headwise.model.transformer import Transformer

M, V, D = 3, 13, 16
PLAIN = ModelConfig("registers", 2, 2, D, 2, 32, dropout=0.0, activation_dropout=0.0)


def build(
    attention: str = "softmax",
    positions: Positions = SINUSOIDAL,
    init: Init = GLOROT,
    **changes: object,
) -> Transformer:
    config = dataclasses.replace(PLAIN, register_tokens=M)
    config = dataclasses.replace(config, **changes)  # type: ignore[arg-type]
    torch.manual_seed(0)
    factory = AttentionFactory({"attention": group_node("attention", attention)})
    return Transformer(config, V, V, True, factory, 1, Parts(init=init, positions=positions)).eval()


def batch() -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    source = torch.randint(4, V, (3, 6), generator=generator)
    target = torch.randint(4, V, (3, 5), generator=generator)
    return source, torch.tensor([6, 4, 1]), target


@pytest.mark.parametrize("registers", [0, M])
def test_registers_take_their_places_from_the_longest_source(registers: int) -> None:
    model = build("linformer", register_tokens=registers)
    longest = group_node("attention", "linformer")["max_length"] - registers
    assert model.max_source == longest
    source = torch.full((1, longest), 4)
    model.encode(source, torch.tensor([longest]))
    with pytest.raises(DataError, match="max_length"):
        model.encode(torch.cat((source, source[:, :1]), dim=1), torch.tensor([longest + 1]))


def test_registers_are_one_parameter_and_nothing_else_starts_otherwise() -> None:
    without = dict(build(register_tokens=0).named_parameters())
    with_them = dict(build().named_parameters())
    assert set(with_them) - set(without) == {"source_embedding.registers.weight"}
    assert with_them["source_embedding.registers.weight"].shape == (M, D)
    assert n_parameters(build()) - n_parameters(build(register_tokens=0)) == M * D
    for name, weight in without.items():
        assert torch.equal(weight, with_them[name]), name


@pytest.mark.parametrize(("init", "scale"), [(Glorot(), 4.0), (Scaled(), 1.0)])
def test_registers_enter_as_tokens_do_but_without_a_position(init: Init, scale: float) -> None:
    model = build(init=init, share_embeddings="none", positions=Grid())
    seen: list[Tensor] = []
    model.encoder.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    source, lengths, _ = batch()
    model.encode(source, lengths)
    registers = model.source_embedding.registers
    wanted = registers.weight * scale
    for row in seen[0]:
        torch.testing.assert_close(row[:M], wanted, rtol=0, atol=0)
    for i in range(1, 6):  # the second word has position 1
        word = model.source_embedding(source[:, i : i + 1], i)[:, 0]
        torch.testing.assert_close(seen[0][:, M + i], word, rtol=0, atol=0)


def test_the_last_learned_position_is_that_of_the_last_word() -> None:
    model, (source, lengths, target) = build(positions=Learned(6)), batch()
    assert model(source, lengths, target).isfinite().all()
