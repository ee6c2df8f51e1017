"""Updates of training on this machine's GPU: tokens a second, and α-entmax beside softmax.

    python -m benchmarks.gpu_training [--model base] [--compile] [--quick] [--json FILE]

Without a CUDA device it says so and ends. An update is that of `python train.py model=base
trainer=gpu`: bf16, 16,384 padded tokens, 32,000 pieces, sentences like newstest's, deterministic
kernels where there are any, batches in memory that the GPU fetches from. Ten of them make a round;
the rounds of all contenders take turns in one process, medians of 7, after two that compile and
warm up. Printed are

    target tokens a second, and the time of a token as a multiple of softmax's
    the time of an update, and how long the host takes to launch one of two short sentences: a
        lower bound of its part, as long batches take their loss in more chunks
    the memory of a model by itself: weights, Adam's two moments, and what a round adds

With --compile the same follows with trainer.compile=true, whose batches are padded to few lengths;
there, too, softmax is what the others are compared with.
"""

from __future__ import annotations

import argparse
import functools
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.clock import gpu, keep, medians
from benchmarks.updates import Updates, run_config
from headwise.data.batching import Batch, BatchLoader, collate
from headwise.data.store import EncodedSplit
from headwise.kernels import triton_device
from headwise.precision import ask_for_same_bits
from headwise.train.batches import COMPILED_LENGTH_MULTIPLE
from headwise.train.distributed import choose_device

ATTENTIONS = ("softmax", "entmax15", "alpha_entmax")
SETTINGS = ("trainer=gpu",)
VOCABULARY, N_BATCHES, REPEATS, QUICK_REPEATS = 32_000, 10, 7, 3
MEAN_LENGTH, DEVIATION, LONGEST = 29.0, 14.0, 100  # pieces
RECOMPILATIONS = 64  # contenders share code, of which torch compiles eight forms by default
DEFAULT_JSON = Path("outputs/benchmarks/gpu_training.json")


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
    loader = BatchLoader(split, max_tokens, seed=1, length_multiple=length_multiple)
    return [next(loader).pinned() for _ in range(N_BATCHES)]


def short_batch() -> Batch:
    """Two sentences of a word."""
    split = EncodedSplit.from_lists([[4], [5]], [[5], [4]])
    return collate(split, np.arange(2, dtype=np.int32)).pinned()


def until_launched(call: Callable[[], object]) -> float:
    """Seconds until the host has asked the idle device for all of it."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def until_done(call: Callable[[], object]) -> float:
    """Seconds until the device has done all of it."""

    def wait_for_all() -> None:
        call()
        torch.cuda.synchronize()

    return until_launched(wait_for_all)


def own_bytes(updates: Updates) -> int:
    """What training this model alone would take: weights, moments, and what a round adds."""
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    updates.round()
    weights = sum(p.numel() * p.element_size() for p in updates.step.model.parameters())
    return 3 * weights + torch.cuda.max_memory_allocated() - before


def measure(model: str, compiled: bool, repeats: int, device: torch.device) -> list[dict[str, Any]]:
    """A row an attention; the first is what the others are compared with."""
    configs = [
        run_config(*SETTINGS, f"model={model}", f"attention={name}", f"trainer.compile={compiled}")
        for name in ATTENTIONS
    ]
    max_tokens = configs[0].trainer.max_tokens
    batches = random_batches(max_tokens, COMPILED_LENGTH_MULTIPLE if compiled else 1)
    n_tokens = sum(batch.n_tokens for batch in batches)
    contenders = {
        name: Updates(config, VOCABULARY, batches, device)
        for name, config in zip(ATTENTIONS, configs, strict=True)
    }
    for one in contenders.values():
        one.round()  # `medians` warms up once more
    taken = medians({name: one.round for name, one in contenders.items()}, repeats, until_done)
    # the second update of a run, which does not look at the memory
    short = [short_batch()]
    launches = {name: functools.partial(one.step, 2, short) for name, one in contenders.items()}
    launched = medians(launches, repeats, until_launched)
    rows = []
    for name, one in contenders.items():
        row: dict[str, Any] = {"attention": name, "compiled": compiled}
        row |= {"tokens_per_second": n_tokens / taken[name]}
        row |= {"to_softmax": taken[name] / taken[ATTENTIONS[0]]}
        row |= {"update_ms": 1e3 * taken[name] / N_BATCHES, "host_ms": 1e3 * launched[name]}
        row |= {"own_bytes": own_bytes(one)}
        rows.append(row)
        print(
            f"  {name + (', compiled' if compiled else ''):24}"
            f"{row['tokens_per_second']:9.0f} tokens/s   {row['to_softmax']:5.2f} x softmax   "
            f"update {row['update_ms']:6.1f} ms, host {row['host_ms']:6.1f} ms   "
            f"{row['own_bytes'] / 2**30:5.1f} GiB",
            flush=True,
        )
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description="time updates of training on this machine's GPU")
    parser.add_argument("--model", default="base", help="base or another of conf/model")
    parser.add_argument("--compile", action="store_true", help="with trainer.compile=true as well")
    parser.add_argument("--quick", action="store_true", help="3 repeats instead of 7")
    parser.add_argument("--json", type=Path, default=DEFAULT_JSON, help="where the figures go")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        print("no CUDA device: nothing to measure")
        return 0
    device = choose_device("cuda")
    ask_for_same_bits(device)
    if arguments.compile:
        torch._dynamo.config.recompile_limit = RECOMPILATIONS
        torch._dynamo.config.fail_on_recompile_limit_hit = True  # else the rest is not compiled
    machine = gpu()
    kernels = triton_device.device_refusal(device) or "Triton"
    repeats = QUICK_REPEATS if arguments.quick else REPEATS
    print(f"{machine}; kernels: {kernels}\nmodel={arguments.model}, medians of {repeats}")
    content: dict[str, Any] = {"machine": machine, "kernels": kernels, "model": arguments.model}
    content |= {"settings": SETTINGS, "repeats": repeats, "rows": []}
    for compiled in (False, True) if arguments.compile else (False,):
        content["rows"] += measure(arguments.model, compiled, repeats, device)
        keep(arguments.json, content)  # a compiler that fails takes nothing with it
    print(f"written: {arguments.json}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
