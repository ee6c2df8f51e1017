"""Whole training runs in processes of their own, that die or are stopped where a test says.

Each of them is `train.py` with its arguments, in a process that can be killed.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import multiprocessing.process
import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import command_line
from warm_python import PROCESSES

ROOT = Path(__file__).parent.parent
# It logs at 3, 6, …, saves at 5, 10, … and validates at 8, 16 and 24, so that no two cadences fall
# together.
SMALL = {
    **dict(override.split("=") for override in command_line.SMALL), "tokenizer": "char",
    "scheduler.warmup_updates": 10, "trainer.max_updates": 24, "trainer.max_tokens": 160,
    "trainer.log_every": 3, "trainer.validate_every": 8, "trainer.save_every": 5,
    "trainer.keep": 2, "trainer.average": 0, "decode.max_length_ratio": 0.2,
}  # fmt: skip


# Without what is drawn, ranks compute what one process does.
CALM = {"model.dropout": 0.0, "model.attention_dropout": 0.0, "model.activation_dropout": 0.0}


@dataclass(frozen=True)
class Started:
    """A process, and the file that it prints to."""

    process: multiprocessing.process.BaseProcess
    log: Path


@dataclass(frozen=True)
class Ended:
    """How a process ended: its exit code (minus the signal that killed it) and what it told."""

    code: int
    told: str


class Runs:
    """Starts runs; all of them read the same text.

    Args:
        folder: for the text, the outputs and the logs.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.text = command_line.write_corpus(folder / "text")
        self._n_started = 0

    def arguments(self, outputs: str, changes: Mapping[str, Any]) -> list[str]:
        """The command line of the small run with some keys changed."""
        own = {"data.dir": self.text, "paths.outputs": self.folder / outputs}
        return [f"{key}={value}" for key, value in {**SMALL, **own, **changes}.items()]

    def train(
        self,
        outputs: str,
        changes: Mapping[str, Any] | None = None,
        strike: tuple[str, int, int] | None = None,
        code: int = 0,
    ) -> str:
        """What one run in the folder `outputs` prints, which must end with this exit code.

        Args:
            strike: (place, n, signal): the process sends itself the signal before its n-th
                "record" (a line of metrics.jsonl or heads.jsonl) or "replace" (of a file).
            code: minus the signal that killed it.
        """
        ended = self.wait(self.start(self.arguments(outputs, changes or {}), strike))
        assert ended.code == code, ended.told
        return ended.told

    def train_ranks(
        self,
        outputs: str,
        changes: Mapping[str, Any],
        n_ranks: int = 2,
        strike: tuple[str, int, int] | None = None,
    ) -> list[Ended]:
        """The same as `n_ranks` processes, as torchrun would start them; the first is struck."""
        return self.ranks(self.arguments(outputs, changes), n_ranks, strike)

    def ranks(
        self, arguments: Sequence[str], n_ranks: int = 2, strike: tuple[str, int, int] | None = None
    ) -> list[Ended]:
        """Processes with these arguments, as torchrun would start them."""
        place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
        started = []
        for rank in map(str, range(n_ranks)):
            own = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": str(n_ranks), **place}
            environment = {**os.environ, **own}
            started.append(self.start(arguments, None if int(rank) else strike, environment))
        return [self.wait(process) for process in started]

    def start(
        self,
        arguments: Sequence[str],
        strike: tuple[str, int, int] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> Started:
        """A run that goes on by itself."""
        self._n_started += 1
        log = self.folder / f"log-{self._n_started}.txt"
        process = PROCESSES.Process(target=_run, args=(arguments, strike, environment or {}, log))
        process.start()
        return Started(process, log)

    def wait(self, started: Started) -> Ended:
        """Until it ends."""
        started.process.join()
        code = started.process.exitcode
        return Ended(code, started.log.read_text(encoding="utf-8"))

    def run_folder(self, outputs: str) -> Path:
        """The only run below `outputs`."""
        (found,) = (self.folder / outputs / "default").iterdir()
        return found


def _run(
    arguments: Sequence[str],
    strike: tuple[str, int, int] | None,
    environment: Mapping[str, str],
    log: Path,
) -> None:
    """Train in this process, which is one of its own."""
    os.environ.update(environment)
    with open(log, "wb") as stream:
        for number in (1, 2):
            os.dup2(stream.fileno(), number)
    import headwise.commands.train
    from headwise import cli
    from headwise.track.jsonl import JsonlWriter

    headwise.commands.train.draw = lambda folder, tracker: None  # a second a run, after all tested
    command_line.compose_once(pytest.MonkeyPatch())
    if strike:
        place, n_calls, number = strike
        owner, name = {"record": (JsonlWriter, "write"), "replace": (os, "replace")}[place]
        real, calls = getattr(owner, name), itertools.count(1)

        def struck(*given: Any, **options: Any) -> Any:
            if next(calls) == n_calls:
                os.kill(os.getpid(), number)
            return real(*given, **options)

        setattr(owner, name, struck)
    sys.argv = ["train.py", *arguments]
    cli.main("train")


def record(path: Path) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl or heads.jsonl without what the clock decides."""
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [{k: v for k, v in line.items() if not k.startswith("time/")} for line in lines]


def remains(run: Path) -> dict[str, Any]:
    """What must be equal between runs that went the same way."""
    return {
        "metrics": record(run / "metrics.jsonl"),
        "heads": (run / "heads.jsonl").read_bytes(),
        **{
            str(path.relative_to(run)): hashlib.sha256(path.read_bytes()).hexdigest()
            for pattern in ("checkpoints/*.pt", "hypotheses/*.txt", "sums/*.npy")
            for path in sorted(run.glob(pattern))
        },
    }


def assert_same_course(one: Path, two: Path) -> None:
    """The same losses and scores within float32."""
    lines = list(zip(record(one / "metrics.jsonl"), record(two / "metrics.jsonl"), strict=True))
    assert lines
    for single, double in lines:
        assert single.keys() == double.keys()
        for name, value in single.items():
            assert double[name] == pytest.approx(value, rel=1e-5), (single["update"], name)


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def python(arguments: Sequence[object], folder: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """A Python process of the user's kind."""
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, cwd=folder, check=False)
