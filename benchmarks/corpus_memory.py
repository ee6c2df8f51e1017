"""Time and memory of preparing a large corpus, on generated text, and how they grow.

    python -m benchmarks.corpus_memory [--pairs 100000 1000000 4500000] [--quick] [--json FILE]

Writes text of about 25 words a sentence from a Zipf vocabulary to disk (in TMPDIR). For each size a
process prepares it with a joint BPE tokenizer, as `scripts/prepare.py` does; another opens the
result, plans an epoch and takes its batches. Prints seconds and the peak memory of the process and
its workers in each phase, and the exponent with which they grow from the smallest size to the
largest (1 is linear, 0 constant). 4.5 million pairs are the size of WMT14 En-De; the tokenizer is
trained on a sample of at most 2 million sentences.

Memory is anonymous memory (Linux): the rest of the resident set is pages of mapped files
(libraries, the ids), which processes share and the system can free. On disk a pair takes about 800
bytes.
"""

from __future__ import annotations

import itertools
import math
import os
import re
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from headwise.tasks.translation.prepare import PreparedCorpus

SIZES, QUICK_SIZES = (100_000, 1_000_000, 4_500_000), (2_000, 8_000)
MIB = 2**20
MAX_TRAINING_SENTENCES = 2_000_000  # of both sides
FIRST_PHASES = ("read", "tokenizer", "encode")
SECOND_PHASES = ("second start", "plan", "batches")
Figures = dict[str, float]  # "phase, unit" -> seconds or MiB


def write_text(folder: Path, n_pairs: int) -> None:
    """Sentences of 1 to 100 words, 25 on average, over 400,000 word forms."""
    draw = np.random.default_rng(1)
    letters = np.array(list("eeeeennniiirrttaasshdulcgmobwfkzvp"))
    n_forms = 400_000 if n_pairs > 50_000 else 20_000
    words = ["".join(draw.choice(letters, n)) for n in 2 + draw.poisson(6, size=n_forms)]
    words[:200] = ["".join(draw.choice(letters, n)) for n in draw.integers(2, 5, 200)]
    for split, n_lines in (("train", n_pairs), ("valid", 1000)):
        for side in ("de", "en"):
            with open(folder / f"{split}.{side}", "w", encoding="utf-8") as file:
                for start in range(0, n_lines, 10_000):
                    n_rows = min(10_000, n_lines - start)
                    lengths = np.minimum(1 + draw.gamma(2.5, 9.6, n_rows).astype(int), 100)
                    ranks = np.minimum(draw.zipf(1.15, lengths.sum()), n_forms) - 1
                    chosen = [words[rank] for rank in ranks.tolist()]
                    ends = np.cumsum(lengths).tolist()
                    for first, last in zip([0, *ends], ends, strict=False):
                        file.write(" ".join(chosen[first:last]) + ".\n")


