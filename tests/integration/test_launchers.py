"""Sweeps whose jobs run in other processes."""

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from command_line import read_json
from headwise.config.explain import explain_composition
from hydra_plugins.headwise.slurm import LocalLauncher
from launched_sweeps import Sweeps, straight_outputs
from training_runs import ROOT, run_outputs


@pytest.fixture
def sweeps(tmp_path):
    sweeps = Sweeps(tmp_path)
    yield sweeps
    sweeps.close()


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """Outputs of the jobs of seeds 1 and 2 that nothing stops."""
    return straight_outputs(tmp_path_factory.mktemp("straight"))


@pytest.mark.parametrize(
    ("variable", "names"),
    [("", ""), ("-1", ""), ("NoDevFiles", ""), ("1,-1,0", "1"), ("GPU-8932f9,2", "GPU-8932f9 2")],
)
def test_gpus_of_cuda(variable, names, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", variable)
    assert LocalLauncher(cpus_per_task=1).gpus == names.split()


@pytest.mark.slow
def test_submitit_requeues_after_a_save(sweeps, straight):
    """USR2 comes before a time limit."""
    sweeps.slow.touch()
    started = sweeps.sweep("submitit_local", "seed=1")
    started.wait_until(lambda: sweeps.have_trained("submitit_local", 1))
    (job,) = (sweeps.folder / "submitit_local/sweeps/.submitit").glob("[0-9]*")
    (child,) = Path(f"/proc/{job.name}/task/{job.name}/children").read_text().split()
    os.kill(int(child), signal.SIGUSR2)
    sweeps.slow.unlink()
    result = started.wait()
    assert result.code == 0, result.output
    (run,) = sweeps.runs("submitit_local")
    assert "stopped at update" in (run / "log.txt").read_text()
    assert run_outputs(run) == straight[0]
    (record,) = sweeps.records("submitit_local")
    assert record["run"] == str(run)
    pickles = list(job.glob("*.pkl"))
    assert len(pickles) == 2
    assert {stat.S_IMODE(path.stat().st_mode) for path in pickles} == {0o600}
    umask = os.umask(0o022)
    os.umask(umask)
    assert stat.S_IMODE((run / "results.json").stat().st_mode) == 0o666 & ~umask


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_submitit_saves_at_a_signal(number, code, sweeps, straight):
    """Ctrl-C reaches the process group, SIGTERM the launching process; both running jobs save."""
    sweeps.slow.touch()
    started = sweeps.sweep("submitit_local", "seed=1,2")
    started.wait_until(lambda: sweeps.have_trained("submitit_local", 2))
    (os.killpg if number == signal.SIGINT else os.kill)(started.process.pid, number)
    stopped = started.wait()
    assert stopped.code == code, stopped.output
    assert "Traceback" not in stopped.output
    assert "0 (2 interrupted)" in stopped.output
    assert [job.get("interrupted") for job in sweeps.records("submitit_local")] == [True, True]
    runs = sweeps.runs("submitit_local")
    for run in runs:
        assert (run / "checkpoints" / "last.pt").is_file(), stopped.output
        assert not (run / "results.json").exists()
        assert "stopped at update" in (run / "log.txt").read_text()
        command = read_json(run / "environment.json")["command"]
        assert command[1] == "-m", "the command of the user, not of the job's process"
    logs = (sweeps.folder / "submitit_local" / "sweeps").glob("sweep-*/*.log")
    printed = [path.read_text() for path in logs]
    assert sum(text.count("encoding 200 pairs") for text in printed) == 1, "data is prepared once"
    sweeps.slow.unlink()
    resumed = sweeps.in_one_process("submitit_local", "seed=1,2")
    assert resumed.code == 0, resumed.output
    assert "Traceback" not in resumed.output
    assert [run_outputs(run) for run in sweeps.runs("submitit_local")] == straight
    records = sweeps.records("submitit_local")
    assert [job["overrides"][-1] for job in records] == ["seed=1", "seed=2"]


@pytest.mark.slow
def test_lost_job_stops_no_other(sweeps):
    jobs = ("tokenizer=char,bpe", "tokenizer.vocab_size=5000", "+scheduler.kills=true,false")
    result = sweeps.sweep("submitit_local", *jobs).wait()
    assert result.code == 1, result.output
    assert "Traceback" not in result.output
    records = sweeps.records("submitit_local")
    errors = [job.get("error", "") for job in records]
    assert ["was killed" in error for error in errors] == [True, False, False, False]
    assert ["cannot be reached" in error for error in errors] == [False, False, True, True]
    assert "run" in records[1]


def test_gpus_are_used_by_one_process_each(tmp_path):
    code = """
import os, sys, pathlib
from hydra_plugins.headwise._process import JobProcess
JobProcess(pathlib.Path(sys.argv[1]), ["3", "5"], cores=None).prepare()
print(os.environ.get("CUDA_VISIBLE_DEVICES"), flush=True)
input()
"""
    started = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(ROOT / "src")}, text=True,
        )
        for _ in range(3)
    ]  # fmt: skip
    gpus = [process.stdout.readline().strip() for process in started if process.stdout]
    for process in started:
        process.communicate("\n")
    assert sorted(gpus) == ["3", "3,5", "5"]


def test_missing_extra_is_named():
    error = RuntimeError("Unknown plugin class : 'hydra_plugins.headwise.slurm.SlurmLauncher'")
    assert "pip install 'headwise[slurm]'" in explain_composition(error, "train")
