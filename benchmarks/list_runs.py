"""Seconds of `headwise runs` on many run folders, from the start of Python to its exit.

    python -m benchmarks.list_runs [--runs 10000] [--json FILE]

A quarter of the runs are interrupted, so that the end of their metrics.jsonl is read too. The files
are in the page cache.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.command import arguments, keep
from headwise.runs.results import Results
from headwise.runs.summary import Summary

N_REPEATS = 5
METRICS = {"bleu": 30.0, "bleu_tokenised": 31.0, "chrf": 55.0, "chrf++": 53.0, "loss": 2.5}


def write_runs(outputs: Path, n: int) -> None:
    """Write `n` run folders, 1,000 per experiment."""
    scores = {name: {"score": score} for name, score in METRICS.items()}
    results = Results(dict.fromkeys(("valid", "test"), scores), updates=1000)
    keys = ("train/loss", "train/nll", "train/lr", "train/tokens", "train/epoch")
    lines = [{"update": 50 * i, **dict.fromkeys(keys, 1.5)} for i in range(1, 21)]
    for number in range(n):
        attention = ("softmax", "entmax15", "alpha_entmax")[number % 3]
        overrides = ["data=multi30k", f"attention={attention}", f"seed={number}"]
        name = f"attention-{attention}_data-multi30k_seed-{number}-{number:08x}"
        run = outputs / f"experiment{number // 1000}" / name
        (run / "checkpoints").mkdir(parents=True)
        for file in (".lock", "config.yaml", "overrides.yaml", "environment.json", "data.json"):
            (run / file).touch()
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (run / "metrics.jsonl").write_text(text, encoding="utf-8")
        summary = Summary("translation", "bleu", overrides, max_updates=2000)
        if number % 4:
            (run / "results.json").touch()
            summary = summary.with_results(results)
        (run / "summary.json").write_text(json.dumps(vars(summary)), encoding="utf-8")


def main() -> None:
    """Time the command."""
    args = arguments(__doc__, runs={"type": int, "default": 10_000})
    n, command = 100 if args.quick else args.runs, "from headwise.cli import main; main('runs')"
    with tempfile.TemporaryDirectory() as folder:
        write_runs(Path(folder) / "outputs", n)
        seconds = []
        for _ in range(N_REPEATS + 1):  # the first fills the page cache
            started_at = time.perf_counter()
            call = [sys.executable, "-c", command, f"runs=[{folder}/outputs]", "sort=-test/bleu"]
            output = subprocess.run(call, check=True, capture_output=True, text=True).stdout
            seconds.append(round(time.perf_counter() - started_at, 3))
    last = output.splitlines()[-1]
    print(f"{last}\n{statistics.median(seconds[1:]):.2f} s, median of {seconds[1:]}")
    keep(args.json, {"runs": n, "counts": last, "seconds": seconds[1:], "first": seconds[0]})


if __name__ == "__main__":
    main()
