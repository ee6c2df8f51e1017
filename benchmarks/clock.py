"""How all benchmarks time things, and what they say of the machine."""

from __future__ import annotations

import platform
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from unittest import mock

import torch
from torch import Tensor


def seconds(call: Callable[[], object], until_done: bool = True) -> float:
    """Of the processor on one thread, which other load lengthens less; else of the clock.

    Where a GPU is in use, until it has done all of it, or with `until_done=False` until the host
    has asked the idle device for all of it.
    """
    has_gpu = torch.cuda.is_initialized()
    is_alone = torch.get_num_threads() == 1 and not has_gpu
    clock = time.process_time if is_alone else time.perf_counter
    if has_gpu:
        torch.cuda.synchronize()
    start = clock()
    call()
    if has_gpu and until_done:
        torch.cuda.synchronize()
    return clock() - start


def medians(
    calls: Mapping[str, Callable[[], object]],
    repeats: int,
    spend: Callable[[Callable[[], object]], float] = seconds,
) -> dict[str, float]:
    """Median seconds (or what `spend` tells) of each call, all in turn, after one to warm up."""
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for repeat in range(repeats + 1):
        for name, call in calls.items():
            spent = spend(call)
            if repeat:
                taken[name].append(spent)
    return {name: statistics.median(spent) for name, spent in taken.items()}


@contextmanager
def without(kernels: ModuleType) -> Iterator[None]:
    """Torch alone computes what these kernels take."""

    def takes_nothing(values: Tensor) -> bool:  # a mock would keep what it was asked of
        return False

    with mock.patch.object(kernels, "takes", takes_nothing):
        yield


def machine() -> str:
    """The GPU where one is in use, else the processor and its vectors; torch and system."""
    device = f"{_processor()}, {torch.backends.cpu.get_cpu_capability()}"
    if torch.cuda.is_initialized():
        device = torch.cuda.get_device_name()
    return f"{device}, torch {torch.__version__}, {platform.system()}"


def _processor() -> str:
    facts = Path("/proc/cpuinfo")
    if facts.exists():
        for line in facts.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return f"{platform.machine()} {platform.processor()}"
