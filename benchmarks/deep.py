"""Very deep models on a CPU: do they learn, and what does recomputation cost and save?

    OMP_NUM_THREADS=1 python -m benchmarks.deep [--quick]

First 104 layers (52 + 52, width 32) are trained for 100 updates on pairs of the built-in corpus,
words as they are: as `model=deep` has it, with Glorot's initial weights, with those and the
original post-norm. Then `model=deep` at several depths, with and without recomputation. Times are
medians of ratios, the two interleaved in one process; with one thread the time is that of the
processor, which other load on the machine lengthens less. Memory is by how much the resident set
of a process of its own rises in its second step (gradients, the same for both, and activations;
weights and Adam's moments stand before; Linux only), and beside it the bytes that autograd keeps.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import torch
from torch import Tensor, nn

from benchmarks.clock import machine
from headwise.attention.build import AttentionFactory
from headwise.config_dir import group_node
from headwise.data.batching import BatchLoader
from headwise.data.builtin import BuiltinCorpus
from headwise.data.store import EncodedSplit
from headwise.data.tokenizer import EOS, N_SPECIALS, UNK
from headwise.model.transformer import Transformer
from headwise.schema import ModelConfig
from headwise.train.loss import CrossEntropy
from headwise.train.memory import return_free_pages
from headwise.train.optim import build_optimizer, set_rate
from headwise.train.schedule import Cosine

MIB = 2**20
RATE, WARMUP, MAX_TOKENS, N_PAIRS, N_WORDS = 1e-3, 20, 256, 2000, 300
SENTENCES, LENGTH, VOCABULARY = 16, 32, 1000
STARTS: dict[str, dict[str, object]] = {
    "scaled, pre-norm": {},
    "glorot, pre-norm": {"init": "glorot"},
    "glorot, post-norm": {"init": "glorot", "norm": "post"},
}


def deep(**changes: object) -> ModelConfig:
    """The config of `model=deep`, with changes."""
    return ModelConfig(**{**group_node("model", "deep"), **changes})


def make_model(config: ModelConfig, attention: str, vocabulary: int) -> Transformer:
    torch.manual_seed(1)
    factory = AttentionFactory({"attention": group_node("attention", attention)})
    return Transformer(config, vocabulary, vocabulary, True, factory, seed=1).train()


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


def losses(config: ModelConfig, attention: str, split: EncodedSplit, n_updates: int) -> list[float]:
    """Mean loss per target token, of each update."""
    model = make_model(config, attention, N_SPECIALS + N_WORDS)
    loader, loss = BatchLoader(split, MAX_TOKENS, seed=1), CrossEntropy(0.0)
    adam = {"_target_": "torch.optim.Adam", "lr": RATE, "betas": [0.9, 0.98]}
    optimizer, schedule = build_optimizer(adam, model), Cosine(WARMUP, 2 * n_updates)
    found = []
    for update in range(1, n_updates + 1):
        batch = next(loader)
        output = model(batch.source_BS, batch.source_lengths_B, batch.target_in_BT)
        mean = loss(output.logits_BTV, batch.target_out_BT).loss / batch.n_tokens
        mean.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        set_rate(optimizer, schedule.rate(update, RATE))
        optimizer.step()
        optimizer.zero_grad()
        found.append(mean.item())
    return found


def report_learning(n_layers: int, n_updates: int) -> None:
    split = builtin_pairs()
    tenth = max(n_updates // 10, 1)
    print(f"loss a target word, {n_layers} + {n_layers} layers, width 32, softmax; at update 1,")
    print(f"then the mean of each {tenth} updates of {n_updates}")
    for name, changes in STARTS.items():
        config = deep(
            encoder_layers=n_layers,
            decoder_layers=n_layers,
            d_model=32,
            d_ff=128,
            dropout=0.0,
            **changes,
        )
        start = _clock()
        found = losses(config, "softmax", split, n_updates)
        means = [statistics.mean(found[i : i + tenth]) for i in range(0, n_updates, tenth)]
        curve = " ".join(f"{value:.2f}" for value in [found[0], *means])
        print(f"  {name:<18} {curve}   ({(_clock() - start) / n_updates:.2f} s an update)")


# -- what recomputation costs and saves ---------------------------------------------------------


class Step:
    """One model with its optimizer and a batch."""

    def __init__(self, n_layers: int, recompute: bool, attention: str) -> None:
        config = deep(encoder_layers=n_layers, decoder_layers=n_layers, recompute=recompute)
        self.model = make_model(config, attention, VOCABULARY)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-4)
        self.loss = CrossEntropy(0.1)
        generator = torch.Generator().manual_seed(1)
        shape = (SENTENCES, LENGTH)
        self.source = torch.randint(N_SPECIALS, VOCABULARY, shape, generator=generator)
        self.target = torch.randint(N_SPECIALS, VOCABULARY, shape, generator=generator)
        self.lengths = torch.randint(LENGTH // 2, LENGTH + 1, (SENTENCES,), generator=generator)

    def forward(self) -> Tensor:
        """The loss."""
        output = self.model(self.source, self.lengths, self.target)
        summed: Tensor = self.loss(output.logits_BTV, self.target).loss
        return summed / self.target.numel()

    def __call__(self) -> float:
        """Seconds of one step."""
        start = _clock()
        self.forward().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return _clock() - start

    def kept_mib(self) -> float:
        """What autograd keeps between the two ways, weights aside; layers are not entered."""
        own = {p.untyped_storage().data_ptr() for p in self.model.parameters()}
        kept: dict[int, torch.UntypedStorage] = {}

        def keep(tensor: Tensor) -> Tensor:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in own:
                kept[storage.data_ptr()] = storage
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            self.forward()
        return sum(storage.nbytes() for storage in kept.values()) / MIB


def _clock() -> float:
    return time.process_time() if torch.get_num_threads() == 1 else time.perf_counter()


def _resident_mib(name: str) -> float:
    """Resident set of this process: now (VmRSS), or its highest since it was reset (VmHWM)."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) / 1024
    raise OSError(f"this system does not tell {name}")


