"""Whole training runs, in this process or in their own, stopped or killed at a given line.

Each process runs `train.py` with its arguments.
"""

from __future__ import annotations

import hashlib
import io
import itertools
import json
import multiprocessing.process
import os
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

import command_line
from warm_python import PROCESSES

ROOT = Path(__file__).parent.parent
# It logs at 3, 6, …, saves at 5, 10, … and validates at 8, 16 and 24, never twice at one update.
SMALL = {
    **dict(override.split("=") for override in command_line.SMALL), "tokenizer": "char",
    "scheduler.warmup_updates": 10, "trainer.max_updates": 24, "trainer.max_tokens": 160,
    "trainer.log_every": 3, "trainer.validate_every": 8, "trainer.save_every": 5,
    "trainer.keep": 2, "trainer.average": 0, "decode.max_length_ratio": 0.2,
}  # fmt: skip


# Without dropout, several ranks compute the same as one process.
NO_DROPOUT = {"model.dropout": 0.0, "model.attention_dropout": 0.0, "model.activation_dropout": 0.0}


@dataclass(frozen=True)
class RunningProcess:
    """A process and the file with its output."""

    process: multiprocessing.process.BaseProcess
    log: Path


@dataclass(frozen=True)
class ProcessResult:
    """Exit code of a process (minus the signal that killed it) and its output."""

    code: int
    output: str


class Runs:
    """Start runs that all read the same text.

    Args:
        folder: for the text, the outputs and the logs.
    """

    def __init__(self, folder):
        self.folder = folder
        self.text = command_line.write_corpus(folder / "text")
        self._n_started = 0

    def arguments(self, outputs, changes):
        """The command line of the small run with some keys changed."""
        paths = {"data.dir": self.text, "paths.outputs": self.folder / outputs}
        return [f"{key}={value}" for key, value in {**SMALL, **paths, **changes}.items()]

    def train(self, outputs, changes=None, signal_at=None, code=0):
        """Run training in the folder `outputs`, check its exit code and return its output.

        Args:
            signal_at: (event, n, signal): the process sends itself the signal before its n-th
                "record" (a line of metrics.jsonl or heads.jsonl) or "replace" (of a file).
            code: minus the signal that killed it.
        """
        result = self.result(self.arguments(outputs, changes or {}), signal_at)
        assert result.code == code, result.output
        return result.output

    def result(self, arguments, signal_at=None):
        """Train; only a run that is killed has a process of its own, which takes seconds."""
        if signal_at and signal_at[-1] == signal.SIGKILL:
            return self.wait(self.start(arguments, signal_at))
        printed = io.StringIO()
        with pytest.MonkeyPatch.context() as patch:
            for stream in ("stdout", "stderr"):
                patch.setattr(sys, stream, printed)
            _send_signal(signal_at, patch)
            code = command_line.exit_code(patch, "train", *arguments)
        return ProcessResult(code, printed.getvalue())

    def train_ranks(self, outputs, changes, n_ranks=2, signal_at=None):
        """Train with `n_ranks` processes, as torchrun starts them; the first gets the signal."""
        return self.ranks(self.arguments(outputs, changes), n_ranks, signal_at)

    def ranks(self, arguments, n_ranks=2, signal_at=None):
        """Run processes with these arguments, as torchrun starts them."""
        address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
        started = []
        for rank in map(str, range(n_ranks)):
            variables = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": str(n_ranks), **address}
            environment = {**os.environ, **variables}
            started.append(self.start(arguments, None if int(rank) else signal_at, environment))
        return [self.wait(process) for process in started]

    def start(self, arguments, signal_at=None, environment=None):
        """Start a run in the background."""
        self._n_started += 1
        log = self.folder / f"log-{self._n_started}.txt"
        process = PROCESSES.Process(
            target=_run, args=(arguments, signal_at, environment or {}, log)
        )
        process.start()
        return RunningProcess(process, log)

    def wait(self, started):
        """Wait until the process ends."""
        started.process.join()
        code = started.process.exitcode
        return ProcessResult(code, started.log.read_text(encoding="utf-8"))

    def run_folder(self, outputs):
        """The only run below `outputs`."""
        (run,) = (self.folder / outputs / "default").iterdir()
        return run


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Starts runs that all tests of a file may read."""
    return Runs(tmp_path_factory.mktemp("runs"))


@pytest.fixture(autouse=True, scope="session")
def without_figures():
    """Skip the figures, which take a second per training; the tests of the guide draw them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("headwise.commands.training_run.draw", lambda folder, tracker: None)
        yield


def _run(arguments, signal_at, environment, log):
    """Train in this process, which runs nothing else."""
    os.environ.update(environment)
    sys.path[:0] = filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # ignored in child processes of nohup
    with open(log, "wb") as stream:
        for number in (1, 2):
            os.dup2(stream.fileno(), number)
    import headwise.commands.training_run
    from headwise import cli

    headwise.commands.training_run.draw = lambda folder, tracker: None  # saves a second per run
    patch = pytest.MonkeyPatch()
    command_line.compose_once(patch)
    _send_signal(signal_at, patch)
    sys.argv = ["train.py", *arguments]
    cli.main("train")


def read_log(path):
    """The lines of metrics.jsonl or heads.jsonl without times."""
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [{k: v for k, v in line.items() if not k.startswith("time/")} for line in lines]


def run_outputs(run):
    """The outputs that must be equal between identical runs."""
    return {
        "metrics": read_log(run / "metrics.jsonl"),
        "heads": (run / "heads.jsonl").read_bytes(),
        **{
            str(path.relative_to(run)): hashlib.sha256(path.read_bytes()).hexdigest()
            for pattern in ("checkpoints/*.pt", "hypotheses/*.txt", "sums/*.npz")
            for path in sorted(run.glob(pattern))
        },
    }


def assert_same_metrics(one, two):
    """Assert equal losses and scores up to float32 rounding."""
    lines = list(zip(read_log(one / "metrics.jsonl"), read_log(two / "metrics.jsonl"), strict=True))
    assert lines
    for first, second in lines:
        assert first.keys() == second.keys()
        for name, value in first.items():
            assert second[name] == pytest.approx(value, rel=1e-5), (first["update"], name)


def free_port():
    """An unused port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def run_python(arguments, folder=ROOT):
    """Run Python as a user does."""
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, cwd=folder, check=False)


def assert_two_ranks_equal_one(runs, overrides, max_tokens, outputs):
    """Assert that two ranks train and score as one process with the tokens of both."""
    without_dropout = [*overrides, *(f"{key}={value}" for key, value in NO_DROPOUT.items())]
    folders = []
    for n_ranks in (1, 2):
        changes = [f"paths.outputs={outputs / str(n_ranks)}"]
        changes.append(f"trainer.max_tokens={max_tokens // n_ranks}")
        result = runs.ranks([*without_dropout, *changes], n_ranks)
        assert {rank.code for rank in result} == {0}, result
        folders += command_line.run_folders(outputs / str(n_ranks))
    assert_same_metrics(*folders)


def _send_signal(signal_at, patch):
    """Send this process a signal before an event, see `Runs.train`."""
    if signal_at is None:
        return
    from headwise.track.jsonl import JsonlWriter

    event, n_calls, number = signal_at
    owner, name = {"record": (JsonlWriter, "write"), "replace": (os, "replace")}[event]
    original, calls = getattr(owner, name), itertools.count(1)

    def send_signal(*args, **kwargs):
        if next(calls) == n_calls:
            os.kill(os.getpid(), number)
        return original(*args, **kwargs)

    patch.setattr(owner, name, send_signal)
