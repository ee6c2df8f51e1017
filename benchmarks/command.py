"""The command line of all benchmarks, processes of their own, and how figures are kept."""

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
    """What was typed; names the machine, after `--threads` has been set.

    Args:
        about: the head of a benchmark, whose first line describes it.
        options: its own, beside the common ones, by their names; `json` and `threads` may be
            given anew.
    """
    parser = argparse.ArgumentParser(description=(about or "").splitlines()[0])
    common: dict[str, dict[str, Any]] = {
        "quick": {"action": "store_true", "help": "a first look: few and small cases or repeats"},
        "threads": {"type": int, "help": "of torch; its default otherwise"},
        "json": {"type": Path, "metavar": "FILE", "help": "keep the figures here"},
    }
    for name, settings in {**common, **options}.items():
        parser.add_argument(f"--{name}", **settings)
    given = parser.parse_args()
    if isinstance(given.threads, int):
        torch.set_num_threads(given.threads)
        os.environ["OMP_NUM_THREADS"] = str(given.threads)  # of processes that are started
    print(f"machine: {machine()}, {torch.get_num_threads()} thread(s)")
    return given


def keep(path: Path | None, content: Mapping[str, Any]) -> None:
    """Write figures as json, with what they are of, in a folder that is made if need be."""
    if path is None:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    record = {**when(), "machine": machine(), "threads": torch.get_num_threads(), **content}
    path.write_text(json.dumps(record, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


def when() -> dict[str, str]:
    """Today's date, and the commit that stands here."""
    command, here = ["git", "describe", "--always", "--dirty"], Path(__file__).parent
    asked = subprocess.run(command, cwd=here, capture_output=True, text=True)
    commit = asked.stdout.strip() or "unknown"
    return {"date": datetime.date.today().isoformat(), "commit": commit}


def in_own_process(call: Callable[P, T], *given: P.args, **named: P.kwargs) -> T:
    """What a fresh process makes of a call, which must stand at the top of its module."""
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawn) as process:
        return process.submit(call, *given, **named).result()
