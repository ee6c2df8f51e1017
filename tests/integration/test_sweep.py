"""Several points in one command."""

from __future__ import annotations

import gc
import signal
import weakref
from pathlib import Path
from typing import Any

import pytest

from command_line import (
    CommandLine,
    assert_rejected,
    read_json,
    run_folders,
    small_overrides,
    write_corpus,
)
from headwise.commands.sweep import Sweep
from headwise.commands.train import Outcome
from headwise.errors import DataError
from headwise.runs.results import Results
from headwise.track.base import NullTracker
from training_runs import Runs

pytestmark = pytest.mark.slow


@pytest.fixture
def sweep(tmp_path: Path) -> list[str]:
    """The common part of a sweep's command line."""
    write_corpus(tmp_path / "text")
    own = [o for o in small_overrides(tmp_path) if not o.startswith("tokenizer.vocab_size")]
    return ["-m", *own]


def checkpoints(outputs: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in outputs.glob("*/*/checkpoints/*.pt")}


def table(out: str) -> list[str]:
    lines = out.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("means over seeds")) + 1
    head, _, *rows = lines[start : lines.index("", start)]
    return [head, *rows]


def test_jobs_have_a_table(headwise: CommandLine, sweep: list[str], tmp_path: Path) -> None:
    points = ["tokenizer.vocab_size=60", "attention=softmax,alpha_entmax", "seed=1,2"]
    ended = headwise.ok("train", *sweep, *points)
    folders = run_folders(tmp_path / "outputs")
    assert len(folders) == 4
    seeds = [read_json(f / "results.json")["seed"] for f in folders]
    assert sorted(seeds) == [1, 1, 2, 2]
    head, *rows = table(ended.out)
    assert head.split(" | ")[1:5] == ["BLEU valid", "BLEU test_a", "BLEU test_b", "runs"]
    names_and_runs = [row.split(" | ")[::4][:2] for row in rows]
    assert names_and_runs == [["| softmax", "2"], ["| alpha_entmax", "2"]]
    before = checkpoints(tmp_path / "outputs")
    again = headwise("train", *sweep, *points)
    assert (again.code, table(again.out)) == (0, [head, *rows])
    assert checkpoints(tmp_path / "outputs") == before
    beside = {path.name for path in (tmp_path / "outputs").iterdir()}
    assert beside == {"default", "sweeps"}


