"""A search that two processes share, killed at random moments: is every trial run once?

    python -m benchmarks.killed_search [--kills 3] [--json FILE]

Two searchers run 60 trials of a tiny model with two searched keys. At random moments one of them,
with all of its processes, is killed by SIGKILL and the same command is started again. Afterwards
the storage must have 60 finished trials with distinct values, each with a run of its own whose
records have every update once and whose best validation is the trial's value.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.command import arguments, keep
from headwise.track.jsonl import read_jsonl

SETTINGS = (
    "hydra/sweeper=optuna", "hydra.sweeper.study_name=killed", "trainer=debug", "tracker=none",
    "optimizer.lr=tag(log,interval(1e-4,1e-2))", "model.dropout=interval(0.0,0.5)",
    "model.d_model=16", "model.n_heads=2", "model.d_ff=32", "model.encoder_layers=1",
    "model.decoder_layers=1", "tokenizer=char", "trainer.max_updates=40",
    "trainer.validate_every=10", "trainer.save_every=5", "trainer.log_every=1",
    "trainer.monitor=loss", "trainer.max_tokens=256", "trainer.progress=false",
    "trainer.valid_sentences=4", "trainer.head_sentences=0", "decode.beam=1",
    "decode.max_length_extra=3", "decode.max_length_ratio=0.2",
    "data.origins=[{_target_: headwise.data.builtin.BuiltinCorpus, "
    "n_train: 400, n_valid: 20, n_test: 20}]",
)  # fmt: skip


def start(folder: Path, n_trials: int) -> subprocess.Popen[bytes]:
    """Start a searcher in a process group of its own."""
    command = [sys.executable, "-c", "from headwise.cli import main; main('train')", "-m"]
    options = [f"paths.outputs={folder / 'outputs'}", f"hydra.sweeper.n_trials={n_trials}"]
    with open(folder / "log.txt", "ab") as log:
        return subprocess.Popen(
            [*command, *SETTINGS, *options], stdout=log, stderr=log, start_new_session=True
        )


def run(folder: Path, n_trials: int, n_kills: int) -> list[dict[str, Any]]:
    """Run the search to its end; return when a searcher was killed, and its running trials."""
    drawn, started_at = random.Random(), time.perf_counter()
    searchers = [start(folder, n_trials) for _ in range(2)]
    kills: list[dict[str, Any]] = []
    while len(kills) < n_kills:
        time.sleep(drawn.uniform(10.0, 40.0))
        chosen = drawn.randrange(2)
        if searchers[chosen].poll() is None:
            os.killpg(searchers[chosen].pid, signal.SIGKILL)
            seconds = round(time.perf_counter() - started_at, 1)
            kills.append({"seconds": seconds, "searcher": chosen, "trials": len(trials(folder))})
        searchers[chosen].wait()
        searchers[chosen] = start(folder, n_trials)
    codes = [searcher.wait() for searcher in searchers]
    assert codes == [0, 0], (folder / "log.txt").read_text(encoding="utf-8")[-2000:]
    return kills


def trials(folder: Path) -> list[Any]:
    """The trials in the storage."""
    from headwise.commands.search import open_study

    sweeps = [path.parent for path in folder.glob("outputs/sweeps/*/journal.log")]
    settings = {"storage": None, "study_name": "killed", "pruner": "none", "pruner_options": None}
    return open_study(sweeps[0], settings).get_trials() if sweeps else []


def check(folder: Path, n_trials: int) -> dict[str, int]:
    """Count the trials, their distinct values and runs, and the runs with wrong records."""
    known = trials(folder)
    runs = {trial.user_attrs["run_1"] for trial in known}
    folders = {str(path.parent) for path in folder.glob("outputs/default/*/results.json")}
    wrong = 0
    for trial in known:
        lines = read_jsonl(Path(trial.user_attrs["run_1"]) / "metrics.jsonl")
        updates = [line["update"] for line in lines if "train/loss" in line]
        losses = [line["valid/loss"] for line in lines if "valid/loss" in line]
        wrong += updates != list(range(1, 41)) or trial.value != min(losses)
    return {
        "trials": len(known),
        "complete": sum(trial.state.name == "COMPLETE" for trial in known),
        "distinct values": len({tuple(trial.params.items()) for trial in known}),
        "runs": len(runs & folders),
        "other run folders": len(folders - runs),
        "wrong records": wrong,
    }


def main() -> None:
    """Run the search, print and save what remains."""
    args = arguments(__doc__, kills={"type": int, "default": 3}, trials={"type": int})
    n_trials = args.trials or (8 if args.quick else 60)
    with tempfile.TemporaryDirectory() as name:
        folder, started_at = Path(name), time.perf_counter()
        kills = run(folder, n_trials, args.kills)
        counts = check(folder, n_trials)
        seconds = round(time.perf_counter() - started_at, 1)
        resumed = (folder / "log.txt").read_text(encoding="utf-8").count("resuming in ")
    print(json.dumps({**counts, "kills": kills, "resumed runs": resumed, "seconds": seconds}))
    ok = {"trials": n_trials, "complete": n_trials, "distinct values": n_trials, "runs": n_trials}
    assert counts == {**ok, "other run folders": 0, "wrong records": 0}, "trials are lost or wrong"
    keep(args.json, {**counts, "kills": kills, "resumed runs": resumed, "seconds": seconds})


if __name__ == "__main__":
    main()
