"""Time of one training step by variant, precision, and treatment of freed memory.

    python -m benchmarks.training_step [--quick]

`model=small` (3+3 layers, width 256) on random batches of 2048 tokens with sentences of 16, the
size of Multi30k's. Variants run interleaved in one process; the output is ratios of medians to
softmax. Keeping freed memory is a setting of a whole process, so each setting is measured in a
separate process. With one thread (OMP_NUM_THREADS=1) the time is that of the processor, which other
load on the machine lengthens less; else it is that of the clock.
"""

from __future__ import annotations

from benchmarks.clock import medians
from benchmarks.command import arguments, in_own_process, keep
from benchmarks.updates import LENGTH, SENTENCES, Updates
from headwise.config.folders import group_choices
from headwise.train.memory import keep_freed_memory

VOCABULARY = 6000


def measure(keeps_memory: bool, repeats: int) -> dict[str, float]:
    """Median seconds by "precision variant", interleaved."""
    if keeps_memory:
        keep_freed_memory()
    updates = {
        f"{precision} {name}": Updates.of_short_sentences(
            VOCABULARY, f"attention={name}", "model=small", f"trainer.precision={precision}"
        )
        for precision in ("fp32", "bf16")
        for name in group_choices("attention")
    }
    return medians(updates, repeats)


def main() -> None:
    args = arguments(__doc__)
    repeats = 3 if args.quick else 7
    returned, reused = (in_own_process(measure, keeps, repeats) for keeps in (False, True))
    print(f"medians of {repeats}; freed memory kept; last: the same with memory returned / kept")
    for name, seconds in reused.items():
        softmax = reused[f"{name.split()[0]} softmax"]
        print(
            f"  {name:<20} {SENTENCES * LENGTH / seconds:7.0f} tokens/s   "
            f"{seconds / softmax:5.2f} x softmax   {returned[name] / seconds:5.2f}"
        )
    keep(args.json, {"kept": reused, "returned": returned})


if __name__ == "__main__":
    main()
