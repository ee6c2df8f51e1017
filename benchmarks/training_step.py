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
import statistics
import subprocess
import sys
import time

import torch

from benchmarks.clock import machine
from headwise.attention.build import AttentionFactory
from headwise.config_dir import group_choices, group_node
from headwise.model.transformer import Transformer
from headwise.precision import autocast
from headwise.schema import ModelConfig
from headwise.train.loss import CrossEntropy
from headwise.train.memory import keep_freed_memory

MODEL = ModelConfig("small", 3, 3, 256, 4, 1024)
VOCABULARY, SENTENCES, LENGTH = 6000, 128, 16
CPU = torch.device("cpu")


class Step:
    """One model with its optimizer and a batch."""

    def __init__(self, variant: str, precision: str) -> None:
        factory = AttentionFactory({"attention": group_node("attention", variant)}, dropout=0.1)
        self.model = Transformer(MODEL, VOCABULARY, VOCABULARY, True, factory, seed=1)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-4, fused=True)
        self.loss = CrossEntropy(0.1)
        self.precision = precision
        generator = torch.Generator().manual_seed(1)
        shape = (SENTENCES, LENGTH)
        self.source = torch.randint(4, VOCABULARY, shape, generator=generator)
        self.target = torch.randint(4, VOCABULARY, shape, generator=generator)
        self.lengths = torch.randint(12, LENGTH + 1, (SENTENCES,), generator=generator)

    def __call__(self) -> float:
        """Seconds of one step."""
        clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
        start = clock()
        with autocast(CPU, self.precision):
            states_BTD = self.model.states(self.source, self.lengths, self.target)
            sums = self.loss.of_states(states_BTD, self.model.output.weight, self.target)
        (sums.loss / self.target.numel()).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return clock() - start


def measure(keep: bool, repeats: int) -> dict[str, float]:
    """Median seconds by "precision variant", interleaved."""
    if keep:
        keep_freed_memory()
    steps = {
        f"{precision} {variant}": Step(variant, precision)
        for precision in ("fp32", "bf16")
        for variant in group_choices("attention")
    }
    taken: dict[str, list[float]] = {name: [] for name in steps}
    for repeat in range(repeats + 1):
        for name, step in steps.items():
            seconds = step()
            if repeat:  # the first is for warming up
                taken[name].append(seconds)
    return {name: statistics.median(samples) for name, samples in taken.items()}


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
