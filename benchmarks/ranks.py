"""Time of an update of two processes: gradients summed during or after the backward pass.

    python -m benchmarks.ranks [--quick] [--json FILE]

`model=base` on random batches of 2048 tokens per process with sentences of 16. Both sums
(`trainer.gradient_sum`) run interleaved in the same two processes, `--threads` each (1), from the
same weights and with dropout. The spread is that of the middle half of the updates. The losses of
the updates must be equal to 1e-6.
"""

from __future__ import annotations

import multiprocessing
import os
import socket
import statistics
import time
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.command import arguments, keep
from benchmarks.updates import LENGTH, SENTENCES, SHORTEST, Updates, full_rows, run_config
from headwise.train.distributed import process_group
from headwise.train.memory import keep_freed_memory
from headwise.train.step import GRADIENT_SUMS

N_RANKS = 2
LARGEST_DIFFERENCE = 1e-6  # relative, of losses


def train(rank: int, port: int, sizes: tuple[str, int, int], threads: int, results: Any) -> None:
    """Put seconds and losses of each update by kind of sum into `results`, from the first rank."""
    variables = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": N_RANKS, "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in variables.items()})
    os.environ["MASTER_ADDR"] = "127.0.0.1"
    model, vocabulary, repeats = sizes
    torch.set_num_threads(threads)
    keep_freed_memory()
    with process_group("cpu") as ranks:
        batch = full_rows(SENTENCES, LENGTH, vocabulary, SHORTEST)
        batch = replace(batch, global_targets=N_RANKS * batch.n_targets)
        updates = {
            kind: Updates(
                run_config(f"model={model}", f"trainer.gradient_sum={kind}"),
                vocabulary, [batch], ranks=ranks,
            )
            for kind in GRADIENT_SUMS
        }  # fmt: skip
        seconds: dict[str, list[float]] = {kind: [] for kind in updates}
        losses: dict[str, list[float]] = {kind: [] for kind in updates}
        for _ in range(repeats + 1):  # the first one warms up
            for kind, update in updates.items():
                dist.barrier()
                started_at = time.perf_counter()
                update()
                dist.barrier()
                seconds[kind].append(time.perf_counter() - started_at)
                losses[kind].append(float(ranks.sum(update.step.window)[0]) / batch.global_targets)
                update.step.window.zero_()
        if ranks.is_main:
            results.put((seconds, losses))


def measure(sizes: tuple[str, int, int], threads: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Seconds and losses of each update, by kind of sum."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    spawn = multiprocessing.get_context("spawn")
    results = spawn.Queue()
    started = [
        spawn.Process(target=train, args=(rank, port, sizes, threads, results))
        for rank in range(N_RANKS)
    ]
    for process in started:
        process.start()
    seconds, losses = results.get()
    for process in started:
        process.join()
    return seconds, losses


def main() -> None:
    args = arguments(__doc__, threads={"type": int, "default": 1, "help": "of each process"})
    sizes = ("tiny", 500, 5) if args.quick else ("base", 10_000, 20)
    seconds, losses = measure(sizes, args.threads)
    figures: dict[str, Any] = {"model": sizes[0], "repeats": sizes[2], "threads": args.threads}
    for kind in GRADIENT_SUMS:
        low, middle, high = statistics.quantiles(seconds[kind][1:], n=4)
        figures[kind] = {"median": middle, "quartiles": [low, high], "losses": losses[kind]}
        print(f"  {kind:<12} {middle:8.4f} s an update, {low:.4f} to {high:.4f}")
    pairs = zip(*(losses[kind] for kind in GRADIENT_SUMS), strict=True)
    figures["difference"] = max(abs(one - other) / abs(other) for one, other in pairs)
    ratio = figures["overlapped"]["median"] / figures["flat"]["median"]
    print(f"  overlapped / flat {ratio:.3f}; losses differ by {figures['difference']:.1e} at most")
    keep(args.json, {**figures, "ratio": ratio})
    if figures["difference"] > LARGEST_DIFFERENCE:
        raise SystemExit("the losses differ")


if __name__ == "__main__":
    main()
