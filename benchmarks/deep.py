"""Very deep models on a CPU: do they learn, and what does recomputation cost and save?

    OMP_NUM_THREADS=1 python -m benchmarks.deep [--quick]

First 104 layers (52 + 52, width 32) are trained for 100 updates on pairs of the built-in corpus,
words as they are: as `model=deep` has it, with Glorot's initial weights, with those and the
original post-norm. Then `model=deep` at several depths, with and without recomputation. All
updates are those of `python train.py`. Times are medians, the two interleaved in one process; with
one thread the time is that of the processor, which other load on the machine lengthens less. Memory
is by how much the resident set of a process of its own rises in its second update (gradients, the
same for both, and activations; weights and Adam's moments stand before; Linux only), and beside it
what is held when all layers have gone forward.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections import Counter
from itertools import islice

import torch

from benchmarks.clock import machine, medians, seconds
from benchmarks.resident import added_bytes
from benchmarks.updates import Updates, full_rows, run_config
from headwise.data.batching import BatchLoader
from headwise.data.builtin import BuiltinCorpus
from headwise.data.store import EncodedSplit
from headwise.data.tokenizer import EOS, N_SPECIALS, UNK
from headwise.train.memory import keep_freed_memory, return_free_pages

MIB = 2**20
MAX_TOKENS, N_PAIRS, N_WORDS = 256, 2000, 300
SENTENCES, LENGTH, VOCABULARY = 16, 32, 1000
COMMON = ("model=deep", "trainer.precision=fp32")
STARTS = {
    "scaled, pre-norm": (),
    "glorot, pre-norm": ("model.init=glorot",),
    "glorot, post-norm": ("model.init=glorot", "model.norm=post"),
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
    batches = list(islice(BatchLoader(split, MAX_TOKENS, seed=1), n_updates))
    config = run_config(*COMMON, *LEARNING, *overrides)
    updates = Updates(config, N_SPECIALS + N_WORDS, batches)
    found = []
    for batch in batches:
        updates()
        found.append(updates.step.window[0].item() / batch.n_tokens)
        updates.step.window.zero_()
    return found


def timed_losses(
    overrides: list[str], split: EncodedSplit, n_updates: int
) -> tuple[list[float], float]:
    """`losses`, and the seconds that they took."""
    found: list[float] = []
    spent = seconds(lambda: found.extend(losses(overrides, split, n_updates)))
    return found, spent


def report_learning(n_layers: int, n_updates: int) -> None:
    """Print the curves of all starts."""
    split = builtin_pairs()
    tenth = max(n_updates // 10, 1)
    print(f"loss a target word, {n_layers} + {n_layers} layers, width 32, softmax; at update 1,")
    print(f"then the mean of each {tenth} updates of {n_updates}")
    rates = {"total": 2 * n_updates, "warmup": n_updates // 5}
    common = [*layers(n_layers), *(f"scheduler.{p}_updates={n}" for p, n in rates.items())]
    for name, start in STARTS.items():
        found, spent = timed_losses([*common, *start], split, n_updates)
        means = [statistics.mean(found[i : i + tenth]) for i in range(0, n_updates, tenth)]
        curve = " ".join(f"{value:.2f}" for value in [found[0], *means])
        print(f"  {name:<18} {curve}   ({spent / n_updates:.2f} s an update)", flush=True)


# -- what recomputation costs and saves ---------------------------------------------------------


def updates_of(n_layers: int, recompute: bool, attention: str) -> Updates:
    """A model of some depth, on one batch."""
    choices = [f"attention={attention}", f"model.recompute={recompute}", *layers(n_layers)]
    batch = full_rows(SENTENCES, LENGTH, VOCABULARY, shortest=LENGTH // 2)
    return Updates(run_config(*COMMON, *choices), VOCABULARY, [batch])


def memory_alone(n_layers: int, recompute: bool, attention: str) -> dict[str, float | None]:
    """MiB of the second update in this process, which finds libraries and moments in place."""
    updates = updates_of(n_layers, recompute, attention)
    updates()
    return_free_pages()
    found = {"rise": added_bytes(updates), "held": updates.held_bytes()}
    return {name: n_bytes and n_bytes / MIB for name, n_bytes in found.items()}


def _memory(n_layers: int, recompute: bool, attention: str) -> dict[str, float | None]:
    settings = json.dumps([n_layers, recompute, attention])
    command = [sys.executable, "-m", "benchmarks.deep", "--one", settings]
    # glibc then maps each tensor by itself, so that what is freed leaves the resident set
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"}
    printed = subprocess.run(
        command, stdout=subprocess.PIPE, text=True, check=True, env=environment
    ).stdout
    found: dict[str, float | None] = json.loads(printed.splitlines()[-1])
    return found


def report_recomputation(depths: list[int], repeats: int) -> None:
    """Print what an update takes at these depths, in two ways."""
    print(f"an update of {SENTENCES * LENGTH} tokens a side, width 128, medians of {repeats}")
    print("  attention     layers   plain s   recomputing   peak MiB plain / rec.   held MiB")
    for attention in ("softmax", "alpha_entmax"):
        for n_layers in depths:
            ways = {"plain": False, "saving": True}
            spent = medians(
                {n: updates_of(n_layers, s, attention) for n, s in ways.items()}, repeats
            )
            plain, saving = (_memory(n_layers, way, attention) for way in ways.values())
            print(
                f"  {attention:<13} {n_layers:>2} + {n_layers:<2} {spent['plain']:8.2f}"
                f" {spent['saving'] / spent['plain']:11.2f} x"
                f" {_shown(plain['rise']):>12} / {_shown(saving['rise']):<6}"
                f" {_shown(plain['held']):>11} / {_shown(saving['held'])}",
                flush=True,
            )


def _shown(mib: float | None) -> str:
    return "-" if mib is None else f"{mib:.0f}"


def main() -> None:
    """See the head of this file."""
    parser = argparse.ArgumentParser(description="very deep models on this machine's CPU")
    parser.add_argument("--quick", action="store_true", help="fewer layers, updates and repeats")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(memory_alone(*json.loads(arguments.one))))
        return
    print(f"machine: {machine()}, {torch.get_num_threads()} thread(s)")
    keep_freed_memory()
    if arguments.quick:
        report_learning(n_layers=10, n_updates=20)
        report_recomputation([4, 12], repeats=1)
    else:
        report_learning(n_layers=52, n_updates=100)
        report_recomputation([6, 24, 48], repeats=3)


if __name__ == "__main__":
    main()
