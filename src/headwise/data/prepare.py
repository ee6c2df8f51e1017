"""A corpus made ready by itself: what `scripts/prepare.py` does."""

from __future__ import annotations

import resource
import time
from pathlib import Path
from typing import Any

from headwise.data.corpus import open_corpus
from headwise.data.encoded import prepare_corpus
from headwise.schema import Config


def prepare_and_tell(config: Config) -> dict[str, Any]:
    """Find, clean, segment and encode `config.data`; print and return what came of it."""
    started = time.perf_counter()
    cache = Path(config.paths.cache).expanduser()
    corpus = open_corpus(config.data, cache)
    prepared = prepare_corpus(
        corpus,
        config.tokenizer,
        cache,
        n_workers=config.trainer.n_workers,
        progress=config.trainer.progress,
    )
    seconds = time.perf_counter() - started
    peak_kib = max(
        resource.getrusage(who).ru_maxrss
        for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )
    print(f"{config.data.name} {config.data.source}-{config.data.target}: {prepared.folder}")
    for name, value in prepared.report.items():
        print(f"  {name}: {value}")
    print(f"  test sets: {', '.join(corpus.config.test)}")
    print(f"  {seconds:.1f} s this time, {peak_kib / 2**20:.2f} GiB at the peak of a process")
    return prepared.report
