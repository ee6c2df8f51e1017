"""What a training step of every variant costs beside softmax: time and memory.

    OMP_NUM_THREADS=1 python -m benchmarks.variants [--quick] [--model tiny|small] [--json FILE]

The rows are those of `conf/variant/`, each run_config as `python train.py variant=…` composes it,
with its loss and its repulsion. Batches are random, of 2048 tokens with sentences of 16, as
Multi30k's are. Variants run interleaved in one process; the ratios are of medians. Memory is what
a step holds when all layers have gone forward, above the model and its optimizer. With one thread
the time is that of the processor, which other load on the machine lengthens less; else it is
that of the clock.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from benchmarks.clock import keep, machine, medians
from benchmarks.updates import Updates, full_rows, run_config
from headwise.config.folders import group_choices
from headwise.train.memory import keep_freed_memory

VOCABULARY, SENTENCES, LENGTH, SHORTEST = 2000, 128, 16, 12
BASELINE = "softmax"


def measure(model: str, repeats: int) -> dict[str, dict[str, float | None]]:
    """Variant -> median seconds and bytes of a step, interleaved."""
    keep_freed_memory()
    batch = full_rows(SENTENCES, LENGTH, VOCABULARY, SHORTEST)
    updates = {
        name: Updates(run_config(f"variant={name}", f"model={model}"), VOCABULARY, [batch])
        for name in group_choices("variant")
    }
    taken = medians(updates, repeats)
    return {
        name: {"seconds": taken[name], "bytes": update.held_bytes()}
        for name, update in updates.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="time a training step of every variant on a CPU")
    parser.add_argument("--quick", action="store_true", help="3 repeats instead of 11")
    parser.add_argument("--model", default="tiny", help="tiny or another of conf/model")
    parser.add_argument("--json", type=Path, metavar="FILE", help="keep the figures here")
    arguments = parser.parse_args()
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
