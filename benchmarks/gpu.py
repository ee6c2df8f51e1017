"""Shared code of the GPU benchmarks: time by device events, save."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from benchmarks.command import arguments, keep
from headwise.ops import dispatch
from headwise.ops.triton import device as triton_device

REPEATS = 11
SLEEP_CYCLES = 4_000_000  # milliseconds of the device, so that the host has launched everything
Rows = Iterator[dict[str, Any]]


def milliseconds(call: Callable[[], object]) -> float:
    """Return the device time of a call, by events."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(SLEEP_CYCLES)
    start.record()
    call()
    end.record()
    torch.cuda.synchronize()
    return float(start.elapsed_time(end))


def main(
    about: str | None,
    name: str,
    measure: Callable[[Namespace], Rows],
    needs_kernels: bool = True,
    **options: dict[str, Any],
) -> int:
    """Run a GPU benchmark; the status is 1 if kernels do not run or torch replaced a wrong one.

    Args:
        about: as for `benchmarks.command.arguments`, as are the options.
        name: default name of the result file.
        measure: arguments -> rows, each saved at once, so that an error loses none.
        needs_kernels: whether Triton must run; else torch alone is measured without it.
    """
    if torch.cuda.is_available():
        torch.cuda.init()  # `machine` then names the GPU
    args = arguments(about, **options)
    path = args.json or Path(f"outputs/benchmarks/{name}.json")
    if not torch.cuda.is_available():
        print("no CUDA device: nothing to measure")
        return 0
    if reason := triton_device.unavailable_reason(torch.device("cuda")):
        print(f"{'the kernels cannot run here' if needs_kernels else 'torch alone'}: {reason}")
        if needs_kernels:
            return 1
    rows: list[dict[str, Any]] = []
    for row in measure(args):
        rows.append(row)
        keep(path, {"rows": rows})
    print(f"written: {path}")
    return int(bool(dispatch.failures()))  # torch was timed instead of a wrong kernel
