"""What training and the commands do on a GPU, where a stand-in takes its place."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import standin_gpu
from command_line import read_json, small_overrides, write_corpus
from standin_gpu_jobs import run_job
from training_steps import LOSSES_WITH_HOST_WAIT, VARIANTS
from triton_marks import HAS_TRITON, IS_INTERPRETED

COMPILER = shutil.which("g++") or shutil.which("clang++")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(COMPILER is None or sys.platform != "linux", reason="no C++ compiler here"),
    pytest.mark.skipif(torch.version.cuda is not None, reason="this torch has a GPU of its own"),
]

UPDATES = [
    *VARIANTS,
    *([f"attention={name}", "pattern=strided"] for name in ("softmax", "alpha_entmax")),
    *([f"attention={name}", "pattern=fixed"] for name in ("softmax", "tanh")),
    ["attention=alpha_entmax", "scaling=length"],
    ["attention=alpha_entmax", "model.recompute=true"],
    ["attention=alpha_entmax", "gates=hard_concrete"],
    ["positions=learned", "model.register_tokens=4"],
    ["model=deep", "model.encoder_layers=2", "model.decoder_layers=2", "model.d_model=32"],
    ["optimizer=adamw", "trainer.clip_norm=1"],
    *([f"loss={name}"] for name in LOSSES_WITH_HOST_WAIT),
]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return standin_gpu.build(tmp_path_factory.mktemp("standin"), COMPILER)


def check(library: Path, cases: Sequence[Sequence[str]], lengths: Sequence[Sequence[int]]) -> None:
    """That updates give what they give on the CPU, and that none waits: the words are few."""
    order = {"cases": cases, "lengths": lengths}
    for case, found in zip(cases, run_job(library, "updates", order), strict=True):
        assert found["cuda"] == pytest.approx(found["cpu"], rel=1e-4), case
        assert not found["waits"], (case, found)


def test_updates_are_those_of_the_cpu_and_do_not_wait(library: Path) -> None:
    check(library, UPDATES, [[9, 7, 11, 3], [30, 26, 4], [17, 17]])


needs_interpreter = pytest.mark.skipif(
    not (HAS_TRITON and IS_INTERPRETED), reason="no interpreter (make test-triton)"
)


@pytest.mark.triton
@needs_interpreter
def test_kernels_give_the_same_and_do_not_wait(library: Path) -> None:
    check(library, [["attention=alpha_entmax"], ["loss=entmax15"]], [[3, 4], [5, 6]])


@pytest.mark.triton
@needs_interpreter
def test_what_measures_kernels_goes_through(library: Path, tmp_path: Path) -> None:
    lines = {"gpu_attention": ["--quick"], "gpu_rows": []}
    found = run_job(library, "benchmarks", {"folder": str(tmp_path), "lines": lines})["results"]
    attention = found["gpu_attention"]["rows"]
    assert len(attention) == 4
    for row in attention:
        assert 0 < row["live"] <= 1
        assert len(row["ratios"]) >= 8  # of what failed there is none
        assert set(row["ratios"].values()) == {1}, row
    rows = found["gpu_rows"]["rows"]
    assert [len(row["ratios"]) for row in rows] == [6, 4]
    assert all(set(row["ratios"].values()) == {1} for row in rows)


def test_what_measures_training_goes_through(library: Path, tmp_path: Path) -> None:
    lines = {"gpu_training": ["--model", "tiny", "--quick", "--compile"]}
    found = run_job(library, "benchmarks", {"folder": str(tmp_path), "lines": lines})
    assert found["is_deterministic"]  # as training asks for
    assert not [line for line in found["waits"] if line.startswith(("train/step", "model/"))]
    rows = found["results"]["gpu_training"]["rows"]
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


def test_a_run_and_what_reads_it(library: Path, tmp_path: Path) -> None:
    write_corpus(tmp_path / "text")
    chosen = ("attention=alpha_entmax", "trainer.precision=bf16")
    train = ["train", *small_overrides(tmp_path, *chosen)]
    first: dict[str, Any] = run_job(library, "commands", [[*train, "trainer.device=auto"]])
    assert (first["codes"], "trainer=gpu has larger ones" in first["output"]) == ([0], True)
    (run,) = (one.parent for one in tmp_path.glob("outputs/**/results.json"))
    results = read_json(run / "results.json")
    assert results["scores"]
    lines: list[list[str]] = [
        [*train, "trainer.device=cuda", "trainer.max_updates=8"],
        ["evaluate", f"run={run}", "device=cuda", "data.test=[valid]"],
        ["analyze", f"run={run}", "device=cuda"],
        ["prune", f"run={run}", "device=cuda"],
    ]
    told: dict[str, Any] = run_job(library, "commands", lines)
    assert told["codes"] == [0] * len(lines)
    assert "trainer=gpu has larger ones" not in told["output"]
    # a search tells the host what has ended; what the model computes does not ask it
    assert not {line for line in told["waits"] if line.startswith(("model/", "attention/"))}
