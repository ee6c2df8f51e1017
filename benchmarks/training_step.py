"""Time of one training step by variant, precision, and treatment of freed memory.

    python -m benchmarks.training_step [--quick]

`model=small` (3+3 layers, width 256) on random batches of 2048 tokens with sentences of 16, the
size of Multi30k's. Variants run interleaved in one process; what is printed are ratios of medians
to softmax. Whether freed memory is kept can only be chosen for a whole process, so that each
choice gets a process of its own. With one thread (OMP_NUM_THREADS=1) the time is that of the
processor, which other load on the machine lengthens less; else it is that of the clock.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys

import torch

from benchmarks.clock import machine, medians
from benchmarks.updates import Updates, full_rows, run_config
from headwise.config.folders import group_choices
from headwise.train.memory import keep_freed_memory

VOCABULARY, SENTENCES, LENGTH, SHORTEST = 6000, 128, 16, 12


def measure(keep: bool, repeats: int) -> dict[str, float]:
    """Median seconds by "precision variant", interleaved."""
    if keep:
        keep_freed_memory()
    batch = full_rows(SENTENCES, LENGTH, VOCABULARY, SHORTEST)
    return medians(
        {
            f"{precision} {variant}": Updates(
                run_config(f"attention={variant}", "model=small", f"trainer.precision={precision}"),
                VOCABULARY,
                [batch],
            )
            for precision in ("fp32", "bf16")
            for variant in group_choices("attention")
        },
        repeats,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="time a training step on this machine's CPU")
    parser.add_argument("--quick", action="store_true", help="3 repeats instead of 7")
    parser.add_argument("--one", choices=("kept", "returned"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    repeats = 3 if arguments.quick else 7
    if arguments.one:
        print(json.dumps(measure(arguments.one == "kept", repeats)))
        return
    print(f"machine: {machine()}, {torch.get_num_threads()} thread(s)")
    found = {}
    for choice in ("returned", "kept"):
        command = [sys.executable, "-m", "benchmarks.training_step", "--one", choice]
        command += ["--quick"] if arguments.quick else []
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        found[choice] = json.loads(done.stdout.splitlines()[-1])
    tokens = SENTENCES * LENGTH
    print(f"medians of {repeats}; freed memory kept; last: the same with memory returned / kept")
    for name, seconds in found["kept"].items():
        softmax = found["kept"][f"{name.split()[0]} softmax"]
        print(
            f"  {name:<20} {tokens / seconds:7.0f} tokens/s   {seconds / softmax:5.2f} x softmax"
            f"   {found['returned'][name] / seconds:5.2f}"
        )


if __name__ == "__main__":
    main()
