"""What the benchmarks of a GPU share: right first, then timed by the device, and kept."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.command import arguments, keep
from headwise.kernels import triton_device

REPEATS = 11
SLEEP_CYCLES = 4_000_000  # milliseconds of the device: by then the host has launched all
Rows = Iterator[dict[str, Any]]


def milliseconds(call: Callable[[], object]) -> float:
    """Of the device alone, by its events."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(SLEEP_CYCLES)
    start.record()
    call()
    end.record()
    torch.cuda.synchronize()
    return float(start.elapsed_time(end))


def are_near(name: str, results: Sequence[Sequence[Tensor]], bounds: Sequence[float]) -> bool:
    """Whether each of ours is within its bound of float64's: |a - b| / |b|, Frobenius.

    Args:
        name: what the line that is printed calls them.
        results: ours, and those in float64.
        bounds: one for each; the last holds for all that follow.
    """
    errors = [float((a.double() - b).norm() / b.norm()) for a, b in zip(*results, strict=True)]
    last = len(bounds) - 1
    are_within = all(error <= bounds[min(i, last)] for i, error in enumerate(errors))
    shown = "  ".join(f"{error:.1e}" for error in errors)
    print(f"  {shown}  {'' if are_within else 'OUT OF BOUNDS '}{name}", flush=True)
    return are_within


def main(
    about: str | None,
    name: str,
    measure: Callable[[Namespace], Rows],
    is_correct: Callable[[str], bool] = lambda device: True,
    needs_kernels: bool = True,
    **options: dict[str, Any],
) -> int:
    """The command line of such a benchmark; the status is 1 where kernels do not run or are wrong.

    Args:
        about: as for `benchmarks.command.arguments`, as are the options.
        name: of the file of figures, unless another is named.
        measure: what was typed -> rows, each kept at once: what fails takes none with it.
        is_correct: asked of the device first.
        needs_kernels: Triton's kernels; else torch alone is measured where they do not run.
    """
    if torch.cuda.is_available():
        torch.cuda.init()  # it is then the machine that is named
    given = arguments(about, **options)
    path = given.json or Path(f"outputs/benchmarks/{name}.json")
    if not torch.cuda.is_available():
        print("no CUDA device: nothing to measure")
        return 0
    if reason := triton_device.device_refusal(torch.device("cuda")):
        print(f"{'the kernels cannot run here' if needs_kernels else 'torch alone'}: {reason}")
        if needs_kernels:
            return 1
    if not is_correct("cuda"):
        return 1
    rows: list[dict[str, Any]] = []
    for row in measure(given):
        rows.append(row)
        keep(path, {"rows": rows})
    print(f"written: {path}")
    return 0
