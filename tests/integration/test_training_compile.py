"""`trainer.compile` gives the same training with every variant, also with graph breaks."""

import functools
import shutil

import numpy as np
import pytest
import torch
import torch._dynamo.testing

from command_line import composer
from headwise.config.folders import group_choices
from headwise.config.register import typed
from headwise.tasks.translation.batches import collate
from headwise.tasks.translation.store import EncodedSplit
from training_steps import VOCAB_SIZE, step_of

SHORT = ["encoder_layers=1", "decoder_layers=1", "d_model=32", "d_ff=64"]
NO_DROPOUT = ["dropout=0", "attention_dropout=0", "activation_dropout=0"]
Sizes = tuple[tuple[int, int, int], ...]  # rows, longest source and target
SIZES = ((8, 7, 9), (12, 11, 11), (5, 15, 23), (3, 31, 17))
ROWS = ((8, 20, 20), (5, 20, 20), (16, 20, 20))

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def fresh_graphs():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def config_of(attention):
    model = [f"model.{change}" for change in (*SHORT, *NO_DROPOUT)]
    with composer() as compose:
        return typed(compose([f"attention={attention}", "model=tiny", *model]))


def batches(sizes):
    """Batches with padding."""
    generator = np.random.default_rng(1)
    made = []
    for n_rows, *longest in sizes:
        lengths = ([most, *generator.integers(1, most, n_rows - 1)] for most in longest)
        sides = ([generator.integers(4, VOCAB_SIZE, n).tolist() for n in side] for side in lengths)
        split = EncodedSplit.from_lists(*sides)
        made.append(collate(split, np.arange(n_rows, dtype=np.int32)))
    return made


def trained(config, compiled, sizes):
    """Summed losses of some updates and the final weights."""
    config.trainer.compile, config.trainer.precision = compiled, "fp32"
    config.optimizer = {"_target_": "torch.optim.SGD", "lr": 0.5}
    config.scheduler = {"_target_": "headwise.train.schedule.Constant"}
    torch.manual_seed(1)  # initial values of α
    step = step_of(config, torch.device("cpu"))
    losses = []
    for update, batch in enumerate(batches(sizes), start=1):
        step(update, [batch])
        losses.append(float(step.window[0]))
    return losses, step.model.state_dict()


def assert_compiled_equals_plain(attention, sizes):
    plain, compiled = (trained(config_of(attention), compiled, sizes) for compiled in (False, True))
    assert plain[0] == pytest.approx(compiled[0], rel=1e-5)
    assert list(plain[1]) == list(compiled[1])  # names of the uncompiled module
    for name, weights in plain[1].items():
        torch.testing.assert_close(compiled[1][name], weights, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("attention", group_choices("attention"))
def test_training_with_graphs_equals_plain_training(attention, monkeypatch):
    """With an eager backend, as a graph takes a minute to compile, and two serve all sizes.

    The first is of the first sizes, the second of all others.
    """
    graphs = torch._dynamo.testing.CompileCounter()
    compile_graphs = functools.partial(torch.compile, backend=graphs)
    monkeypatch.setattr("headwise.train.step.torch.compile", compile_graphs)
    assert_compiled_equals_plain(attention, SIZES)
    assert 1 <= graphs.frame_count <= 2


@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler")
def test_compiled_training_equals_plain_training():
    """One variant, since compiling takes a minute and treats all operators alike."""
    assert_compiled_equals_plain("alpha_entmax", ROWS)
