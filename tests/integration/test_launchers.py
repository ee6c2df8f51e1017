"""Sweeps whose jobs run in other processes."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from command_line import read_json
from training_runs import ROOT, ProcessResult, Runs, run_outputs

# A learning rate schedule that is slow while a file exists, or kills its process. Its module is
# imported by jobs alone, which then draw no figures.
SCHEDULE = """
import os, signal, time
from pathlib import Path
import headwise.commands.train

headwise.commands.train.draw = lambda folder, tracker: None

class Slow:
    def __init__(self, kills=False):
        self.kills = kills

    def learning_rate(self, update, base_lr):
        if self.kills and update == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        if Path(__file__).with_name("slow").exists():
            time.sleep(0.5)
        return base_lr
"""
LAUNCHERS = ("joblib", "submitit_local")


@dataclass(frozen=True)
class Sweep:
    """A running sweep and the file with its output."""

    process: subprocess.Popen[bytes]
    log: Path

    def wait(self) -> ProcessResult:
        """Wait until it ends."""
        code = self.process.wait(timeout=300)
        return ProcessResult(code, self.log.read_text())

    def wait_until(self, holds: Callable[[], bool]) -> None:
        """Wait for a condition while it runs."""
        deadline = time.monotonic() + 120
        while not holds():
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.05)


class Sweeps(Runs):
    """Sweeps with two jobs at a time, over the text of `Runs`."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        (folder / "slowly.py").write_text(SCHEDULE)
        self.slow = folder / "slow"
        self.started: list[subprocess.Popen[bytes]] = []
        paths = [str(folder), str(ROOT / "src")]
        self.environment = {"PYTHONPATH": os.pathsep.join(paths), "HEADWISE_PLUGINS": "slowly"}

    def job(self, outputs: str, *changes: str) -> list[str]:
        """The command line of jobs of sixty updates."""
        schedule = ("scheduler=constant", "~scheduler.warmup_updates")
        common = self.arguments(outputs, {"trainer.max_updates": 60, "trainer.validate_every": 60})
        own = [a for a in common if not a.startswith("scheduler.")]
        return [*own, *schedule, "scheduler._target_=slowly.Slow", *changes]

    def sweep(self, launcher: str, *changes: str) -> Sweep:
        """Start a sweep, in a process group of its own, as a shell does."""
        options = (f"hydra/launcher={launcher}", "hydra.launcher.n_jobs=2")
        arguments = ["train.py", "-m", *self.job(launcher, *changes), *options]
        log = self.folder / f"{launcher}.txt"
        with open(log, "w") as output:
            process = subprocess.Popen(
                [sys.executable, *map(str, arguments)],
                cwd=ROOT, env={**os.environ, **self.environment}, stdout=output, stderr=output,
                start_new_session=True,
            )  # fmt: skip
        self.started.append(process)
        return Sweep(process, log)

    def straight(self, seed: int) -> dict[str, Any]:
        """Outputs of a run alone that nothing stops."""
        outputs = f"straight-{seed}"
        started = self.start(self.job(outputs, f"seed={seed}"), None, self.environment)
        result = self.wait(started)
        assert result.code == 0, result.output
        return run_outputs(self.run_folder(outputs))

    def runs(self, launcher: str) -> list[Path]:
        """The run folders of a sweep, by seed."""
        folders = (self.folder / launcher / "default").glob("*/environment.json")  # written last
        return sorted((path.parent for path in folders), key=seed_of)

    def records(self, launcher: str) -> list[dict[str, Any]]:
        """The records of the jobs, in order."""
        paths = (self.folder / launcher / "sweeps").glob("*/*.json")
        return [read_json(path) for path in sorted(paths, key=lambda path: int(path.stem))]

    def have_trained(self, launcher: str, n_runs: int) -> bool:
        """Whether that many runs have logged their first update."""
        logs = [run / "metrics.jsonl" for run in self.runs(launcher)]
        return len(logs) == n_runs and all(p.is_file() and p.stat().st_size for p in logs)


