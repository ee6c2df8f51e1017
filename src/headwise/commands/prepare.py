"""`headwise prepare data=…`: prepare a corpus without training."""

from __future__ import annotations

import resource
import sys
import time
from pathlib import Path
from typing import Any

from headwise.config.schema import Config
from headwise.tasks.check import checked_task


def prepare(config: Config) -> dict[str, Any]:
    """Clean, tokenize and encode `config.data`; print and return the counts."""
    task = checked_task(config)
    started = time.perf_counter()
    corpus = task.open(Path(config.paths.cache))
    prepared: Any = task.prepare(corpus)
    seconds = time.perf_counter() - started
    process, workers = resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN
    peak = max(resource.getrusage(who).ru_maxrss for who in (process, workers))
    peak_bytes = peak if sys.platform == "darwin" else peak * 1024
    print(" ".join((config.data.name, "-".join(task.languages))) + f": {prepared.folder}")
    for name, value in prepared.report.items():
        print(f"  {name}: {value}")
    print(f"  test sets: {', '.join(corpus.test_sets)}")
    print(f"  {seconds:.1f} s this time, peak memory {peak_bytes / 2**30:.2f} GiB per process")
    return dict(prepared.report)