class Phases(threading.Thread):
    """Samples the anonymous memory of this process and all below it every 50 ms."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._samples: list[tuple[float, int]] = []
        self._done = threading.Event()

    def run(self) -> None:
        """Until the block ends."""
        while not self._done.wait(0.05):
            self._samples.append((time.time(), _anonymous(os.getpid())))

    def __enter__(self) -> Phases:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        time.sleep(0.2)  # so that the last phase has samples
        self._done.set()
        self.join()

    def figures(self, names: Sequence[str], marks: Sequence[float]) -> Figures:
        """Seconds and peak memory of each phase, which lies between two marks."""
        phases = {}
        for name, (start, end) in zip(names, itertools.pairwise(marks), strict=True):
            # Samples near the bounds may belong to the phase beside, but each phase needs one.
            within = [size for moment, size in self._samples if start + 0.1 <= moment <= end]
            nearest = min(self._samples, key=lambda sample: abs(sample[0] - end))[1]
            phases[f"{name}, s"] = end - start
            phases[f"{name}, MiB"] = max(within, default=nearest) / MIB
        return phases


def _anonymous(pid: int) -> int:
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
        tasks = [task.read_text() for task in Path(f"/proc/{pid}/task").glob("*/children")]
    except OSError:  # the process or a thread has ended meanwhile
        return 0
    own = re.search(r"RssAnon:\s*(\d+) kB", status)
    children = [int(child) for task in tasks for child in task.split()]
    return (int(own[1]) * 1024 if own else 0) + sum(map(_anonymous, children))


def prepare(folder: Path) -> PreparedCorpus:
    """As a run does, from the files of `folder`."""
    # Not at the top: workers import this file anew, and train.py's does not bring torch either.
    from headwise.config.data import DataConfig
    from headwise.config.schema import TokenizerConfig
    from headwise.tasks.translation.corpus import ParallelCorpus
    from headwise.tasks.translation.prepare import prepare_corpus

    config = DataConfig(name="zipf", source="de", target="en", licence="none", dir=str(folder))
    options = TokenizerConfig(max_training_sentences=MAX_TRAINING_SENTENCES)
    if not (folder / "train.de").stat().st_size > 50_000 * 100:
        options.vocab_size = 2000
    corpus = ParallelCorpus(config, folder / "cache")
    return prepare_corpus(corpus, options, n_workers=None, progress=False)


def first_start(folder: Path) -> Figures:
    """Figures of the preparation."""
    with Phases() as phases:
        start = time.time()
        prepare(folder)
    (text,) = folder.glob("cache/corpora/zipf/train-cleaned-*/manifest.json")
    (encoded,) = folder.glob("cache/encoded/*/manifest.json")
    files = (text, encoded.with_name("tokenizer.model"), encoded)
    figures = phases.figures(FIRST_PHASES, [start, *(file.stat().st_mtime for file in files)])
    ids = (encoded.with_name(f"train.{side}") for side in ("source", "target"))
    return {**figures, "ids, MiB": sum(file.stat().st_size for file in ids) / MIB}


def second_start(folder: Path) -> Figures:
    """Figures of a run whose corpus is prepared."""
    from headwise.data.loader import BatchLoader
    from headwise.tasks.translation.batches import TrainingPairs

    with Phases() as phases:
        marks = [time.time()]
        prepared = prepare(folder)
        marks.append(time.time())
        loader = BatchLoader(TrainingPairs(prepared.train, 25_000, seed=1))
        n_batches = loader.n_batches
        marks.append(time.time())
        for _ in range(n_batches):
            next(loader)
        marks.append(time.time())
    return phases.figures(SECOND_PHASES, marks)


def measure(n_pairs: int) -> Figures:
    """Figures of both starts, each in its own process."""
    from benchmarks.command import in_own_process

    with tempfile.TemporaryDirectory() as name:
        folder, start = Path(name), time.time()
        write_text(folder, n_pairs)
        figures = {"write text, s": time.time() - start}
        figures |= in_own_process(first_start, folder) | in_own_process(second_start, folder)
        figures["disk, MiB"] = sum(p.stat().st_size for p in folder.rglob("*") if p.is_file()) / MIB
    return figures


def main() -> None:
    from benchmarks.command import arguments, keep

    args = arguments(__doc__, pairs={"type": int, "nargs": "+", "default": SIZES})
    sizes = QUICK_SIZES if args.quick else sorted(args.pairs)
    results = {n_pairs: measure(n_pairs) for n_pairs in sizes}
    print(f"{'pairs':20}" + "".join(f"{n_pairs:>14,}" for n_pairs in sizes) + "      exponent")
    for name in results[sizes[0]]:
        values = [max(results[n_pairs][name], 1e-9) for n_pairs in sizes]
        cells = "".join(f"{value:>14.2f}" for value in values)
        growth = math.log(values[-1] / values[0])
        exponent = f"{growth / math.log(sizes[-1] / sizes[0]):14.2f}" if len(sizes) > 1 else ""
        print(f"{name:20}{cells}{exponent}")
    keep(args.json, {"pairs": results})


if __name__ == "__main__":
    main()
