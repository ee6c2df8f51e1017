"""Time and memory of calls, and the description of the machine, for all benchmarks."""

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

from headwise.train.memory import peak_memory, resident_bytes


def seconds(call: Callable[[], object], until_done: bool = True) -> float:
    """Return the CPU time of a call with one thread (less affected by other load), else wall time.

    With a GPU, wait until the device has finished, or with `until_done=False` only until the host
    has launched all work.
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
    """Return median seconds (or `spend`) per call, interleaved, after one warm-up round."""
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for repeat in range(repeats + 1):
        for name, call in calls.items():
            spent = spend(call)
            if repeat:
                taken[name].append(spent)
    return {name: statistics.median(spent) for name, spent in taken.items()}


def added_bytes(call: Callable[[], object]) -> int | None:
    """Return the peak increase of the resident set during a call; None without Linux."""
    peak, before = peak_memory(torch.device("cpu")), resident_bytes("VmRSS")
    call()
    after = peak()
    return None if after is None or before is None else after - before


@contextmanager
def without(kernels: ModuleType) -> Iterator[None]:
    """Disable these kernels, so that torch alone is used."""

    def supports_nothing(values: Tensor) -> bool:  # a mock would hold references to its arguments
        return False

    with mock.patch.object(kernels, "supports", supports_nothing):
        yield


def machine() -> str:
    """Return the GPU in use, else the processor and its vector extensions; torch and system."""
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
