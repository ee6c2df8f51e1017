"""Command line, separate processes and result files, for all benchmarks."""

from __future__ import annotations

import argparse
import datetime
import json
import multiprocessing
import os
import subprocess
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import torch

from benchmarks.clock import machine

P = ParamSpec("P")
T = TypeVar("T")


def arguments(about: str | None, **options: dict[str, Any]) -> argparse.Namespace:
    """Parse the command line, set `--threads`, and print the machine.

    Args:
        about: docstring of a benchmark; its first line is the description.
        options: additional options by name; `json` and `threads` may be overridden.
    """
    parser = argparse.ArgumentParser(description=(about or "").splitlines()[0])
    common: dict[str, dict[str, Any]] = {
        "quick": {"action": "store_true", "help": "few and small cases or repeats"},
        "threads": {"type": int, "help": "of torch; its default otherwise"},
        "json": {"type": Path, "metavar": "FILE", "help": "save the figures to this file"},
    }
    for name, settings in {**common, **options}.items():
        parser.add_argument(f"--{name}", **settings)
    args = parser.parse_args()
    if isinstance(args.threads, int):
        torch.set_num_threads(args.threads)
        os.environ["OMP_NUM_THREADS"] = str(args.threads)  # of child processes
    print(f"machine: {machine()}, {torch.get_num_threads()} thread(s)")
    return args


def keep(path: Path | None, content: Mapping[str, Any]) -> None:
    """Write figures as json, with date, commit and machine; create the folder."""
    if path is None:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    record = {**when(), "machine": machine(), "threads": torch.get_num_threads(), **content}
    path.write_text(json.dumps(record, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


def when() -> dict[str, str]:
    """Return today's date and the commit of this checkout."""
    command, here = ["git", "describe", "--always", "--dirty"], Path(__file__).parent
    described = subprocess.run(command, cwd=here, capture_output=True, text=True)
    commit = described.stdout.strip() or "unknown"
    return {"date": datetime.date.today().isoformat(), "commit": commit}


def in_own_process(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Return the result of a call in a new process; a function at the top level of a module."""
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawn) as process:
        return process.submit(call, *args, **kwargs).result()
