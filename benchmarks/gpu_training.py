"""Updates of training on this machine's GPU: tokens a second, and α-entmax beside softmax.

    python -m benchmarks.gpu_training [--model base] [--compile] [--quick] [--json FILE]

Without a CUDA device it says so and ends. An update is that of `python train.py model=base
trainer=gpu`: bf16, 16,384 padded tokens, 32,000 pieces, sentences like newstest's, batches in
memory that the GPU fetches from. Ten of them make a round; the rounds of all contenders take turns
in one process, medians of 7, after two that compile and warm up. Printed are target tokens a
second, the time of a token as a multiple of softmax's, and the most memory that torch had given
out. The host's part is the time of an update of two words, which leaves the GPU nothing to do: an
update that does not take longer than this waits for the host. --compile has each contender once
more with trainer.compile=true, whose batches are padded to few lengths.
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

from benchmarks.clock import keep, medians
from benchmarks.updates import Updates, composed
from headwise.data.batching import Batch, BatchLoader, collate
from headwise.data.store import EncodedSplit
from headwise.entmax import triton_device
from headwise.train.batches import COMPILED_LENGTH_MULTIPLE

ATTENTIONS = ("softmax", "entmax15", "alpha_entmax")
SETTINGS = ("trainer=gpu",)
VOCABULARY, N_BATCHES, REPEATS, QUICK_REPEATS = 32_000, 10, 7, 3
MEAN_LENGTH, DEVIATION, LONGEST = 27.0, 13.0, 100  # pieces, with eos
DEFAULT_JSON = Path("outputs/benchmarks/gpu_training.json")


def batches(max_tokens: int, length_multiple: int) -> list[Batch]:
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


def two_words() -> Batch:
    """What leaves the GPU nothing to do."""
    split = EncodedSplit.from_lists([[4]], [[5]])
    return collate(split, np.zeros(1, dtype=np.int32)).pinned()


class Contender:
    """A model with its batches."""

    def __init__(self, model: str, attention: str, compiled: bool, device: torch.device) -> None:
        overrides = (f"model={model}", f"attention={attention}", f"trainer.compile={compiled}")
        config = composed(*SETTINGS, *overrides)
        multiple = COMPILED_LENGTH_MULTIPLE if compiled else 1
        self.batches = batches(config.trainer.max_tokens, multiple)
        self.update = Updates(config, VOCABULARY, self.batches, device)
        self.tokens = sum(batch.n_tokens for batch in self.batches)

    def round(self) -> None:
        """An update of each batch."""
        for _ in self.batches:
            self.update()


def seconds(call: Callable[[], object]) -> float:
    """Until the device has done all of it."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    call()
    torch.cuda.synchronize()
    return time.perf_counter() - start


def peak_bytes(contender: Contender) -> int:
    """The most in a round: weights, Adam's two moments, and what the updates hold besides."""
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    contender.round()
    model = contender.update.step.model
    own = 3 * sum(p.numel() * p.element_size() for p in model.parameters())
    return own + torch.cuda.max_memory_allocated() - before


def measure(model: str, with_compiled: bool, repeats: int) -> list[dict[str, Any]]:
    """A row a contender; the first is what the others are compared with."""
    device = torch.device("cuda", 0)
    contenders = {
        f"{attention}{', compiled' if compiled else ''}": Contender(
            model, attention, compiled, device
        )
        for compiled in ((False, True) if with_compiled else (False,))
        for attention in ATTENTIONS
    }
    for contender in contenders.values():
        contender.round()  # `medians` warms up once more
    taken = medians({name: one.round for name, one in contenders.items()}, repeats, seconds)
    tiny = two_words()
    launches = {
        name: functools.partial(one.update.step, 1, [tiny]) for name, one in contenders.items()
    }
    launched = medians(launches, repeats, seconds)
    baseline = contenders[ATTENTIONS[0]].tokens / taken[ATTENTIONS[0]]
    rows = []
    for name, one in contenders.items():
        speed = one.tokens / taken[name]
        row: dict[str, Any] = {"contender": name, "tokens_per_second": speed}
        row |= {"to_softmax": baseline / speed, "peak_bytes": peak_bytes(one)}
        row |= {"update_ms": 1e3 * taken[name] / N_BATCHES, "host_ms": 1e3 * launched[name]}
        rows.append(row)
        print(
            f"  {name:24} {speed:9.0f} tokens/s   {row['to_softmax']:5.2f} x softmax   "
            f"update {row['update_ms']:6.1f} ms, host {row['host_ms']:6.1f} ms   "
            f"{row['peak_bytes'] / 2**30:5.1f} GiB",
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
    machine = f"{torch.cuda.get_device_name()}, torch {torch.__version__}"
    print(machine)
    if reason := triton_device.device_refusal(torch.device("cuda")):
        print(f"without Triton's kernels, torch alone: {reason}")
    repeats = QUICK_REPEATS if arguments.quick else REPEATS
    print(f"model={arguments.model}, medians of {repeats}")
    rows = measure(arguments.model, arguments.compile, repeats)
    content = {"machine": machine, "model": arguments.model, "repeats": repeats, "rows": rows}
    keep(arguments.json, content)
    print(f"written: {arguments.json}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
