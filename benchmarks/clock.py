"""How all benchmarks time things, what they say of the machine, and how figures are kept."""

from __future__ import annotations

import datetime
import json
import platform
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch


def seconds(call: Callable[[], object]) -> float:
    """Of the processor on one thread, which other load lengthens less; else of the clock."""
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    start = clock()
    call()
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


def keep(path: Path, content: Mapping[str, Any]) -> None:
    """Write figures as json with `when` they were made, in a folder that is made if need be."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps({**when(), **content}, ensure_ascii=False, indent=1)
    path.write_text(text + "\n", encoding="utf-8")


def when() -> dict[str, str]:
    """Today's date, and the commit that stands here."""
    asked = subprocess.run(
        ["git", "describe", "--always", "--dirty"],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        check=False,
    )
    commit = asked.stdout.strip() or "unknown"
    return {"date": datetime.date.today().isoformat(), "commit": commit}


def machine() -> str:
    """Processor, its vectors, torch and system, in words."""
    return (
        f"{_processor()}, {torch.backends.cpu.get_cpu_capability()}, torch {torch.__version__}, "
        f"{platform.system()}"
    )


def gpu() -> str:
    """The first GPU and torch, in words."""
    return f"{torch.cuda.get_device_name()}, torch {torch.__version__}"


def _processor() -> str:
    facts = Path("/proc/cpuinfo")
    if facts.exists():
        for line in facts.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return f"{platform.machine()} {platform.processor()}"