def test_points_that_only_say_what_they_would_do_have_not_failed(
    headwise: CommandLine, sweep: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ended = headwise.ok("train", *sweep, "attention=softmax,alpha_entmax", "dry_run=true")
    assert ended.out.count("FLOP") >= 2
    assert "failed" not in ended.out
    left = [path.name for path in (tmp_path / "outputs").rglob("*") if path.is_file()]
    assert left == ["multirun.yaml"]  # Hydra's


def test_a_failing_point_stops_no_other_and_is_tried_again(
    headwise: CommandLine, sweep: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    points = ["tokenizer.vocab_size=5000,60"]  # the first cannot be reached
    ended = headwise("train", *sweep, *points)
    assert (ended.code, "Traceback" in ended.err) == (1, False)
    assert ended.err.count("headwise: tokenizer.vocab_size=5000 cannot be reached") == 1
    (failed,) = [line for line in ended.out.splitlines() if "ConfigError: " in line]
    assert "tokenizer.vocab_size=5000: ConfigError: tokenizer.vocab_size=5000 cannot" in failed
    assert [row.split(" | ")[4] for row in table(ended.out)[1:]] == ["0 (1 failed)", "1"]
    (left,) = (tmp_path / "outputs").glob("*/*/error.json")
    content = read_json(left)
    assert (content["error"], (left.parent / "config.yaml").is_file()) == ("ConfigError", True)
    assert "cannot be reached" in content["message"]
    assert "tokenizer.vocab_size=5000" in content["overrides"]

    begun: list[str] = []
    from headwise.tasks.translation import prepare_corpus as real

    def seen(corpus: Any, config: Any, *arguments: Any, **options: Any) -> Any:
        begun.append(config.vocab_size)
        return real(corpus, config, *arguments, **options)

    monkeypatch.setattr("headwise.tasks.translation.prepare_corpus", seen)
    assert headwise("train", *sweep, *points).code == 1
    assert begun == [5000], "the finished point is not begun again, the failed one is"


def test_a_nan_loss_fails_a_job(headwise: CommandLine, sweep: list[str], tmp_path: Path) -> None:
    points = ["tokenizer.vocab_size=60", "optimizer.lr=1e30,1e-3", "scheduler=constant"]
    ended = headwise("train", *sweep, *points, "trainer.max_updates=4", "norm=post")
    assert ended.code == 1, ended
    (left,) = (tmp_path / "outputs").glob("*/*/error.json")
    overrides = read_json(left)["overrides"]
    assert any(override.startswith("optimizer.lr=1e+30") for override in overrides)
    assert (left.parent / "config.yaml").is_file(), "in the folder of the run itself"
    assert sum((f / "results.json").is_file() for f in run_folders(tmp_path / "outputs")) == 1


def test_wrong_choices_run_none(headwise: CommandLine, sweep: list[str], tmp_path: Path) -> None:
    ended = headwise("train", *sweep, "attention=softmax,sofmax")
    assert_rejected(ended, 2, "Did you mean attention=softmax?")
    assert run_folders(tmp_path / "outputs") == []


def test_points_share_a_group_end_their_tracker_and_free_their_model(
    headwise: CommandLine, sweep: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    groups: list[str | None] = []
    ends: list[str] = []
    models: list[weakref.ref[Any]] = []
    alive: list[int] = []

    class Fake(NullTracker):
        def finish(self, status: str) -> None:
            ends.append(status)

    def make_tracker(config: Any, folder: Path, group: str | None, _: Any) -> Fake:
        gc.collect()
        alive.append(sum(model() is not None for model in models))
        assert len(ends) == len(groups), "the point before has ended its tracker"
        groups.append(group)
        return Fake()

    from headwise.tasks.translation import build_model as real

    def build(*arguments: Any) -> Any:
        model = real(*arguments)
        models.append(weakref.ref(model))
        return model

    monkeypatch.setattr("headwise.commands.train.make_tracker", make_tracker)
    monkeypatch.setattr("headwise.tasks.translation.build_model", build)
    # the second fails with the model in hand, the third must find the memory free
    ended = headwise(
        "train", *sweep, "tokenizer.vocab_size=60", "scheduler=constant", "norm=post",
        "trainer.max_updates=4", "optimizer.lr=1e-3,1e30,1e-4",
    )  # fmt: skip
    assert ended.code == 1
    assert ends == ["finished", "failed", "finished"]
    assert alive == [0, 0, 0]
    (name,) = set(groups)
    assert f"sweeps/{name}.md" in ended.out


def test_interrupting_saves_the_point_and_ends_the_sweep(tmp_path: Path) -> None:
    runs = Runs(tmp_path)
    arguments = ["-m", *runs.arguments("outputs", {"seed": "1,2"})]
    ended = runs.wait(runs.start(arguments, signal_at=("record", 4, signal.SIGINT)))
    assert ended.code == 130, ended.output
    assert "Give the same command again to resume." in ended.output
    assert "SIGINT: stopping after this update" in ended.output
    assert "0 (1 interrupted)" in ended.output
    assert "failed" not in ended.output
    (stopped,) = run_folders(tmp_path / "outputs")  # the second point was never begun
    assert (stopped / "checkpoints" / "last.pt").is_file()
    assert not (stopped / "error.json").exists()
    ended = runs.wait(runs.start(arguments))
    assert ended.code == 0, ended.output
    assert f"resuming in {stopped}" in ended.output
    assert len(run_folders(tmp_path / "outputs")) == 2


def test_a_sweep_is_named_by_its_points() -> None:
    name = getattr(Sweep.of(["-m", "seed=1,2", "a=b"]), "name", None)
    assert name is not None
    assert name == getattr(Sweep.of(["a=b", "--multirun", "seed=1,2"]), "name", None)
    assert name != getattr(Sweep.of(["a=b", "-m", "seed=1,3"]), "name", None)
    assert Sweep.of(["seed=1"]) is None
    assert Sweep.of(["-m", "seed=1,2", "--cfg", "job"]) is None


def test_a_sweep_keeps_what_its_points_came_to(tmp_path: Path) -> None:
    sweep = Sweep("sweep-1", tmp_path / "sweeps" / "sweep-1.jsonl")
    sweep.begin()
    assert not sweep.has_failed()
    results = Results({"test": {"bleu": {"score": 2.0}}})
    sweep.record(["seed=1"], Outcome(tmp_path, results), None)
    assert not sweep.has_failed()
    sweep.record(["seed=2", "paths.outputs=a\u2028b"], None, DataError("broken\nin two lines"))
    assert sweep.has_failed()
    assert [point.get("error") for point in sweep.jobs()] == [None, "DataError: broken"]
    assert sweep.jobs()[1]["overrides"][1] == "paths.outputs=a\u2028b"
    sweep.begin()
    assert sweep.jobs() == []
