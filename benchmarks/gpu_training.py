"""Updates of training on this machine's GPU: tokens per second, and α-entmax relative to softmax.

    python -m benchmarks.gpu_training [--model base] [--tokens N ...] [--compile] [--quick]
        [--json FILE]

It needs a CUDA device. An update is that of `python train.py model=base trainer=gpu`: bf16, 16,384
padded tokens (or N), vocabulary 32,000, sentences like newstest's, deterministic kernels where
there are any, batches in memory that the GPU fetches from. Ten of them make a round; the rounds of
all contenders take turns in one process, medians of 7, after two that compile and warm up. Printed
are

    target tokens a second, and the time of a token as a multiple of softmax's
    the time of an update, and how long the host takes to launch one of two short sentences: a
        lower bound of its part, as long batches take their loss in more chunks
    the memory of a model by itself: weights, Adam's two moments, and what a round adds

With --compile the same follows with trainer.compile=true, whose batches are padded to few lengths;
there, too, softmax is what the others are compared with.
"""

from __future__ import annotations

import functools
import sys
from argparse import Namespace
from typing import Any

import numpy as np
import torch

from benchmarks import gpu
from benchmarks.clock import medians, seconds
from benchmarks.updates import Updates, full_rows, run_config
from headwise.data.batch import Batch
from headwise.data.loader import BatchLoader
from headwise.precision import use_deterministic_kernels
from headwise.tasks.translation.batches import TrainingPairs
from headwise.tasks.translation.corpus import EncodedSplit
from headwise.tasks.translation.task import COMPILED_LENGTH_MULTIPLE
from headwise.train.distributed import choose_device

ATTENTIONS = ("softmax", "entmax15", "alpha_entmax")
SETTINGS = ("trainer=gpu",)
VOCABULARY, N_BATCHES, REPEATS, QUICK_REPEATS = 32_000, 10, 7, 3
MEAN_LENGTH, DEVIATION, LONGEST = 29.0, 14.0, 100  # tokens
RECOMPILATIONS = 64  # contenders share code, of which torch compiles eight forms by default


def random_batches(max_tokens: int, length_multiple: int) -> list[Batch]:
    """Of one round: of like lengths each, as a run has them."""
    numbers = np.random.default_rng(1)
    shape = (MEAN_LENGTH / DEVIATION) ** 2
    n_pairs = 2 + round(1.5 * N_BATCHES * max_tokens / MEAN_LENGTH)
    drawn = numbers.gamma(shape, MEAN_LENGTH / shape, n_pairs).round().clip(3, LONGEST)
    longer = numbers.normal(1.0, 0.1, n_pairs)
    sides = [
        [numbers.integers(4, VOCABULARY, int(length)).tolist() for length in lengths]
        for lengths in (drawn, (drawn * longer).round().clip(3, LONGEST))
    ]
    split = EncodedSplit.from_lists(*sides)
    loader = BatchLoader(TrainingPairs(split, max_tokens, seed=1, length_multiple=length_multiple))
    return [next(loader).pinned() for _ in range(N_BATCHES)]


def own_bytes(updates: Updates) -> int:
    """What training this model alone would take: weights, moments, and what a round adds."""
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    updates.round()
    weights = sum(p.numel() * p.element_size() for p in updates.step.model.parameters())
    return 3 * weights + torch.cuda.max_memory_allocated() - before


def compare(
    model: str, max_tokens: int, compiled: bool, repeats: int, device: torch.device
) -> gpu.Rows:
    """A row an attention; the first is what the others are compared with."""
    batches = random_batches(max_tokens, COMPILED_LENGTH_MULTIPLE if compiled else 1)
    contenders = {}
    for name in ATTENTIONS:
        choices = (f"model={model}", f"attention={name}", f"trainer.compile={compiled}")
        contenders[name] = Updates(run_config(*SETTINGS, *choices), VOCABULARY, batches, device)
    n_tokens = sum(batch.n_targets for batch in batches)
    for one in contenders.values():
        one.round()  # `medians` warms up once more
    taken = medians({name: one.round for name, one in contenders.items()}, repeats)
    # the second update of a run, which does not look at the memory
    short = [full_rows(2, 1, VOCABULARY).pinned()]
    launches = {name: functools.partial(one.step, 2, short) for name, one in contenders.items()}
    launched = medians(launches, repeats, functools.partial(seconds, until_done=False))
    for name, one in contenders.items():
        row: dict[str, Any] = {"model": model, "max_tokens": max_tokens}
        row |= {"attention": name, "compiled": compiled}
        row |= {"tokens_per_second": n_tokens / taken[name]}
        row |= {"to_softmax": taken[name] / taken[ATTENTIONS[0]]}
        row |= {"update_ms": 1e3 * taken[name] / N_BATCHES, "host_ms": 1e3 * launched[name]}
        row |= {"own_bytes": own_bytes(one)}
        print(
            f"  {name + (', compiled' if compiled else ''):24}"
            f"{row['tokens_per_second']:9.0f} tokens/s   {row['to_softmax']:5.2f} x softmax   "
            f"update {row['update_ms']:6.1f} ms, host {row['host_ms']:6.1f} ms   "
            f"{row['own_bytes'] / 2**30:5.1f} GiB",
            flush=True,
        )
        yield row


def measure(args: Namespace) -> gpu.Rows:
    device = choose_device("cuda")
    use_deterministic_kernels(device)
    torch._dynamo.config.recompile_limit = RECOMPILATIONS
    torch._dynamo.config.fail_on_recompile_limit_hit = True  # else the rest is not compiled
    repeats = QUICK_REPEATS if args.quick else REPEATS
    print(f"model={args.model}, medians of {repeats}")
    for compiled in (False, True) if args.compile else (False,):
        for max_tokens in args.tokens:
            print(f"{max_tokens} padded tokens an update")
            yield from compare(args.model, max_tokens, compiled, repeats, device)


def main() -> int:
    return gpu.main(
        __doc__,
        "gpu_training",
        measure,
        needs_kernels=False,
        model={"default": "base", "help": "base or another of conf/model"},
        tokens={
            "type": int,
            "nargs": "+",
            "default": [run_config(*SETTINGS).trainer.max_tokens],
            "help": "padded tokens of an update; default: those of trainer=gpu",
        },
        compile={"action": "store_true", "help": "with trainer.compile=true as well"},
    )


if __name__ == "__main__":
    sys.exit(main())
