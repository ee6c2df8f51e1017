"""Seconds of a job of a sweep beside its updates, validation, scoring and figures.

    python -m benchmarks.job_cost [--jobs 6] [--launchers basic joblib submitit_local] [--json FILE]

Jobs of a tiny model run one after the other; a job is the time from the results of the former job
(of the first, from the command) to its own. All is read from what runs record: when the updates
started (summary.json), how long they took (results.json), and the times of files: `config.yaml` is
written when a job starts, `best.pt` after the only validation, `last.json` after the checkpoints,
the hypotheses after scoring, results.json at the end.

- launch: from the results of the former job to the start of this one; with joblib and
  submitit_local it includes a new process and its imports. setup: to the first update.
- overhead: launch + setup + saving + end; of all jobs but the first, median and maximum. That of
  the first job includes the start of the command.

With `--profile` a job in this process is profiled instead, the second of two.
"""

from __future__ import annotations

import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks import command
from benchmarks.interruptions import ROOT, SMALL, Outputs
from headwise.files import read_json

LAUNCHERS = ("basic", "joblib", "submitit_local")
PARTS = ("launch", "setup", "updates", "validation", "saving", "scoring", "figures", "end")
OVERHEAD = ("launch", "setup", "saving", "end")
Row = dict[str, Any]


def parts(run: Path, start: float) -> dict[str, float]:
    """Seconds of each part of a finished run."""
    first = read_json(run / "summary.json")["started"]
    moments = [
        start,
        (run / "config.yaml").stat().st_mtime,
        first,
        first + read_json(run / "results.json")["wall_seconds"],
        (run / "checkpoints" / "best.pt").stat().st_mtime,
        (run / "checkpoints" / "last.json").stat().st_mtime,
        newest(run / "hypotheses"),
        newest(run / "figures"),
        (run / "results.json").stat().st_mtime,
    ]
    spans = itertools.pairwise(moments)
    return {name: end - begin for name, (begin, end) in zip(PARTS, spans, strict=True)}


def newest(folder: Path) -> float:
    """Time of the newest file."""
    return max(path.stat().st_mtime for path in folder.iterdir())


def sweep(outputs: Outputs, launcher: str, n_jobs: int, updates: int) -> Row:
    """Run the jobs, one at a time; return the median of each part, and the overhead."""
    options = ["-m", f"seed=range(1,{n_jobs + 1})", f"trainer.max_updates={updates}"]
    if launcher != "basic":
        options += [f"hydra/launcher={launcher}", "hydra.launcher.n_jobs=1"]
    start = time.time()
    if code := outputs.run(*options):
        raise SystemExit(f"{launcher} ended with {code}:\n{outputs.log.read_text('utf-8')}")
    ended = time.time()
    results = outputs.folder.glob("default/*/results.json")
    runs = sorted((path.stat().st_mtime, path.parent) for path in results)
    starts = [start, *(moment for moment, _ in runs)]
    jobs = [parts(run, begin) for begin, (_, run) in zip(starts, runs, strict=False)]
    overheads = [sum(job[name] for name in OVERHEAD) for job in jobs]
    medians = {name: statistics.median(job[name] for job in jobs[1:]) for name in PARTS}
    return {
        "launcher": launcher,
        "jobs": len(jobs),
        **{name: round(value, 3) for name, value in medians.items()},
        "overhead": round(statistics.median(overheads[1:]), 2),
        "overhead_max": round(max(overheads[1:]), 2),
        "overhead_first": round(overheads[0], 2),
        "end_of_command": round(ended - starts[-1], 2),
    }


PROFILE = """
import cProfile, pstats, sys, time
from headwise.commands import train as module
train, calls = module.train, []
def profiled(*arguments):
    profile, start = cProfile.Profile(), time.process_time()
    calls.append(profile)
    if len(calls) == 1:
        return train(*arguments)
    profile.enable()
    try:
        return train(*arguments)
    finally:
        profile.disable()
        print(f"{time.process_time() - start:.2f} s of processor time")
        pstats.Stats(profile).sort_stats("cumulative").print_stats(90)
module.train = profiled
from headwise.cli import main
main("train")
"""


def main() -> None:
    args = command.arguments(
        __doc__,
        jobs={"type": int, "default": 6, "help": "of each launcher"},
        updates={"type": int, "default": 50, "help": "of a job"},
        launchers={"nargs": "+", "choices": LAUNCHERS, "default": LAUNCHERS},
        profile={"action": "store_true", "help": "print where a job spends its time"},
    )
    n_jobs = 3 if args.quick else args.jobs
    rows = []
    with tempfile.TemporaryDirectory(prefix="headwise-") as path:
        Outputs(Path(path) / "first").run("trainer.max_updates=5")  # prepares the data
        if args.profile:
            paths = [f"paths.outputs={path}/profile", f"paths.cache={path}/cache"]
            call = [sys.executable, "-c", PROFILE, "-m", *SMALL, *paths, "seed=1,2",
                    f"trainer.max_updates={args.updates}"]  # fmt: skip
            subprocess.run(call, check=True, cwd=ROOT, env=os.environ)
            return
        for launcher in args.launchers:
            rows.append(sweep(Outputs(Path(path) / launcher), launcher, n_jobs, args.updates))
            print(json.dumps(rows[-1]), flush=True)
    command.keep(args.json, {"updates": args.updates, "sweeps": rows})


if __name__ == "__main__":
    main()
