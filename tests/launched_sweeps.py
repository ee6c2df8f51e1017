"""Sweeps in processes of their own, whose jobs run in further processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from command_line import read_json
from training_runs import ROOT, ProcessResult, Runs, run_outputs

# A learning rate schedule that is slow while a file exists, or kills its process. Its module is
# imported by jobs alone, which then draw no figures.
SCHEDULE = """
import os, signal, time
from pathlib import Path
import headwise.commands.training_run

headwise.commands.training_run.draw = lambda folder, tracker: None

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


@dataclass(frozen=True)
class Sweep:
    """A running sweep and the file with its output."""

    process: subprocess.Popen[bytes]
    log: Path

    def wait(self):
        """Wait until it ends."""
        code = self.process.wait(timeout=300)
        return ProcessResult(code, self.log.read_text())

    def wait_until(self, holds):
        """Wait for a condition while it runs."""
        deadline = time.monotonic() + 300
        while not holds():
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.05)


class Sweeps(Runs):
    """Sweeps with two jobs at a time, over the text of `Runs`."""

    def __init__(self, folder):
        folder.mkdir(exist_ok=True)
        super().__init__(folder)
        (folder / "slowly.py").write_text(SCHEDULE)
        self.slow = folder / "slow"
        self.started = []
        paths = [str(folder), str(ROOT / "src")]
        self.environment = {"PYTHONPATH": os.pathsep.join(paths), "HEADWISE_PLUGINS": "slowly"}

    def job(self, outputs, *more):
        """The command line of jobs of sixty updates."""
        schedule = ("scheduler=constant", "~scheduler.warmup_updates")
        changes = {"trainer.max_updates": 60, "trainer.validate_every": 60}
        common = self.arguments(outputs, {**changes, "paths.cache": self.folder / "cache"})
        own = [a for a in common if not a.startswith("scheduler.")]
        return [*own, *schedule, "scheduler._target_=slowly.Slow", *more]

    def sweep(self, launcher, *changes):
        """Start a sweep, in a process group of its own, as a shell does."""
        options = [f"hydra/launcher={launcher}"]
        if launcher != "submitit_slurm":
            options.append("hydra.launcher.n_jobs=2")
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

    def close(self):
        """Kill the sweeps of a test that failed."""
        for process in self.started:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)

    def in_one_process(self, outputs, *more):
        """Run a sweep in one process, which has the libraries imported."""
        arguments = ["-m", *self.job(outputs, *more)]
        return self.wait(self.start(arguments, None, self.environment))

    def runs(self, launcher):
        """The run folders of a sweep, by seed."""
        folders = (self.folder / launcher / "default").glob("*/environment.json")  # written last
        return sorted((path.parent for path in folders), key=seed_of)

    def records(self, launcher):
        """The records of the jobs, in order."""
        paths = (self.folder / launcher / "sweeps").glob("*/*.json")
        return [read_json(path) for path in sorted(paths, key=lambda path: int(path.stem))]

    def have_trained(self, launcher, n_runs):
        """Whether that many runs have logged their first update."""
        logs = [run / "metrics.jsonl" for run in self.runs(launcher)]
        return len(logs) == n_runs and all(p.is_file() and p.stat().st_size for p in logs)


def straight_outputs(folder):
    """Outputs of the jobs of seeds 1 and 2 that nothing stops."""
    sweeps = Sweeps(folder)
    result = sweeps.in_one_process("straight", "seed=1,2")
    assert result.code == 0, result.output
    return [run_outputs(run) for run in sweeps.runs("straight")]


def seed_of(run):
    return next(o for o in (run / "overrides.yaml").read_text().split() if o.startswith("seed="))
