"""Time and memory of a training step of every variant, relative to softmax.

    OMP_NUM_THREADS=1 python -m benchmarks.variants [--quick] [--model tiny|small] [--json FILE]

The rows are those of `conf/study/variants.yaml`, each with its overrides, so with its loss and its
repulsion. Batches are random, of 2048 tokens with sentences of 16, as
Multi30k's are. Variants run interleaved in one process; the ratios are of medians. Memory is what
autograd saves in the forward pass of all layers. With one thread the time is
that of the processor, which other load on the machine lengthens less; else it is that of the clock.
"""

from __future__ import annotations

from benchmarks.clock import medians
from benchmarks.command import arguments, keep
from benchmarks.updates import Updates
from headwise.config.folders import group_node
from headwise.studies.study import read_study
from headwise.train.memory import keep_freed_memory

VOCABULARY, BASELINE = 2000, "softmax"


def measure(model: str, repeats: int) -> dict[str, dict[str, float]]:
    """Return variant -> median seconds and bytes of a step, interleaved."""
    keep_freed_memory()
    updates = {
        name: Updates.of_short_sentences(VOCABULARY, *(row.overrides or ()), f"model={model}")
        for name, row in read_study(group_node("study", "variants")).rows.items()
    }
    taken = medians(updates, repeats)
    return {
        name: {"seconds": taken[name], "bytes": update.saved_bytes()}
        for name, update in updates.items()
    }


def main() -> None:
    model = {"default": "tiny", "help": "tiny or another of conf/model"}
    args = arguments(__doc__, model=model)
    repeats = 3 if args.quick else 11
    print(f"model={args.model}, medians of {repeats}, to {BASELINE}")
    results = measure(args.model, repeats)
    base = results[BASELINE]
    for name, row in results.items():
        speed, memory = base["seconds"] / row["seconds"], row["bytes"] / base["bytes"]
        print(f"  {name:<20} tokens/s {speed:5.2f}   memory {memory:.2f}")
    keep(args.json, {"model": args.model, "repeats": repeats, "variants": results})


if __name__ == "__main__":
    main()
