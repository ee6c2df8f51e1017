"""`headwise prepare data=…`: a corpus alone, ready for training."""

from __future__ import annotations

import resource
import sys
import time
from pathlib import Path
from typing import Any

from headwise.config.schema import Config
from headwise.data.corpus import open_corpus
from headwise.data.encoded import prepare_corpus
from headwise.data.tokenizer_training import check_tokenizer_config


def prepare(config: Config) -> dict[str, Any]:
    """Find, clean, segment and encode `config.data`; print and return what came of it."""
    check_tokenizer_config(config.tokenizer)
    started = time.perf_counter()
    corpus = open_corpus(config.data, Path(config.paths.cache).expanduser())
    prepared = prepare_corpus(
        corpus,
        config.tokenizer,
        n_workers=config.trainer.n_workers,
        progress=config.trainer.progress,
    )
    seconds = time.perf_counter() - started
    own, workers = resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN
    peak = max(resource.getrusage(who).ru_maxrss for who in (own, workers))
    peak_bytes = peak if sys.platform == "darwin" else peak * 1024
    print(f"{config.data.name} {config.data.source}-{config.data.target}: {prepared.folder}")
    for name, value in prepared.report.items():
        print(f"  {name}: {value}")
    print(f"  test sets: {', '.join(corpus.config.test)}")
    print(f"  {seconds:.1f} s this time, {peak_bytes / 2**30:.2f} GiB at the peak of a process")
    return prepared.report
