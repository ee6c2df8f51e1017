"""Dry runs: parameters, FLOPs and memory of a run before it starts, and its minutes.

Parameters and FLOPs are counted by torch on the meta device, whose tensors have shapes but no
values: one forward and backward pass of the configured model. Minutes and memory of the process are
measured on a few updates and one validation.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping
from contextvars import copy_context
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from headwise.data.batch import Batch, Column
from headwise.data.loader import Prefetched, windows_per_batch
from headwise.data.sources.download import IS_OFFLINE
from headwise.errors import DataError
from headwise.model.family import Model, n_parameters
from headwise.ops.flops import register_flops
from headwise.runs.folder import RunFolder
from headwise.tasks.check import resolve
from headwise.tasks.data import Data
from headwise.tasks.evaluate import valid_heads
from headwise.tasks.task import Part, Task
from headwise.track.base import Tracker
from headwise.train.distributed import Ranks, choose_device, training_batches, training_process
from headwise.train.kernels import kernels_of
from headwise.train.memory import peak_memory
from headwise.train.progress import ProcessorWatch
from headwise.train.step import TrainingStep, build_step

SENTENCE_TOKENS = 60  # assumed length of both sides
ROWS = 2  # of the counted batch; all figures are proportional to it
CPU_FLOPS = 2e12  # of an update that is timed on CPUs: a minute on a core
BYTES_PER_WEIGHT = 16  # weight, gradient and Adam's two moments in float32


@dataclass(frozen=True)
class Budget:
    """Requirements of one rank for one update.

    Attributes:
        n_parameters: scalars of the model, tied ones counted once.
        n_alphas: number of logits of α among them.
        flops: part -> FLOPs of the matmuls of an update, with backward and recomputation.
        weight_bytes: weights, gradients and moments.
        kernels: part -> kernel (reason); empty if this machine lacks the device.
    """

    n_parameters: int
    n_alphas: int
    flops: dict[str, float]
    weight_bytes: float
    kernels: dict[str, str]


def batch_tokens(task: Task[Any]) -> int:
    """Return the tokens of a full batch of a rank; rows of one length are whole."""
    most, length = task.config.trainer.max_tokens, task.row_tokens
    return most if length is None else windows_per_batch(most, length) * length


def budget(task: Task[Any], length: int | None = None) -> Budget:
    """Estimate for full batches of rows with `length` tokens in every column.

    Products of masked pairs that are computed are counted: all of dense attention; with a pattern,
    those of the slots of its layout.

    Args:
        task: of the run.
        length: None: that of every row, or `SENTENCE_TOKENS`.
    """
    trainer, length = task.config.trainer, length or task.row_tokens or SENTENCE_TOKENS
    with torch.device("meta"):
        model = task.model(task.sizes())
        ids = torch.zeros(ROWS, length, dtype=torch.long)
        column = Column(ids, torch.zeros(ROWS, dtype=torch.long))
        batch = Batch(dict.fromkeys(model.columns, column), ids, ids, list(range(ROWS)), 0)
    model.train(task.config.model.recompute)
    register_flops()
    with FlopCounterMode(display=False) as counter:
        states_BTD = model.states(**model.inputs(batch))
        torch.autograd.backward((states_BTD @ model.output.weight.T).sum())
    # the run may be planned on a machine without the GPU
    device = torch.device("cuda") if trainer.device == "cuda" else choose_device(trainer.device)
    is_here = device.type == "cpu" or torch.cuda.is_available()
    kernels = kernels_of(model, task.loss, trainer.precision, device) if is_here else {}
    batches = trainer.accumulate * batch_tokens(task) / (ROWS * length)
    alphas = [p.numel() for name, p in model.named_parameters() if name.endswith("alpha_logit")]
    n_weights = n_parameters(model)
    return Budget(
        n_parameters=n_weights,
        n_alphas=sum(alphas),
        flops={part: batches * n for part, n in _by_part(counter.get_flop_counts()).items()},
        weight_bytes=float(n_weights * BYTES_PER_WEIGHT),
        kernels=kernels,
    )


def _by_part(counts: Mapping[str, Mapping[object, int]]) -> dict[str, float]:
    """FLOPs by part of the model, from FLOPs by module and operator."""
    total = sum(counts["Global"].values())
    linear = (torch.ops.aten.mm, torch.ops.aten.addmm)
    parts = {
        "attention": sum(n for op, n in counts["Global"].items() if op not in linear),
        "feed-forward": sum(
            sum(ops.values()) for name, ops in counts.items() if name.endswith(".feed_forward")
        ),
        "vocabulary": total - sum(counts["Stack"].values()),
    }
    return {"projections": float(total - sum(parts.values())), **parts}


def describe_budget(task: Task[Any], needs: Budget) -> str:
    """Parameters, memory of the weights, and FLOPs of an update, as text."""
    config, length, n_updates = task.config, task.row_tokens, task.config.trainer.max_updates
    flops = sum(needs.flops.values())
    tokens = batch_tokens(task) * config.trainer.accumulate
    if length is None:
        rows = "padded tokens per side and rank"
        note = [f"(sentences of {SENTENCE_TOKENS} tokens; shorter ones need less)"]
    else:
        rows, note = f"tokens per rank (rows of {length:,})", []
    lines = [
        f"model {config.model.name}: {needs.n_parameters:,} parameters, {needs.n_alphas} of them α",
        f"update: {tokens:,} {rows}, {_engineering(flops)}FLOP",
        *(f"  {name:<15} {_engineering(n):>9}FLOP" for name, n in needs.flops.items()),
        f"memory: {needs.weight_bytes / 2**30:.2f} GiB of weights, gradients and moments",
        f"{n_updates:,} updates: {_engineering(flops * n_updates)}FLOP per rank",
        *note,
        *(f"  {part}: {kernel}" for part, kernel in needs.kernels.items()),
    ]
    return "\n".join(lines)


def _engineering(number: float) -> str:
    """Format with three digits and an SI prefix: `1.23 T`."""
    for prefix, size in (("E", 1e18), ("P", 1e15), ("T", 1e12), ("G", 1e9)):
        if number >= size:
            return f"{number / size:.3g} {prefix}"
    return f"{number / 1e6:.3g} M"


SECONDS = 10.0  # of updates; the last one may end later
PART_SECONDS = 2.0  # of a part of the validation set, at least; or all of the set
N_OUTPUTS = 200  # most outputs that are timed, such as translations
SETTLED = 160  # updates in which the memory of batches of different shapes reaches its peak


def dry_run(task: Task[Any]) -> None:
    """Print the parameters, FLOPs and memory of a run, and on this machine its minutes."""
    config = task.config
    if config.init_from is not None:
        RunFolder.existing(config.init_from, "init_from")
    needs = budget(task)
    print(describe_budget(task, needs))
    is_fast = torch.cuda.is_available() or sum(needs.flops.values()) < CPU_FLOPS
    if not (needs.kernels and is_fast):
        print("minutes: not measured, for a device elsewhere or updates of minutes")
        return
    resolve(task)
    with training_process(config.trainer) as ranks:
        if ranks.is_main:
            copy_context().run(_print_timing, task, Ranks(0, 1, ranks.device))


def _print_timing(task: Task[Any], ranks: Ranks) -> None:
    os.environ["HF_HUB_OFFLINE"] = "1"  # the cache is read
    IS_OFFLINE.set(True)
    try:
        print(describe_timing(task, ranks))
    except DataError as error:
        print(f"no minutes and memory of the process, which need the data: {error}")


def describe_timing(task: Task[Any], ranks: Ranks) -> str:
    """Train for some seconds and validate, without a run folder; minutes and memory as text.

    The data are prepared as for the run, which reuses them.

    Raises:
        DataError: the data are missing or invalid.
    """
    trainer = task.config.trainer
    data = task.prepare(task.open(task.cache))
    model = task.model(data.sizes, data).to(ranks.device)
    peak = peak_memory(ranks.device)
    step = build_step(task.config, model, task.loss, ranks)
    with TemporaryDirectory() as scratch:
        folder = RunFolder(Path(scratch))
        data.save(folder.path)
        with training_batches(task.examples(data, ranks, folder.path), ranks) as batches:
            update, growth = _updates(step, batches, peak)
        validation = _validation(task, model, data, ranks, folder)
    n_validations = math.ceil(trainer.max_updates / trainer.validate_every)
    total = (trainer.max_updates * update + n_validations * validation) / 60
    lines = [
        f"about {total:,.1f} min on this machine: {trainer.max_updates:,} updates of {update:.3f} s"
        f", {n_validations:,} validations of {validation:.1f} s; then the final evaluation"
    ]
    if (reached := peak()) is not None:
        lines.append(f"about {(reached + growth) / 2**30:.2f} GiB of memory of this process")
    return "\n".join(lines)


def _updates(
    step: TrainingStep, batches: Prefetched, peak: Callable[[], int | None]
) -> tuple[float, float]:
    """Mean seconds of an update, and bytes by which the peak of the memory will still grow.

    The first half of the updates is not timed: kernels are compiled in them. The heap of glibc is
    fragmented by batches of different shapes; its peak grows with the logarithm of the updates.
    """
    times, peaks, watch = [time.perf_counter()], [peak() or 0], ProcessorWatch()
    while times[-1] - times[0] < SECONDS and len(times) <= step.config.max_updates:
        step(len(times), [next(batches) for _ in range(step.config.accumulate)])
        step.window.tolist()  # waits for a GPU
        times.append(time.perf_counter())
        peaks.append(peak() or 0)
        watch.check()
    n = len(times) - 1
    doublings = math.log2(max(1, min(SETTLED, step.config.max_updates) / n))
    return (times[n] - times[n // 2]) / (n - n // 2), doublings * (peaks[n] - peaks[(n + 1) // 2])


@torch.no_grad()
def _validation(
    task: Task[Any], model: Model, data: Data, ranks: Ranks, folder: RunFolder
) -> float:
    """Seconds of a validation, from a part of the set and of the outputs if there are many."""
    quick, valid = task.quick(), task.config.data.valid
    n_items = sum(map(len, quick.batches(data, Part(valid))))
    n, losses = 0, 0.0
    while losses < PART_SECONDS and n < n_items:
        n, started = min(n_items, max(8, 4 * n)), time.perf_counter()
        quick.evaluate(model, data, Part(valid, n, n_outputs=0), ranks)
        losses = time.perf_counter() - started
    started = time.perf_counter()
    valid_heads(task, model, data, ranks)
    heads, n_outputs = time.perf_counter() - started, min(quick.n_outputs, N_OUTPUTS)
    if n_outputs:
        part = Part(valid, n_outputs, n_outputs)
        quick.evaluate(model, data, part, ranks).outputs.write_validation(folder, Tracker(), 0)
    outputs = time.perf_counter() - started - heads
    return losses * n_items / n + heads + outputs * quick.n_outputs / max(1, n_outputs)