def seed_of(run: Path) -> str:
    return next(o for o in (run / "overrides.yaml").read_text().split() if o.startswith("seed="))


@pytest.fixture
def sweeps(tmp_path: Path) -> Iterator[Sweeps]:
    sweeps = Sweeps(tmp_path)
    yield sweeps
    for process in sweeps.started:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def stop_and_resume(
    sweeps: Sweeps, launcher: str, stop: Callable[[Sweep], None], code: int
) -> ProcessResult:
    """Stop a sweep of two seeds while both train, and resume it; check all but the messages."""
    sweeps.slow.touch()
    started = sweeps.sweep(launcher, "seed=1,2")
    started.wait_until(lambda: sweeps.have_trained(launcher, 2))
    stop(started)
    stopped = started.wait()
    assert stopped.code == code, stopped.output
    assert "0 (2 interrupted)" in stopped.output
    assert [job.get("interrupted") for job in sweeps.records(launcher)] == [True, True]
    for run in sweeps.runs(launcher):
        assert (run / "checkpoints" / "last.pt").is_file(), stopped.output
        assert not (run / "results.json").exists()
        assert "stopping after this update" in (run / "log.txt").read_text()
    sweeps.slow.unlink()
    resumed = sweeps.sweep(launcher, "seed=1,2").wait()
    assert resumed.code == 0, resumed.output
    assert "Traceback" not in stopped.output + resumed.output
    for seed, run in enumerate(sweeps.runs(launcher), start=1):
        assert run_outputs(run) == sweeps.straight(seed)
    return resumed


def test_joblib_saves_at_sigterm_and_resumes(sweeps: Sweeps) -> None:
    def stop(started: Sweep) -> None:
        started.process.terminate()

    resumed = stop_and_resume(sweeps, "joblib", stop, 143)
    assert "| 2 |" in resumed.output
    jobs = sweeps.records("joblib")
    assert [job["overrides"][-1] for job in jobs] == ["seed=1", "seed=2"]
    for run in sweeps.runs("joblib"):
        assert "resuming in" in next((run.parents[1] / "sweeps").glob("*/0.log")).read_text()
        command = read_json(run / "environment.json")["command"]
        assert command[1] == "-m", "the command of the user, not of the worker"


def test_submitit_requeues_after_a_save(sweeps: Sweeps) -> None:
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
    assert "stopping after this update" in (run / "log.txt").read_text()
    assert run_outputs(run) == sweeps.straight(1)
    (record,) = sweeps.records("submitit_local")
    assert record["run"] == str(run)
    pickles = list(job.glob("*.pkl"))
    assert len(pickles) == 2
    assert {stat.S_IMODE(path.stat().st_mode) for path in pickles} == {0o600}
    umask = os.umask(0o022)
    os.umask(umask)
    assert stat.S_IMODE((run / "results.json").stat().st_mode) == 0o666 & ~umask


@pytest.mark.slow
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_ctrl_c_saves_all_jobs(sweeps: Sweeps, launcher: str) -> None:
    """A terminal sends it to the whole process group."""

    def stop(started: Sweep) -> None:
        os.killpg(started.process.pid, signal.SIGINT)

    stop_and_resume(sweeps, launcher, stop, 130)


@pytest.mark.slow
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_lost_job_stops_no_other(sweeps: Sweeps, launcher: str) -> None:
    jobs = ("tokenizer=char,bpe", "tokenizer.vocab_size=5000", "+scheduler.kills=true,false")
    result = sweeps.sweep(launcher, *jobs).wait()
    assert result.code == 1, result.output
    assert "Traceback" not in result.output
    records = sweeps.records(launcher)
    errors = [job.get("error", "") for job in records]
    assert ["was killed" in error for error in errors] == [True, False, False, False]
    assert ["cannot be reached" in error for error in errors] == [False, False, True, True]
    assert "run" in records[1]
