"""Training and commands on a stand-in for a GPU."""

import shutil
import sys

import pytest
import torch

import standin_gpu
from command_line import read_json, small_overrides, write_corpus
from standin_gpu_jobs import run_job
from training_steps import UPDATES
from triton_marks import HAS_TRITON, IS_INTERPRETED

COMPILER = shutil.which("g++") or shutil.which("clang++")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(COMPILER is None or sys.platform != "linux", reason="no C++ compiler here"),
    pytest.mark.skipif(torch.version.cuda is not None, reason="this torch supports CUDA"),
]


@pytest.fixture(scope="module")
def library(tmp_path_factory):
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


@pytest.mark.triton
@needs_interpreter
def test_kernel_benchmarks_run(library, tmp_path):
    lines = {"gpu_attention": ["--quick"], "gpu_rows": []}
    results = run_job(library, "benchmarks", {"folder": str(tmp_path), "lines": lines})["results"]
    attention = results["gpu_attention"]["rows"]
    assert [row.get("pattern") for row in attention] == [None] * 4 + ["strided"]
    for row in attention:
        assert 0 < row["live"] <= 1
        assert len(row["ratios"]) >= 8  # failed ones have none
        assert set(row["ratios"].values()) == {1}, row
    rows = results["gpu_rows"]["rows"]
    assert [len(row["ratios"]) for row in rows] == [6, 4]
    assert all(set(row["ratios"].values()) == {1} for row in rows)


def test_training_benchmark_runs(library, tmp_path):
    lines = {"gpu_training": ["--model", "tiny", "--quick", "--compile"]}
    results = run_job(library, "benchmarks", {"folder": str(tmp_path), "lines": lines})
    assert results["is_deterministic"]  # as in training
    assert not [line for line in results["waits"] if line.startswith(("train/step", "model/"))]
    rows = results["results"]["gpu_training"]["rows"]
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
