"""Memory and time of preparing a large corpus, on generated text.

    python -m benchmarks.corpus_memory --pairs 450000

Writes text of about 25 words a sentence from a Zipf vocabulary to disk, prepares it with a joint
BPE tokenizer, opens it again, plans an epoch and takes its batches; once for a quarter of the
pairs and once for all, each in a process of its own. Prints seconds and the highest memory of the
process and its workers in each phase, and the straight line through both sizes at 4.5 million
pairs (the size of WMT14 En-De); a line that falls is taken for level. The tokenizer's line ends
at the size of its capped sample.

Anonymous memory is what processes hold for themselves; the rest of the resident set is pages of
mapped files (libraries, the ids), which the system can take back.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from headwise.data.encoded import PreparedCorpus

WMT14_PAIRS = 4_500_000
MIB = 2**20
MAX_TRAINING_SENTENCES = 2_000_000  # what the tokenizer learns from at most, of both sides
PHASES = ("read", "tokenizer", "encode", "second start", "plan", "batches")


@dataclass
class ZipfText:
    """A source of pairs: one file a side, written once, read as a stream."""

    folder: Path
    n_pairs: int

    def write(self) -> None:
        """Sentences of 1 to 100 words, 25 on average, over 400,000 word forms."""
        draw = np.random.default_rng(1)
        letters = np.array(list("eeeeennniiirrttaasshdulcgmobwfkzvp"))
        words = np.array(
            ["".join(draw.choice(letters, n)) for n in 2 + draw.poisson(6, size=400_000)]
        )
        words[:200] = ["".join(draw.choice(letters, n)) for n in draw.integers(2, 5, 200)]
        for side in ("source", "target"):
            with open(self.folder / side, "w", encoding="utf-8") as file:
                for start in range(0, self.n_pairs, 10_000):
                    n_rows = min(10_000, self.n_pairs - start)
                    lengths = np.minimum(1 + draw.gamma(2.5, 9.6, n_rows).astype(int), 100)
                    ranks = np.minimum(draw.zipf(1.15, lengths.sum()), len(words)) - 1
                    for row in np.split(words[ranks], np.cumsum(lengths)[:-1]):
                        file.write(" ".join(row) + ".\n")

    def splits(self) -> list[str]:
        """Train and valid."""
        return ["train", "valid"]

    def pairs(self, split: str) -> Iterator[tuple[str, str]]:
        """All pairs, or the first thousand for valid."""
        limit = self.n_pairs if split == "train" else 1000
        with (
            open(self.folder / "source", encoding="utf-8", newline="\n") as source,
            open(self.folder / "target", encoding="utf-8", newline="\n") as target,
        ):
            for _, one, other in zip(range(limit), source, target, strict=False):
                yield one[:-1], other[:-1]

    def identity(self, split: str) -> str:
        """Version of the generator."""
        return f"zipf 1 {split} {self.n_pairs}"


class PeakMemory(threading.Thread):
    """Samples the memory of this process and all below it every 50 ms."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._samples: list[tuple[float, int, int]] = []  # time, anonymous and resident bytes
        self._done = threading.Event()

    def run(self) -> None:
        """Until the block ends."""
        while not self._done.wait(0.05):
            sizes = [_memory(pid) for pid in _family(os.getpid())]
            anonymous, resident = (sum(side) for side in zip(*sizes, strict=True))
            self._samples.append((time.perf_counter(), anonymous, resident))

    def __enter__(self) -> PeakMemory:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self.join()

    def between(self, start: float, end: float) -> dict[str, float]:
        """The highest memory in MiB, and the seconds, of a stretch of time."""
        # Samples near the bounds may belong to the phase beside, but each phase needs one.
        within = [s for s in self._samples if start + 0.1 <= s[0] <= end]
        sizes = [s[1:] for s in within or [min(self._samples, key=lambda s: abs(s[0] - end))]]
        anonymous, resident = (max(side) / MIB for side in zip(*sizes, strict=True))
        return {"seconds": end - start, "anonymous": anonymous, "resident": resident}


def _family(pid: int) -> list[int]:
    family = [pid]
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = task.read_text().split()
        except OSError:  # the thread has ended meanwhile
            continue
        for child in children:
            family += _family(int(child))
    return family


def _memory(pid: int) -> tuple[int, int]:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:  # the process has ended meanwhile
        return 0, 0
    kib = {line.split(":")[0]: int(line.split()[1]) for line in lines if line.endswith(" kB")}
    return kib.get("RssAnon", 0) * 1024, kib.get("VmRSS", 0) * 1024


