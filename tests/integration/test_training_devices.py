"""Training with `trainer.compile`, and on a stand-in for a GPU, equals that on a CPU."""

import functools
import shutil
import sys

import numpy as np
import pytest
import torch
import torch._dynamo.testing

import standin_gpu
from command_line import composer, read_json, small_overrides, write_corpus
from headwise.config.register import group_choices, typed
from headwise.tasks.translation.batches import collate
from headwise.tasks.translation.corpus import EncodedSplit
from standin_gpu_jobs import run_job
from training_steps import UPDATES, VOCAB_SIZE, step_of
from triton_marks import HAS_TRITON, IS_INTERPRETED

SHORT = ["encoder_layers=1", "decoder_layers=1", "d_model=32", "d_ff=64"]
NO_DROPOUT = ["dropout=0", "attention_dropout=0", "activation_dropout=0"]
# rows, longest source and target
SIZES = ((8, 7, 9), (12, 11, 11), (5, 15, 23), (3, 31, 17))
ROWS = ((8, 20, 20), (5, 20, 20), (16, 20, 20))

COMPILER = shutil.which("g++") or shutil.which("clang++")

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("fresh_graphs")]


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
    config.scheduler = {"_target_": "headwise.train.optim.Constant"}
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
    monkeypatch.setattr("torch.compile", compile_graphs)
    assert_compiled_equals_plain(attention, SIZES)
    assert 1 <= graphs.frame_count <= 2


@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler")
def test_compiled_training_equals_plain_training():
    """One variant, since compiling takes a minute and treats all operators alike."""
    assert_compiled_equals_plain("alpha_entmax", ROWS)


# -- on a stand-in for a GPU ---------------------------------------------------------------------


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """Of the stand-in; it needs a C++ compiler on Linux and a torch without CUDA."""
    if COMPILER is None or sys.platform != "linux" or torch.version.cuda is not None:
        pytest.skip("no stand-in for a GPU here")
    return standin_gpu.build(tmp_path_factory.mktemp("standin"), COMPILER)


def assert_updates_match(library, cases, lengths):
    """Assert that updates match those of the CPU and do not wait, for a small vocabulary."""
    request = {"cases": cases, "lengths": lengths}
    for case, losses in zip(cases, run_job(library, "updates", request), strict=True):
        assert losses["cuda"] == pytest.approx(losses["cpu"], rel=1e-4), case
        assert not losses["waits"], (case, losses)


def test_updates_match_the_cpu_without_host_waits(library):
    assert_updates_match(library, UPDATES, [[9, 7, 11, 3], [30, 26, 4], [17, 17]])


needs_interpreter = pytest.mark.skipif(
    not (HAS_TRITON and IS_INTERPRETED), reason="no interpreter (make test-triton)"
)


@pytest.mark.triton
@needs_interpreter
def test_kernels_match_the_cpu_without_host_waits(library):
    heads = "model.n_heads=2"
    cases = [["attention=alpha_entmax", heads], ["loss=entmax15", heads]]
    assert_updates_match(library, cases, [[3, 4], [5, 6]])
    sizes = {"stride": 4, "summary_cells": 1, "block_sparse_from": 1}
    case = ["attention=alpha_entmax", "pattern=fixed", heads]
    case += [f"pattern.{name}={size}" for name, size in sizes.items()]
    assert_updates_match(library, [case], [[20, 17], [23, 24]])


def test_training_benchmark_runs(library, tmp_path):
    results = run_job(library, "training_benchmark", str(tmp_path / "results.json"))
    assert results["is_deterministic"]  # as in training
    assert not [line for line in results["waits"] if line.startswith(("train/step", "model/"))]
    rows = results["rows"]
    names = ["softmax", "entmax15", "alpha_entmax"]
    assert [(row["attention"], row["compiled"]) for row in rows] == [
        (name, compiled) for compiled in (False, True) for name in names
    ]
    for row in rows:
        assert min(row["tokens_per_second"], row["update_ms"], row["host_ms"]) > 0
        assert row["to_softmax"] == 1 or row["attention"] != "softmax"
    softmax, _, learned = (row["own_bytes"] for row in rows[:3])
    n_alphas = 3 * 4  # attentions, heads
    assert learned - softmax == 3 * 4 * n_alphas  # with two moments, in float32


def test_commands_run_on_the_device(library, tmp_path):
    write_corpus(tmp_path / "text")
    settings = ("attention=alpha_entmax", "trainer.precision=bf16")
    train = ["train", *small_overrides(tmp_path, *settings)]
    training = run_job(library, "commands", [[*train, "trainer.device=auto"]])
    assert (training["codes"], "trainer=gpu has larger ones" in training["output"]) == ([0], True)
    (run,) = (one.parent for one in tmp_path.glob("outputs/**/results.json"))
    results = read_json(run / "results.json")
    assert results["scores"]
    lines = [
        [*train, "trainer.device=cuda", "trainer.max_updates=8"],
        ["evaluate", f"run={run}", "device=cuda", "data.test=[valid]"],
        ["analyze", f"run={run}", "device=cuda"],
        ["prune", f"run={run}", "device=cuda"],
    ]
    reading = run_job(library, "commands", lines)
    assert reading["codes"] == [0] * len(lines)
    assert "trainer=gpu has larger ones" not in reading["output"]
    # only the search waits, for finished translations; the model does not
    assert not {line for line in reading["waits"] if line.startswith(("model/", "attention/"))}