def memory_alone(n_layers: int, recompute: bool, attention: str) -> dict[str, float]:
    """Of the second step in this process, which finds libraries and moments in place."""
    step = Step(n_layers, recompute, attention)
    step()
    return_free_pages()
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
    before = _resident_mib("VmRSS")
    step()
    return {"rise": _resident_mib("VmHWM") - before, "kept": step.kept_mib()}


def _memory(n_layers: int, recompute: bool, attention: str) -> dict[str, float]:
    settings = json.dumps([n_layers, recompute, attention])
    command = [sys.executable, "-m", "benchmarks.deep", "--one", settings]
    # glibc then maps each tensor by itself, so that what is freed leaves the resident set
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"}
    printed = subprocess.run(
        command, stdout=subprocess.PIPE, text=True, check=True, env=environment
    ).stdout
    found: dict[str, float] = json.loads(printed.splitlines()[-1])
    return found


def times(n_layers: int, attention: str, repeats: int) -> tuple[float, float]:
    """Median seconds of a plain step, and the median ratio of a recomputing one to it."""
    plain, saving = (Step(n_layers, recompute, attention) for recompute in (False, True))
    plain(), saving()
    pairs = [(plain(), saving()) for _ in range(repeats)]
    return (
        statistics.median(one for one, _ in pairs),
        statistics.median(other / one for one, other in pairs),
    )


def report_recomputation(depths: list[int], repeats: int) -> None:
    print(f"a step of {SENTENCES * LENGTH} tokens a side, width 128, medians of {repeats}")
    print("  attention     layers   plain s   recomputing   peak MiB plain / rec.   kept MiB")
    for attention in ("softmax", "alpha_entmax"):
        for n_layers in depths:
            seconds, ratio = times(n_layers, attention, repeats)
            plain, saving = (_memory(n_layers, some, attention) for some in (False, True))
            print(
                f"  {attention:<13} {n_layers:>2} + {n_layers:<2} {seconds:8.2f} {ratio:11.2f} x"
                f" {plain['rise']:12.0f} / {saving['rise']:<6.0f}"
                f" {plain['kept']:11.1f} / {saving['kept']:.1f}"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description="very deep models on this machine's CPU")
    parser.add_argument("--quick", action="store_true", help="fewer layers, updates and repeats")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(memory_alone(*json.loads(arguments.one))))
        return
    print(f"machine: {machine()}, {torch.get_num_threads()} thread(s)")
    if arguments.quick:
        report_learning(n_layers=10, n_updates=20)
        report_recomputation([4, 12], repeats=1)
    else:
        report_learning(n_layers=52, n_updates=100)
        report_recomputation([6, 24, 48], repeats=3)


if __name__ == "__main__":
    main()
