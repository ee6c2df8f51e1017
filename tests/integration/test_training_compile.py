"""`trainer.compile` gives the same training with every variant, also with graph breaks."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Iterator

import numpy as np
import pytest
import torch
import torch._dynamo.testing

from command_line import composer
from headwise.config.folders import group_choices
from headwise.config.register import typed
from headwise.config.schema import Config
from headwise.tasks.translation.batches import Batch, collate
from headwise.tasks.translation.store import EncodedSplit
from training_steps import VOCAB_SIZE, step_of

SHORT = ["encoder_layers=1", "decoder_layers=1", "d_model=32", "d_ff=64"]
NO_DROPOUT = ["dropout=0", "attention_dropout=0", "activation_dropout=0"]
SIZES = ((8, 7, 9), (12, 11, 11), (5, 15, 23), (3, 31, 17))  # rows, source, target

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def fresh_graphs() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def config_of(attention: str) -> Config:
    model = [f"model.{change}" for change in (*SHORT, *NO_DROPOUT)]
    with composer() as compose:
        return typed(compose([f"attention={attention}", "model=tiny", *model]))


def batches() -> list[Batch]:
    """Batches with different numbers of rows and lengths."""
    generator = np.random.default_rng(1)
    lengths = generator.integers(1, 21, (2, 30))
    sides = ([generator.integers(4, VOCAB_SIZE, n).tolist() for n in side] for side in lengths)
    split = EncodedSplit.from_lists(*sides)
    parts = [np.arange(0, 8), np.arange(8, 13), np.arange(13, 29)]
    return [collate(split, rows.astype(np.int32), (24, 24)) for rows in parts]


def trained(config: Config, compiled: bool) -> tuple[list[float], dict[str, torch.Tensor]]:
    """Summed losses of some updates and the final weights."""
    config.trainer.compile, config.trainer.precision = compiled, "fp32"
    config.optimizer = {"_target_": "torch.optim.SGD", "lr": 0.5}
    config.scheduler = {"_target_": "headwise.train.schedule.Constant"}
    torch.manual_seed(1)  # initial values of α
    step = step_of(config, torch.device("cpu"))
    losses = []
    for update, batch in enumerate(batches(), start=1):
        step(update, [batch])
        losses.append(float(step.window[0]))
    return losses, step.model.state_dict()


def assert_compiled_equals_plain(attention: str) -> None:
    plain, compiled = (trained(config_of(attention), compiled) for compiled in (False, True))
    assert plain[0] == pytest.approx(compiled[0], rel=1e-5)
    assert list(plain[1]) == list(compiled[1])  # names of the uncompiled module
    for name, weights in plain[1].items():
        torch.testing.assert_close(compiled[1][name], weights, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("attention", group_choices("attention"))
def test_training_with_graphs_equals_plain_training(
    attention: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the eager backend, since compiling takes minutes."""
    compile_graphs = functools.partial(torch.compile, backend="eager")
    monkeypatch.setattr("headwise.train.step.torch.compile", compile_graphs)
    assert_compiled_equals_plain(attention)


@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler")
def test_compiled_training_equals_plain_training() -> None:
    """One variant, since compiling takes a minute and treats all operators alike."""
    assert_compiled_equals_plain("alpha_entmax")


@pytest.mark.parametrize("attention", group_choices("attention"))
def test_two_graphs_serve_all_sizes(attention: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph takes a minute to compile: one of the first sizes, then one of all others."""
    graphs = torch._dynamo.testing.CompileCounter()
    compile_graphs = functools.partial(torch.compile, backend=graphs)
    monkeypatch.setattr("headwise.train.step.torch.compile", compile_graphs)
    config = config_of(attention)
    config.trainer.compile, config.trainer.precision = True, "fp32"
    step = step_of(config, torch.device("cpu"))
    generator = np.random.default_rng(1)
    for update, (n_rows, *lengths) in enumerate(SIZES, start=1):
        sides = (generator.integers(4, VOCAB_SIZE, (n_rows, n)).tolist() for n in lengths)
        split = EncodedSplit.from_lists(*sides)
        step(update, [collate(split, np.arange(n_rows, dtype=np.int32))])
    assert graphs.frame_count <= 2
