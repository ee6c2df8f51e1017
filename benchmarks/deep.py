"""Very deep models on a CPU: do they learn, and what does recomputation cost and save?

    OMP_NUM_THREADS=1 python -m benchmarks.deep [--quick]

First 104 layers (52 + 52, width 32) are trained for 100 updates on pairs of the built-in corpus,
words as they are: as `model=deep` has it, with Glorot's initial weights, with those and the
original post-norm. Then `model=deep` at several depths, with and without recomputation. All
updates are those of `python train.py`. Times are medians, the two interleaved in one process; with
one thread the time is that of the processor, which other load on the machine lengthens less. Memory
is by how much the resident set of a process of its own rises in its second update (gradients, the
same for both, and activations; weights and Adam's moments stand before; Linux only), and beside it
what autograd has saved when all layers have gone forward.
"""

from __future__ import annotations

import itertools
import math
import os
import statistics
from collections import Counter
from itertools import islice
from typing import Any

from benchmarks.clock import medians
from benchmarks.command import arguments, in_own_process, keep
from benchmarks.resident import added_bytes
from benchmarks.updates import Updates, full_rows, run_config
from headwise.data.builtin import BuiltinCorpus
from headwise.data.loader import BatchLoader
from headwise.data.tokenizer import EOS, N_SPECIALS, UNK
from headwise.tasks.translation.batches import TrainingPairs
from headwise.tasks.translation.store import EncodedSplit
from headwise.train.memory import keep_freed_memory, return_free_pages

MIB = 2**20
MAX_TOKENS, N_PAIRS, N_WORDS = 256, 2000, 300
SENTENCES, LENGTH, VOCABULARY = 16, 32, 1000
# layers a side and updates that learn, layers a side and repeats that are timed
WHOLE, QUICK = (52, 100, [6, 24, 48], 3), (10, 20, [4, 12], 1)
COMMON = ("model=deep", "trainer.precision=fp32")
STARTS = {
    "scaled, pre-norm": (),
    "glorot, pre-norm": ("init=glorot",),
    "glorot, post-norm": ("init=glorot", "norm=post"),
}
LEARNING = (
    *("model.d_model=32", "model.d_ff=128", "model.dropout=0", "loss.label_smoothing=0"),
    *("optimizer.lr=1e-3", "scheduler=cosine", "trainer.clip_norm=1"),
)


def layers(n_layers: int) -> list[str]:
    """So many on either side."""
    return [f"model.encoder_layers={n_layers}", f"model.decoder_layers={n_layers}"]


# -- does it learn ------------------------------------------------------------------------------


def builtin_pairs() -> EncodedSplit:
    """Pairs of the built-in corpus, one id for each of the most frequent words of both sides."""
    corpus = BuiltinCorpus("de", "en", n_train=N_PAIRS, n_valid=1, n_test=1)
    pairs = [tuple(side.split() for side in pair) for pair in corpus.pairs("train")]
    counts = Counter(word for pair in pairs for side in pair for word in side)
    ids = {word: N_SPECIALS + i for i, (word, _) in enumerate(counts.most_common(N_WORDS))}
    sides = [
        [[*(ids.get(word, UNK) for word in pair[side]), EOS] for pair in pairs] for side in (0, 1)
    ]
    return EncodedSplit.from_lists(*sides)


def losses(overrides: list[str], split: EncodedSplit, n_updates: int) -> list[float]:
    """Mean loss per target token, of each update."""
    batches = list(islice(BatchLoader(TrainingPairs(split, MAX_TOKENS, seed=1)), n_updates))
    config = run_config(*COMMON, *LEARNING, *overrides)
    updates = Updates(config, N_SPECIALS + N_WORDS, batches)
    values = []
    for batch in batches:
        updates()
        values.append(updates.step.window[0].item() / batch.n_targets)
        updates.step.window.zero_()
    return values


def report_learning(n_layers: int, n_updates: int) -> dict[str, list[float]]:
    """The curves of all starts, which are printed."""
    split = builtin_pairs()
    tenth = max(n_updates // 10, 1)
    print(f"loss a target word, {n_layers} + {n_layers} layers, width 32, softmax; at update 1,")
    print(f"then the mean of each {tenth} updates of {n_updates}")
    rates = {"total": 2 * n_updates, "warmup": n_updates // 5}
    common = [*layers(n_layers), *(f"scheduler.{p}_updates={n}" for p, n in rates.items())]
    curves = {}
    for name, start in STARTS.items():
        values = losses([*common, *start], split, n_updates)
        means = [statistics.mean(values[i : i + tenth]) for i in range(0, n_updates, tenth)]
        curves[name] = [values[0], *means]
        print(f"  {name:<18} " + " ".join(f"{value:.2f}" for value in curves[name]), flush=True)
    return curves


# -- what recomputation costs and saves ---------------------------------------------------------


def updates_of(n_layers: int, recompute: bool, attention: str) -> Updates:
    """A model of some depth, on one batch."""
    choices = [f"attention={attention}", f"model.recompute={recompute}", *layers(n_layers)]
    batch = full_rows(SENTENCES, LENGTH, VOCABULARY, shortest=LENGTH // 2)
    return Updates(run_config(*COMMON, *choices), VOCABULARY, [batch])


def memory_alone(n_layers: int, recompute: bool, attention: str) -> dict[str, float]:
    """MiB of the second update in this process, which finds libraries and moments in place."""
    updates = updates_of(n_layers, recompute, attention)
    updates()
    return_free_pages()
    sizes = {"peak": added_bytes(updates), "held": updates.saved_bytes()}
    return {name: (n_bytes or math.nan) / MIB for name, n_bytes in sizes.items()}


def report_recomputation(depths: list[int], repeats: int) -> list[dict[str, Any]]:
    """What an update takes at these depths in two ways, which is printed."""
    # glibc then maps each tensor by itself, so that what is freed leaves the resident set
    os.environ["MALLOC_MMAP_THRESHOLD_"] = "65536"  # of the processes that are started
    print(f"an update of {SENTENCES * LENGTH} tokens a side, width 128, medians of {repeats}")
    rows = []
    for attention, n_layers in itertools.product(("softmax", "alpha_entmax"), depths):
        ways = {"plain": False, "recomputing": True}
        updates = {name: updates_of(n_layers, way, attention) for name, way in ways.items()}
        row: dict[str, Any] = {"attention": attention, "layers": n_layers}
        row["seconds"] = medians(updates, repeats)
        for name, way in ways.items():
            row[name] = in_own_process(memory_alone, n_layers, way, attention)
        rows.append(row)
        print(f"  {attention:<13} {n_layers:>2} + {n_layers:<2}")
        for name, seconds in row["seconds"].items():
            memory = "   ".join(f"{what} {mib:.0f} MiB" for what, mib in row[name].items())
            ratio = seconds / row["seconds"]["plain"]
            print(f"    {name:<11} {seconds:8.2f} s {ratio:5.2f} x   {memory}", flush=True)
    return rows


def main() -> None:
    args = arguments(__doc__)
    keep_freed_memory()
    n_layers, n_updates, depths, repeats = QUICK if args.quick else WHOLE
    curves = report_learning(n_layers, n_updates)
    results = {"learning": curves, "updates": report_recomputation(depths, repeats)}
    keep(args.json, results)


if __name__ == "__main__":
    main()
