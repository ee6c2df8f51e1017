"""Runs and sweeps that are killed, stopped, requeued: are their results those of runs alone?

    python -m benchmarks.interruptions [--parts sweep signals requeues limits sbatch] [--json FILE]

- sweep: `--jobs` jobs over joblib with 2 workers; the launcher and its workers are killed (SIGKILL)
  `--kills` times, at random numbers of finished jobs. One job in 15 diverges by design.
- signals: Ctrl-C to the launching process and to its group, SIGTERM, scancel, while 2 jobs train,
  with each launcher.
- requeues, limits: a run under Slurm is requeued, or reaches its time limit of 2 minutes, `--times`
  times. sbatch: time limits with the script of docs/cluster.md.

Compared are the SHA-256 of checkpoints, heads.jsonl, metrics.jsonl without times, and hypotheses.
Slurm is that of `tests/slurm.sh`; without its programs these parts are left out. With `--quick`
everything is small. Full size: an hour and a half on two idle cores.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks import command
from headwise.commands.sweep import Sweep

ROOT = Path(__file__).parents[1]
SMALL = (
    "model=tiny", "model.d_model=32", "model.n_heads=2", "model.d_ff=64", "model.encoder_layers=1",
    "model.decoder_layers=1", "data.origins=[{_target_: headwise.data.builtin.BuiltinCorpus, "
    "n_train: 2000, n_valid: 20, n_test: 20}]", "tokenizer.vocab_size=300",
    "trainer.max_tokens=512", "trainer.n_workers=1", "trainer.average=0",
    "trainer.validate_every=100000", "trainer.save_every=100000", "trainer.log_every=5",
    "trainer.precision=fp32", "trainer.progress=false", "tracker=none", "decode.beam=1",
    "decode.max_length_extra=5",
)  # fmt: skip
SLURM = (
    "hydra/launcher=submitit_slurm",
    "hydra.launcher.cpus_per_task=1",
    "hydra.launcher.mem_gb=1",
)
LAUNCHERS = {
    "joblib": ("hydra/launcher=joblib", "hydra.launcher.n_jobs=2"),
    "submitit_local": ("hydra/launcher=submitit_local", "hydra.launcher.n_jobs=2"),
    "submitit_slurm": SLURM,
}
Row = dict[str, Any]


class Outputs:
    """Commands whose runs are in one folder, one at a time."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.log = folder / "log.txt"

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        """Start a training or a sweep in a process group of its own."""
        paths = [f"paths.outputs={self.folder}", f"paths.cache={self.folder.parent / 'cache'}"]
        first, rest = ([arguments[0]], arguments[1:]) if arguments[0] == "-m" else ([], arguments)
        with open(self.log, "ab") as log:
            return subprocess.Popen(
                [sys.executable, ROOT / "train.py", *first, *SMALL, *paths, *rest],
                stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip

    def run(self, *arguments: str) -> int:
        """Run a command to its end; return the exit code."""
        return self.start(*arguments).wait()

    def runs(self) -> dict[str, Path]:
        """Run folders by their overrides of seed and learning rate."""
        folders = {}
        for path in self.folder.glob("default/*/environment.json"):  # written last
            overrides = (path.parent / "overrides.yaml").read_text(encoding="utf-8")
            keys = re.findall(r"((?:seed|optimizer\.lr)=\S+)", overrides)
            name = " ".join(keys)
            if name in folders:
                raise SystemExit(f"two folders of {name}")
            folders[name] = path.parent
        return folders

    def n_finished(self) -> int:
        """Number of runs with results."""
        return len(list(self.folder.glob("default/*/results.json")))

    def digests(self) -> dict[str, str]:
        """Digest of each finished run."""
        finished = {k: run for k, run in self.runs().items() if (run / "results.json").is_file()}
        return {name: digest(run) for name, run in finished.items()}

    def records(self) -> list[Row]:
        """The records of the jobs of the only sweep."""
        (folder,) = self.folder.glob("sweeps/sweep-*/")
        return Sweep(folder.name, folder).jobs()


def digest(run: Path) -> str:
    """SHA-256 of all that must not depend on interruptions."""
    total = hashlib.sha256()
    for pattern in ("checkpoints/*.pt", "hypotheses/*.txt", "heads.jsonl"):
        for path in sorted(run.glob(pattern)):
            total.update(path.name.encode() + path.read_bytes())
    for line in (run / "metrics.jsonl").read_text("utf-8").splitlines():
        record = {k: v for k, v in json.loads(line).items() if not k.startswith("time/")}
        total.update(json.dumps(record).encode())
    return total.hexdigest()


def wait_until(holds: Callable[[], bool], process: subprocess.Popen[bytes]) -> bool:
    """Wait for a condition; return False if the process ends before."""
    while not holds():
        if process.poll() is not None:
            return False
        time.sleep(0.1)
    return True


def queued(*options: str) -> list[str]:
    """Jobs in the queue of Slurm."""
    command = ["squeue", "--noheader", "--format=%i", *options]
    return subprocess.check_output(command, text=True).split()


def n_logged(run: Path) -> int:
    """Number of log lines of a run."""
    path = run / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.is_file() else 0


def killed_sweep(folder: Path, n_jobs: int, n_kills: int) -> Row:
    """A sweep whose launcher and workers are killed; beside the same sweep in one process."""
    n_seeds = max(n_jobs // 15, 1)
    rates = ",".join(["1e30", *(f"{n}e-4" for n in range(1, 15))])
    seeds = ",".join(map(str, range(1, n_seeds + 1)))
    jobs = ("-m", f"optimizer.lr={rates}", f"seed={seeds}", "scheduler=constant", "norm=post",
            "trainer.max_updates=20")  # fmt: skip
    n_good = 14 * n_seeds
    killed, straight = Outputs(folder / "killed"), Outputs(folder / "straight")
    moments = sorted(random.Random(1).sample(range(1, n_good), min(n_kills, n_good - 1)))
    for moment in moments:
        process = killed.start(*jobs, *LAUNCHERS["joblib"])
        wait_until(lambda at=moment: killed.n_finished() >= at, process)  # type: ignore[misc]
        time.sleep(random.Random(moment).random())
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        time.sleep(1)
    code = killed.run(*jobs, *LAUNCHERS["joblib"])
    straight.run(*jobs)
    records, alone, same = killed.records(), straight.digests(), killed.digests()
    table = next(killed.folder.glob("sweeps/*.md")).read_text("utf-8")
    return {
        "jobs": len(records), "kills": len(moments), "exit_code": code,
        "results": len(same), "failed": sum("error" in record for record in records),
        "same_as_alone": sum(alone.get(name) == value for name, value in same.items()),
        "rows_of_table": len(table.splitlines()) - 2,
        "rows_in_order": names(records) == names(straight.records()),
    }  # fmt: skip


def names(records: Sequence[Row]) -> list[list[str]]:
    """Overrides of jobs, without folders."""
    return [[o for o in job["overrides"] if not o.startswith("paths.")] for job in records]


def stopped_sweep(
    folder: Path, launcher: str, way: str, straight: Mapping[str, str], *jobs: str
) -> Row:
    """A sweep of two jobs that is stopped while both train, and resumed."""
    outputs = Outputs(folder / f"{launcher}-{way}".replace(" ", "-"))
    sweep = ("-m", *jobs, *LAUNCHERS[launcher])
    process = outputs.start(*sweep)

    def both_train() -> bool:
        runs = outputs.runs()
        return len(runs) == 2 and all(n_logged(run) > 2 for run in runs.values())

    trained = wait_until(both_train, process)
    at = time.monotonic()
    if way == "scancel":
        subprocess.run(["scancel", *queued("--array")], check=True)
    elif way == "SIGINT to the group":
        os.killpg(process.pid, signal.SIGINT)
    else:
        process.send_signal(signal.SIGTERM if way == "SIGTERM" else signal.SIGINT)
    code = process.wait()
    seconds = round(time.monotonic() - at, 1)
    saved = [(run / "checkpoints" / "last.json").is_file() for run in outputs.runs().values()]
    finished = outputs.n_finished()
    again = outputs.run(*sweep)
    return {
        "launcher": launcher, "signal": way, "both_trained": trained, "exit_code": code,
        "seconds": seconds, "saved": sum(saved), "finished": finished, "exit_code_again": again,
        "same_as_alone": outputs.digests() == straight,
    }  # fmt: skip


def signals(folder: Path, launchers: Sequence[str], updates: int) -> Iterator[Row]:
    """Each signal with each launcher."""
    jobs = ("seed=1,2", f"trainer.max_updates={updates}")
    alone = Outputs(folder / "alone")
    alone.run("-m", *jobs)
    straight = alone.digests()
    for launcher in launchers:
        ways = ["SIGINT to the parent", "SIGINT to the group", "SIGTERM"]
        for way in [*ways, "scancel"] if launcher == "submitit_slurm" else ways:
            yield stopped_sweep(folder, launcher, way, straight, *jobs)


def requeued(folder: Path, times: int, updates: int, straight: str) -> Row:
    """A run that is requeued while it trains."""
    outputs = Outputs(folder / "requeued")
    job = ("-m", "seed=1", f"trainer.max_updates={updates}")
    process = outputs.start(*job, *SLURM)
    done = 0
    while done < times:
        before = sum(map(n_logged, outputs.runs().values()))
        progressed = lambda n=before: sum(map(n_logged, outputs.runs().values())) > n + 2  # noqa: E731
        if not wait_until(progressed, process):
            break
        subprocess.run(["scontrol", "requeue", *queued()], check=True)
        done += 1
        time.sleep(3)
    return summary("requeues", outputs, process.wait(), done, straight)


def limited(folder: Path, times: int, updates: int, straight: str) -> Row:
    """A run that reaches its time limit again and again, under the launcher."""
    outputs = Outputs(folder / "limited")
    limit = ("hydra.launcher.timeout_min=2", "hydra.launcher.signal_delay_s=60",
             f"hydra.launcher.max_num_timeout={10 * times}")  # fmt: skip
    code = outputs.run("-m", "seed=1", f"trainer.max_updates={updates}", *SLURM, *limit)
    return summary("limits", outputs, code, restarts(outputs), straight)


def batch_script(folder: Path, updates: int, straight: str) -> Row:
    """Time limits with the script of the guide."""
    outputs = Outputs(folder / "batch")
    page = (ROOT / "docs" / "cluster.md").read_text("utf-8")
    script = page.partition('title="train.sbatch"\n')[2].partition("```")[0]
    process = [sys.executable, str(ROOT / "train.py"), *SMALL, "seed=1",
               f"trainer.max_updates={updates}", f"paths.outputs={outputs.folder}",
               f"paths.cache={folder / 'cache'}"]  # fmt: skip
    quoted = " ".join(f"'{argument}'" for argument in process)
    script = re.sub(r"python train\.py [^&\n]*", lambda _: f"{quoted} ", script)
    (folder / "train.sbatch").write_text(script, encoding="utf-8")
    options = ["--cpus-per-task=1", "--mem=1G", "--time=2", "--signal=B:USR1@60",
               f"--output={outputs.log}"]  # fmt: skip
    submitted = subprocess.check_output(
        ["sbatch", "--parsable", *options, folder / "train.sbatch"], text=True
    )
    while queued():
        time.sleep(2)
    state = subprocess.check_output(["scontrol", "show", "job", submitted.strip()], text=True)
    code = int(re.search(r"ExitCode=(\d+)", state)[1])  # type: ignore[index]
    return summary("limits, batch script", outputs, code, restarts(outputs), straight)


def restarts(outputs: Outputs) -> int:
    """Number of times that the only run was resumed."""
    logs = [outputs.log, *outputs.folder.glob("sweeps/*/0.log")]
    return sum(log.read_text("utf-8").count("resuming in") for log in logs)


def summary(name: str, outputs: Outputs, code: int, done: int, straight: str) -> Row:
    """A row of the parts with one run."""
    is_same = list(outputs.digests().values()) == [straight]
    return {
        "part": name, "times": done, "resumed": restarts(outputs), "exit_code": code,
        "runs": len(outputs.runs()), "same_as_straight": is_same,
    }  # fmt: skip


def under_slurm(folder: Path, parts: Sequence[str], times: int, minutes: float) -> Iterator[Row]:
    """Requeues and time limits, of a run that takes `minutes` alone."""
    probe = Outputs(folder / "probe")
    probe.run("seed=1", "trainer.max_updates=400")
    (run,) = probe.runs().values()
    seconds = json.loads((run / "results.json").read_text("utf-8"))["wall_seconds"]
    updates = max(int(400 / seconds * 60 * minutes) // 5 * 5, 200)
    alone = Outputs(folder / "straight")
    alone.run("seed=1", f"trainer.max_updates={updates}")
    (straight,) = alone.digests().values()
    if "requeues" in parts:
        yield requeued(folder, times, updates, straight)
    if "limits" in parts:
        yield limited(folder, times, updates, straight)
    if "sbatch" in parts:
        yield batch_script(folder, updates, straight)


@contextmanager
def slurm(folder: Path) -> Iterator[bool]:
    """Start a Slurm, if there are its programs; its address is in the environment."""
    if not all(map(shutil.which, ("slurmctld", "slurmd", "munged", "srun"))):
        yield False
        return
    script = str(ROOT / "tests" / "slurm.sh")
    subprocess.run([script, "start", folder], check=True)
    os.environ["SLURM_CONF"] = str(folder / "slurm.conf")
    try:
        yield True
    finally:
        subprocess.run([script, "stop", folder], check=True)


def main() -> None:
    parts = ("sweep", "signals", "requeues", "limits", "sbatch")
    args = command.arguments(
        __doc__,
        parts={"nargs": "+", "choices": parts, "default": parts, "help": "default: all"},
        launchers={
            "nargs": "+",
            "choices": LAUNCHERS,
            "default": [*LAUNCHERS],
            "help": "of signals",
        },
        jobs={"type": int, "default": 300, "help": "of the sweep, a multiple of 15"},
        kills={"type": int, "default": 5, "help": "of the sweep"},
        times={"type": int, "default": 10, "help": "requeues, and time limits"},
        minutes={"type": float, "default": 12.0, "help": "of the run under Slurm, alone"},
        updates={"type": int, "default": 1500, "help": "of runs that get a signal"},
    )
    if args.quick:
        args.jobs, args.kills, args.times, args.minutes = 15, 2, 1, 1.5
    os.environ["OMP_NUM_THREADS"] = "1"
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # stops Slurm
    rows: dict[str, Any] = {}

    def add(name: str, row: Row) -> None:
        print(name, json.dumps(row), flush=True)
        rows.setdefault(name, []).append(row)

    with tempfile.TemporaryDirectory(prefix="headwise-") as path:
        folder = Path(path)
        if "sweep" in args.parts:
            add("sweep", killed_sweep(folder / "sweep", args.jobs, args.kills))
        with slurm(folder / "slurm") as has_slurm:
            if "signals" in args.parts:
                launchers = [n for n in args.launchers if has_slurm or n != "submitit_slurm"]
                for row in signals(folder / "signals", launchers, args.updates):
                    add("signals", row)
            if has_slurm and {"requeues", "limits", "sbatch"} & set(args.parts):
                for row in under_slurm(folder / "run", args.parts, args.times, args.minutes):
                    add("slurm", row)
    command.keep(args.json, rows)


if __name__ == "__main__":
    main()
