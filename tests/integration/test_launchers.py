"""Sweeps whose jobs run in other processes."""

from __future__ import annotations

import os
import signal
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from command_line import read_json
from launched_sweeps import Sweep, Sweeps
from training_runs import ProcessResult, run_outputs

LAUNCHERS = ("joblib", "submitit_local")


@pytest.fixture
def sweeps(tmp_path: Path) -> Iterator[Sweeps]:
    sweeps = Sweeps(tmp_path)
    yield sweeps
    sweeps.close()


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
