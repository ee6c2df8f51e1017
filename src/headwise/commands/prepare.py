"""`headwise prepare data=…`: prepare a corpus without training."""

from __future__ import annotations

import time
from typing import Any

from headwise.config.schema import Config
from headwise.tasks.check import checked_task


def prepare(config: Config) -> None:
    """Clean, tokenize and encode `config.data`; print the counts."""
    task = checked_task(config)
    started = time.perf_counter()
    corpus = task.open(task.cache)
    prepared: Any = task.prepare(corpus)
    print(" ".join((config.data.name, "-".join(task.languages))) + f": {prepared.folder}")
    for name, value in prepared.report.items():
        print(f"  {name}: {value}")
    print(f"  test sets: {', '.join(corpus.test_sets)}")
    print(f"  {time.perf_counter() - started:.1f} s this time")
