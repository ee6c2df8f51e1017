"""Sweeps: several jobs in one command."""

import gc
import os
import random
import re
import shlex
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib import rcParams
from omegaconf import OmegaConf

from command_line import (
    assert_rejected,
    read_json,
    run_folders,
    small_overrides,
    write_corpus,
)
from headwise.commands.sweep import Sweep
from headwise.errors import DataError, Interrupted
from headwise.model.transformer import Transformer
from headwise.runs.folder import RunFolder
from headwise.track.base import Tracker
from training_runs import Runs

pytestmark = pytest.mark.slow


@pytest.fixture
def sweep(tmp_path):
    """The common part of a sweep's command line."""
    write_corpus(tmp_path / "text")
    overrides = [o for o in small_overrides(tmp_path) if not o.startswith("tokenizer.vocab_size")]
    return ["-m", *overrides]


def checkpoints(outputs):
    return {path: path.stat().st_mtime_ns for path in outputs.glob("*/*/checkpoints/*.pt")}


def table(out):
    lines = out.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("means over seeds")) + 1
    head, _, *rows = lines[start : lines.index("", start)]
    return [head, *rows]


def test_jobs_have_a_table(headwise, sweep, tmp_path):
    jobs = ["tokenizer.vocab_size=60", "attention=softmax,alpha_entmax", "seed=1,2"]
    result = headwise.ok("train", *sweep, *jobs)
    folders = run_folders(tmp_path / "outputs")
    assert len(folders) == 4
    seeds = [read_json(f / "results.json")["seed"] for f in folders]
    assert sorted(seeds) == [1, 1, 2, 2]
    head, *rows = table(result.out)
    assert head.split(" | ")[1:5] == ["BLEU valid ↑", "BLEU test_a ↑", "BLEU test_b ↑", "runs"]
    names_and_runs = [row.split(" | ")[::4][:2] for row in rows]
    assert names_and_runs == [["| softmax", "2"], ["| alpha_entmax", "2"]]
    assert "| BLEU test_a ↑, alpha_entmax |" in result.out  # compared over both seeds
    (command,) = re.findall(r"headwise table 'runs=\[(.*)\]'", result.out)
    tables = headwise.ok("table", f"runs=[{command}]", f"output={tmp_path / 'tables'}").out
    assert all(line in tables for line in (head, *rows))
    before = checkpoints(tmp_path / "outputs")
    repeated = headwise("train", *sweep, *jobs)
    assert (repeated.code, table(repeated.out)) == (0, [head, *rows])
    assert checkpoints(tmp_path / "outputs") == before
    folders = {path.name for path in (tmp_path / "outputs").iterdir()}
    assert folders == {"default", "sweeps"}


def test_values_of_what_costs_only_are_runs_of_their_own(headwise, sweep, tmp_path):
    for _ in range(2):  # the second finds the runs of the first
        headwise.ok("train", *sweep, "tokenizer.vocab_size=60", "trainer.max_updates=2,4")
        swept = [read_json(f / "data.json")["swept"] for f in run_folders(tmp_path / "outputs")]
        assert sorted(one["trainer.max_updates"] for one in swept) == [2, 4]


