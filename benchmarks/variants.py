"""What a training step of every variant costs beside softmax: time and memory.

    OMP_NUM_THREADS=1 python -m benchmarks.variants [--quick] [--model tiny|small] [--json FILE]

The rows are those of `conf/variant/`, each composed as `python train.py variant=…` composes it,
with its loss and its repulsion. Batches are random, of 2048 tokens with sentences of 16, as
Multi30k's are. Variants run interleaved in one process; the ratios are of medians. Memory is what
a step holds when all layers have gone forward, above the model and its optimizer. With one thread
the time is that of the processor, which other load on the machine lengthens less; else it is
that of the clock.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path

import torch
from hydra import compose, initialize_config_dir

from benchmarks.clock import keep, machine
from headwise.config_dir import config_dir, group_choices
from headwise.instantiate import instantiate
from headwise.model.build import build_model
from headwise.model.gates import gate_penalty
from headwise.precision import autocast, resolve_precision
from headwise.schema import Config, register
from headwise.train.memory import PeakMemory, keep_freed_memory
from headwise.train.optim import build_optimizer
from headwise.train.settings import typed

VOCABULARY, SENTENCES, LENGTH = 2000, 128, 16
CPU = torch.device("cpu")
BASELINE = "softmax"


def composed(variant: str, model: str) -> Config:
    """The configuration of a variant."""
    with initialize_config_dir(str(config_dir()), version_base="1.3"):
        return typed(compose("train", [f"variant={variant}", f"model={model}"]))


class Step:
    """One model with its optimizer and a batch."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.model = build_model(config, VOCABULARY, VOCABULARY, config.tokenizer.joint)
        self.optimizer = build_optimizer(config.optimizer, self.model)
        self.loss = instantiate(config.loss, "loss")
        self.repulsion = instantiate(config.repulsion, "repulsion")
        self.precision = resolve_precision(config.trainer.precision, CPU)
        generator = torch.Generator().manual_seed(1)
        shape = (SENTENCES, LENGTH)
        self.source = torch.randint(4, VOCABULARY, shape, generator=generator)
        self.target = torch.randint(4, VOCABULARY, shape, generator=generator)
        self.lengths = torch.randint(12, LENGTH + 1, (SENTENCES,), generator=generator)
        self.n_steps = 0
        self.peak_bytes: int | None = None

    def __call__(self) -> float:
        """Seconds of one step."""
        clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
        memory = PeakMemory(CPU)
        self.n_steps += 1
        start = clock()
        with autocast(CPU, self.precision):
            states_BTD = self.model.states(self.source, self.lengths, self.target)
            memory.look()
            sums = self.loss.of_states(states_BTD, self.model.output.weight, self.target)
        (sums.loss / self.target.numel()).backward()
        penalty = gate_penalty(self.model)
        if penalty is not None:
            penalty.backward()
        self.repulsion(self.model, self.n_steps, self.config.seed)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.peak_bytes = memory.bytes
        return clock() - start


def measure(model: str, repeats: int) -> dict[str, dict[str, float | None]]:
    """Variant -> median seconds and bytes of a step, interleaved."""
    keep_freed_memory()
    steps = {name: Step(composed(name, model)) for name in group_choices("variant")}
    taken: dict[str, list[float]] = {name: [] for name in steps}
    for repeat in range(repeats + 1):
        for name, step in steps.items():
            seconds = step()
            if repeat:  # the first is for warming up
                taken[name].append(seconds)
    return {
        name: {"seconds": statistics.median(samples), "bytes": steps[name].peak_bytes}
        for name, samples in taken.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="time a training step of every variant on a CPU")
    parser.add_argument("--quick", action="store_true", help="3 repeats instead of 11")
    parser.add_argument("--model", default="tiny", help="tiny or another of conf/model")
    parser.add_argument("--json", type=Path, metavar="FILE", help="keep the figures here")
    arguments = parser.parse_args()
    register()
    repeats = 3 if arguments.quick else 11
    where = f"{machine()}, {torch.get_num_threads()} thread(s)"
    print(f"machine: {where}\nmodel={arguments.model}, medians of {repeats}, to {BASELINE}")
    found = measure(arguments.model, repeats)
    base = found[BASELINE]
    for name, figures in found.items():
        assert figures["seconds"] is not None
        assert base["seconds"] is not None
        memory = "-"
        if figures["bytes"] and base["bytes"]:
            memory = f"{figures['bytes'] / base['bytes']:.2f}"
        print(
            f"  {name:<20} tokens/s {base['seconds'] / figures['seconds']:5.2f}   memory {memory}"
        )
    if arguments.json:
        content = {"machine": where, "model": arguments.model, "repeats": repeats}
        keep(arguments.json, {**content, "variants": found})


if __name__ == "__main__":
    main()
