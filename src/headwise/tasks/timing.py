"""Dry runs: minutes and memory, measured on a few updates and one validation of a run."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from contextvars import copy_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from headwise.data.loader import Prefetched
from headwise.data.sources.download import IS_OFFLINE
from headwise.errors import DataError
from headwise.model.family import Model
from headwise.runs.folder import RunFolder
from headwise.tasks.check import resolve
from headwise.tasks.data import Data
from headwise.tasks.evaluate import valid_heads
from headwise.tasks.task import Part, Task
from headwise.track.base import Tracker
from headwise.train.budget import budget, describe_budget
from headwise.train.distributed import Ranks, training_batches, training_process
from headwise.train.memory import peak_memory
from headwise.train.progress import ProcessorWatch
from headwise.train.step import TrainingStep, build_step

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
    if not needs.is_measured:
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
    return (
        f"about {total:,.1f} min on this machine: {trainer.max_updates:,} updates of {update:.3f} s"
        f", {n_validations:,} validations of {validation:.1f} s; then the final evaluation\n"
        f"about {((peak() or math.nan) + growth) / 2**30:.2f} GiB of memory of this process"
    )


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