def test_dry_run_jobs_do_not_fail(headwise, sweep, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    settings = "attention=softmax,alpha_entmax", "tokenizer.vocab_size=60", "dry_run=true"
    result = headwise.ok("train", *sweep, *settings)
    assert result.out.count("min on this machine") == 2
    assert "failed" not in result.out
    files = [path.name for path in (tmp_path / "outputs").rglob("*") if path.is_file()]
    assert files == ["multirun.yaml"]  # written by Hydra


def test_failed_job_stops_no_other_and_is_repeated(headwise, sweep, tmp_path):
    jobs = ["tokenizer.vocab_size=5000,60"]  # the first size is not reached
    result = headwise("train", *sweep, *jobs)
    assert (result.code, "Traceback" in result.err) == (1, False)
    assert result.err.count("headwise: tokenizer.vocab_size=5000 cannot be reached") == 1
    (failed,) = [line for line in result.out.splitlines() if "ConfigError: " in line]
    assert "tokenizer.vocab_size=5000: ConfigError: tokenizer.vocab_size=5000 cannot" in failed
    assert [row.split(" | ")[4] for row in table(result.out)[1:]] == ["0 (1 failed)", "1"]
    assert len(list((tmp_path / "outputs" / "default").iterdir())) == 1, (
        "no folder of the failed one"
    )

    before = checkpoints(tmp_path / "outputs")
    repeated = headwise("train", *sweep, *jobs)
    assert repeated.err == result.err, "the failed job starts again, the finished one does not"
    assert checkpoints(tmp_path / "outputs") == before


class Recorder(Tracker):
    """A tracker of users, which records its jobs: groups, statuses, models in memory."""

    groups, statuses, models = [], [], []

    def start(self, run_dir, group, config):
        gc.collect()
        self.models.append(sum(isinstance(one, Transformer) for one in gc.get_objects()))
        assert len(self.statuses) == len(self.groups), "the previous job has finished its tracker"
        self.groups.append(group)

    def finish(self, status):
        self.statuses.append(status)


def test_jobs_share_a_group_finish_trackers_and_free_models(headwise, sweep, tmp_path, monkeypatch):
    monkeypatch.setenv("HEADWISE_PLUGINS", __name__)
    # the second fails while it holds the model, whose memory must be free for the third
    result = headwise(
        "train", *sweep, "tokenizer.vocab_size=60", "scheduler=constant", "norm=post",
        f"tracker._target_={__name__}.Recorder",
        "trainer.max_updates=4", "optimizer.lr=1e-3,1e30,1e-4",
    )  # fmt: skip
    assert result.code == 1
    assert Recorder.statuses == ["finished", "failed", "finished"]
    (error_file,) = (tmp_path / "outputs").glob("*/*/error.json")
    assert "optimizer.lr=1e+30" in str(read_json(error_file)["overrides"])
    assert Recorder.models == [Recorder.models[0]] * 3
    (name,) = set(Recorder.groups)
    assert f"sweeps/{name}.md" in result.out


def test_job_starts_as_its_own_process_would(headwise, sweep, tmp_path, monkeypatch):
    """Threads that the config of one job sets, and what parts of users may leave."""
    seen = []
    variables = "HF_HOME", "OMP_NUM_THREADS"

    def begin():
        flags = torch.get_default_dtype(), torch.get_deterministic_debug_mode()
        drawn = random.random(), torch.rand(1).item(), np.random.rand()
        outside = Path.cwd(), *map(os.getenv, variables), rcParams["font.size"]
        seen.append((torch.get_num_threads(), flags, drawn, outside))
        torch.set_default_dtype(torch.float64)
        torch.use_deterministic_algorithms(True)
        os.environ["HF_HOME"] = "elsewhere"
        del os.environ["OMP_NUM_THREADS"]
        os.chdir(tmp_path)
        rcParams["font.size"] = 30
        raise DataError("stopped")

    monkeypatch.setattr("headwise.train.distributed.keep_freed_memory", begin)
    before = torch.get_num_threads()
    assert headwise("train", *sweep, "seed=1", "trainer.threads=3,null").code == 1
    assert [threads for threads, *_ in seen] == [3, before]
    assert seen[0][1:] == seen[1][1:]
    assert torch.get_num_threads() == before


def test_interrupt_saves_the_job_and_ends_the_sweep(tmp_path):
    runs = Runs(tmp_path)
    arguments = ["-m", *runs.arguments("outputs", {"seed": "1,2"})]
    result = runs.wait(runs.start(arguments, signal_at=("record", 4, signal.SIGINT)))
    assert result.code == 130, result.output
    assert "Give the same command again to resume." in result.output
    assert "SIGINT: stopping after this update" in result.output
    assert "0 (1 interrupted)" in result.output
    assert "failed" not in result.output
    (stopped,) = run_folders(tmp_path / "outputs")  # the second job did not start
    assert (stopped / "checkpoints" / "last.pt").is_file()
    assert not (stopped / "error.json").exists()
    result = runs.wait(runs.start(arguments))
    assert result.code == 0, result.output
    assert f"resuming in {stopped}" in result.output
    assert len(run_folders(tmp_path / "outputs")) == 2


def sweep_of(overrides, folder="outputs/sweeps"):
    hydra = {"job": {"chdir": None}, "overrides": {"task": overrides.split()}, "sweeper": {}}
    return Sweep.composed(OmegaConf.create({"hydra": {**hydra, "sweep": {"dir": folder}}}))


def test_name_of_a_sweep_depends_on_its_jobs():
    sweep = sweep_of("seed=1,2 a=b")
    assert sweep == sweep_of("a=b seed=1,2")
    assert sweep.swept == {"seed"}
    assert sweep.name != sweep_of("a=b seed=1,3").name
    assert sweep.folder == Path("outputs/sweeps") / sweep.name


PATHS = {
    "-m paths.outputs={0}/z paths.outputs={0}/a": "a",
    "paths.outputs='\"{0}/a b\"' -m": "a b",
    "-m paths.outputs='${{oc.env:HOME}}/a'": "a",
    "experiment=mine --config-dir {0} -m": "from_yaml",
    "paths.outputs={0}/z hydra.mode=MULTIRUN paths.outputs={0}/a": "a",
}


# Jobs that fail before they train, since their text is missing.
FAILING = ("data=files", "data.source=de", "data.target=en", "data.dir=/nowhere", "tracker=none")


@pytest.fixture
def write_experiment(tmp_path, monkeypatch):
    """Writes experiment/mine.yaml in the current folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "experiment").mkdir()

    def write(yaml):
        text = f"# @package _global_\n{yaml}"
        (tmp_path / "experiment" / "mine.yaml").write_text(text, encoding="utf-8")

    return write


def jobs_of(result, folder):
    """The records of jobs that all failed for want of a text."""
    assert result.code == 1, result
    records = sorted(folder.glob("?.json"))
    assert all("/nowhere" in read_json(path)["error"] for path in records)
    return [path.name for path in records]


@pytest.mark.parametrize("line", PATHS)
def test_folder_of_a_sweep_is_that_of_the_composed_config(
    line, headwise, tmp_path, monkeypatch, write_experiment
):
    monkeypatch.setattr("command_line.compose_once", lambda patch: None)
    monkeypatch.setenv("HOME", str(tmp_path))
    write_experiment("paths:\n  outputs: ~/from_yaml\n")
    result = headwise("train", *shlex.split(line.format(tmp_path)), "seed=1,2", *FAILING)
    (folder,) = tmp_path.rglob("sweep-*/")
    assert folder.parent == tmp_path / PATHS[line] / "sweeps"
    assert jobs_of(result, folder) == ["0.json", "1.json"]
    assert (folder.parent / "multirun.yaml").is_file()
    assert not (tmp_path / "~").exists()


KEYS_OF_CHOICES = {
    "pattern=window,strided pattern.block_sparse_from=64": None,
    "pattern=window,none pattern.block_sparse_from=64": "The job was: pattern=none",
    "pattern=window,strided pattern.block_sparse_fom=64": "Did you mean pattern.block_sparse_from?",
    "data.test=x pattern=window,strided": "data.test must be a list: set data.test=[x]",
    "experiment=mine,demo --config-dir .": "hydra.sweeper.params in the yaml of a swept choice",
}


@pytest.mark.parametrize("line", KEYS_OF_CHOICES)
def test_jobs_have_keys_of_their_choices(line, headwise, tmp_path, write_experiment):
    write_experiment("hydra: {sweeper: {params: {seed: '1,2'}}}\n")
    arguments = ["train", "-m", *line.split(), *FAILING]
    result = headwise(*arguments)
    if message := KEYS_OF_CHOICES[line]:
        return assert_rejected(result, 2, message)
    (folder,) = tmp_path.rglob("sweep-*/")
    assert jobs_of(result, folder) == ["0.json", "1.json"]
    with RunFolder(folder).claimed():  # a process runs the sweep
        repeated = headwise(*arguments)
    assert_rejected(repeated, 1, "another process is training in", folder.name)
    assert (folder / "0.json").is_file()


@pytest.mark.parametrize("mode", ["-m", "hydra.mode=MULTIRUN"])
def test_ranks_start_no_sweep(mode, headwise, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr("command_line.compose_once", lambda patch: None)
    message = "torchrun and -m cannot be combined"
    assert_rejected(headwise("train", mode, "seed=1,2"), 2, message)


def test_sweep_records_each_job_once_in_order(tmp_path):
    sweep = Sweep("sweep-1", tmp_path / "sweeps" / "sweep-1")
    sweep.begin()
    assert not sweep.has_failed()
    sweep.record(10, ["seed=3"], None, Interrupted("requeued", 10))
    sweep.record(0, ["seed=1"], tmp_path, None)
    assert not sweep.has_failed()
    error = DataError("broken\nin two lines")
    sweep.record(2, ["seed=2", "paths.outputs=a\u2028b"], None, error)
    sweep.remove(10)
    sweep.record(10, ["seed=3"], tmp_path, None)
    assert sweep.has_failed()
    jobs = sweep.jobs()
    assert [job.get("error") for job in jobs] == [None, "DataError: broken", None]
    assert jobs[1]["overrides"] == ["seed=2", "paths.outputs=a\u2028b"]
    assert "interrupted" not in jobs[2]
    sweep.begin()
    assert sweep.jobs() == []