def measure(n_pairs: int, n_workers: int | None, folder: Path) -> dict[str, dict[str, float]]:
    """Phase -> seconds, and the highest memory in MiB; `sizes` are of the text and the ids."""
    # Not at the top: workers import this file anew, and train.py's does not bring torch either.
    from headwise.data.batching import BatchLoader
    from headwise.data.cleaning import CleaningReport
    from headwise.data.corpus import Corpus
    from headwise.data.encoded import prepare_corpus
    from headwise.schema import DataConfig, TokenizerConfig

    config = DataConfig(name="zipf", source="de", target="en", licence="none")
    options = TokenizerConfig(max_training_sentences=MAX_TRAINING_SENTENCES)
    source = ZipfText(folder, n_pairs)
    source.write()

    def prepare() -> PreparedCorpus:
        corpus = Corpus(config, source, CleaningReport())
        return prepare_corpus(corpus, options, folder / "cache", n_workers)

    with PeakMemory() as memory:
        time.sleep(0.2)
        marks = [time.perf_counter()]
        report = prepare().report
        for phase in ("read", "tokenizer", "encode"):
            marks.append(marks[-1] + report[f"{phase}_seconds"])
        marks[-1] = time.perf_counter()
        prepared = prepare()
        marks.append(time.perf_counter())
        loader = BatchLoader(prepared.train, 25_000, seed=1)
        n_batches = loader.n_batches
        marks.append(time.perf_counter())
        n_tokens = sum(next(loader).n_tokens for _ in range(n_batches))
        marks.append(time.perf_counter())
        time.sleep(0.2)
    spans = zip(PHASES, marks[:-1], marks[1:], strict=True)
    phases = {phase: memory.between(start, end) for phase, start, end in spans}
    text = sum((folder / side).stat().st_size for side in ("source", "target"))
    ids = sum(store.flat.nbytes for store in (prepared.train.source, prepared.train.target))
    sizes = {"text": text / MIB, "ids": ids / MIB, "tokens": n_tokens}
    return {**phases, "sizes": sizes}


def _in_own_process(options: argparse.Namespace, n_pairs: int) -> dict[str, dict[str, float]]:
    command = [sys.executable, "-m", "benchmarks.corpus_memory", "--alone", "--pairs", str(n_pairs)]
    if options.workers:
        command += ["--workers", str(options.workers)]
    if options.dir:
        command += ["--dir", str(options.dir)]
    printed = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    result: dict[str, dict[str, float]] = json.loads(printed.splitlines()[-1])
    return result


def report(options: argparse.Namespace) -> None:
    """Measure both sizes and print the table."""
    few, many = options.pairs // 4, options.pairs
    small, large = (_in_own_process(options, n_pairs) for n_pairs in (few, many))

    def at(phase: str, key: str, n_pairs: int) -> float:
        slope = (large[phase][key] - small[phase][key]) / (many - few)
        value: float = large[phase][key] + max(slope, 0.0) * (n_pairs - many)
        return value

    sample = max(MAX_TRAINING_SENTENCES // 2, many)
    print(f"{'':20}{few:>14,} pairs{many:>14,} pairs{WMT14_PAIRS:>14,} pairs, extrapolated")
    for key, unit in (("seconds", "s"), ("anonymous", "MiB"), ("resident", "MiB")):
        for phase in PHASES:
            n_pairs = sample if phase == "tokenizer" else WMT14_PAIRS
            values = (small[phase][key], large[phase][key], at(phase, key, n_pairs))
            cells = "".join(f"{value:>20.2f}" for value in values)
            print(f"{phase + ', ' + unit + ' ' + key * (unit == 'MiB'):30}"[:30] + cells)
    for key in ("text", "ids"):
        values = (small["sizes"][key], large["sizes"][key], at("sizes", key, WMT14_PAIRS))
        print(f"{key + ', MiB':30}" + "".join(f"{value:>20.0f}" for value in values))
    rate = large["sizes"]["tokens"] / large["batches"]["seconds"]
    print(f"batches of 25,000 tokens: {rate:,.0f} target tokens/s")


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--pairs", type=int, default=450_000)
    parser.add_argument("--workers", type=int, default=None, help="default: one a core")
    parser.add_argument("--dir", type=Path, default=None, help="where to write (default: /tmp)")
    parser.add_argument("--alone", action="store_true", help="this size only, as JSON")
    options = parser.parse_args()
    if not options.alone:
        report(options)
        return
    with tempfile.TemporaryDirectory(dir=options.dir) as folder:
        print(json.dumps(measure(options.pairs, options.workers, Path(folder))))


if __name__ == "__main__":
    main()
