"""Time and memory of preparing a large corpus, on generated text, and how they grow.

    python -m benchmarks.corpus_memory --pairs 100000 1000000 4500000

Writes text of about 25 words a sentence from a Zipf vocabulary to disk. For each size one process
prepares it with a joint BPE tokenizer, as `scripts/prepare.py` does; a second one opens what was
made, plans an epoch and takes its batches. Prints seconds and the highest memory of the process
and its workers in each phase, and the exponent with which they grow from the smallest size to the
largest (1 is linear, 0 constant). 4.5 million pairs are the size of WMT14 En-De; the tokenizer
learns from a sample of at most 2 million sentences.

Anonymous memory is what processes hold for themselves; the rest of the resident set is pages of
mapped files (libraries, the ids), which the system can take back. `before` is what a process held
before the phase, mostly imported libraries.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from headwise.data.encoded import PreparedCorpus

SIZES = (100_000, 1_000_000, 4_500_000)
QUICK_SIZES = (2_000, 8_000)
MIB = 2**20
MAX_TRAINING_SENTENCES = 2_000_000  # what the tokenizer learns from at most, of both sides
FIRST_PHASES = ("hash", "read", "tokenizer", "encode")
SECOND_PHASES = ("second start", "plan", "batches")
Phases = dict[str, dict[str, float]]


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

    def now(self) -> float:
        """Anonymous memory of the last sample, in MiB."""
        return self._samples[-1][1] / MIB


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


def prepare(folder: Path, n_workers: int | None) -> PreparedCorpus:
    """As a run does, from the files of `folder`."""
    # Not at the top: workers import this file anew, and train.py's does not bring torch either.
    from headwise.config.schema import DataConfig, TokenizerConfig
    from headwise.data.corpus import open_corpus
    from headwise.data.encoded import prepare_corpus

    config = DataConfig(name="zipf", source="de", target="en", licence="none", dir=str(folder))
    options = TokenizerConfig(max_training_sentences=MAX_TRAINING_SENTENCES)
    if not (folder / "train.de").stat().st_size > 50_000 * 100:
        options.vocab_size = 2000
    corpus = open_corpus(config, folder / "cache")
    return prepare_corpus(corpus, options, n_workers, progress=False)


def first_start(folder: Path, n_workers: int | None) -> Phases:
    """Phase of the preparation -> seconds, and the highest memory in MiB."""
    import headwise.data.corpus  # what is imported is no phase
    import headwise.data.encoded  # noqa: F401

    with PeakMemory() as memory:
        time.sleep(0.2)
        before = memory.now()
        start = time.perf_counter()
        prepared = prepare(folder, n_workers)
        end = time.perf_counter()
        time.sleep(0.2)
    marks = [end]
    for phase in reversed(FIRST_PHASES[1:]):
        marks.insert(0, marks[0] - prepared.report[f"{phase}_seconds"])
    spans = zip(FIRST_PHASES, [start, *marks[:-1]], marks, strict=True)
    phases = {phase: {**memory.between(*span), "before": before} for phase, *span in spans}
    stores = (prepared.train.source, prepared.train.target)
    phases["sizes"] = {
        "text": sum((folder / f"train.{side}").stat().st_size for side in ("de", "en")) / MIB,
        "ids": sum(store.flat.nbytes for store in stores) / MIB,
    }
    return phases


def second_start(folder: Path) -> Phases:
    """The same for a run that finds the corpus made ready."""
    import headwise.data.corpus  # noqa: F401  what is imported is no phase
    from headwise.data.batching import BatchLoader

    with PeakMemory() as memory:
        time.sleep(0.2)
        before = memory.now()
        marks = [time.perf_counter()]
        prepared = prepare(folder, None)
        marks.append(time.perf_counter())
        time.sleep(0.2)  # so that each phase has samples of its own
        planned = time.perf_counter()
        loader = BatchLoader(prepared.train, 25_000, seed=1)
        n_batches = loader.n_batches
        marks.append(time.perf_counter())
        n_tokens = sum(next(loader).n_tokens for _ in range(n_batches))
        marks.append(time.perf_counter())
        time.sleep(0.2)
    spans = zip((marks[0], planned, marks[2]), marks[1:], strict=True)
    phases = {
        phase: {**memory.between(*span), "before": before}
        for phase, span in zip(SECOND_PHASES, spans, strict=True)
    }
    phases["sizes"] = {"tokens": n_tokens}
    return phases


def measure(quick: bool) -> dict[str, Any]:
    """One row a phase and size: seconds and MiB; see the head of this file."""
    return measure_sizes(QUICK_SIZES if quick else SIZES[:2], None, None)


def measure_sizes(
    sizes: tuple[int, ...], n_workers: int | None, parent: Path | None
) -> dict[str, Any]:
    """As `measure`, for any numbers of pairs, which rise."""
    found = {}
    for n_pairs in sizes:
        with tempfile.TemporaryDirectory(dir=parent) as name:
            write_text(Path(name), n_pairs)
            first = _in_own_process("first", Path(name), n_workers)
            second = _in_own_process("second", Path(name), n_workers)
        first["sizes"] |= second.pop("sizes")
        found[n_pairs] = {**first, **second}
        print(f"{n_pairs:,} pairs: {json.dumps(found[n_pairs])}", file=sys.stderr, flush=True)
    rows = [
        {"phase": phase, "pairs": n_pairs, **found[n_pairs][phase]}
        for phase in (*FIRST_PHASES, *SECOND_PHASES)
        for n_pairs in sizes
    ]
    sizes_of = [{"pairs": n_pairs, **found[n_pairs]["sizes"]} for n_pairs in sizes]
    return {"benchmark": "data", "rows": rows, "sizes": sizes_of}


def _in_own_process(start: str, folder: Path, n_workers: int | None) -> Phases:
    command = [sys.executable, "-m", "benchmarks.corpus_memory", "--start", start]
    command += ["--dir", str(folder)]
    if n_workers:
        command += ["--workers", str(n_workers)]
    printed = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    result: Phases = json.loads(printed.splitlines()[-1])
    return result


def show(found: dict[str, Any]) -> None:
    """Print the table."""
    sizes = [size["pairs"] for size in found["sizes"]]
    print(f"{'':30}" + "".join(f"{n_pairs:>14,}" for n_pairs in sizes) + "      exponent")
    for key, unit in (("seconds", "s"), ("before", "MiB"), ("anonymous", "MiB")):
        for phase in (*FIRST_PHASES, *SECOND_PHASES):
            values = [row[key] for row in found["rows"] if row["phase"] == phase]
            cells = "".join(f"{value:>14.2f}" for value in values)
            name = f"{phase}, {unit} {key}" if unit == "MiB" else f"{phase}, {unit}"
            print(f"{name:30}{cells}{_exponent(sizes, values):>14}")
    for key in ("text", "ids"):
        print(f"{key + ', MiB':30}" + "".join(f"{size[key]:>14.0f}" for size in found["sizes"]))


def _exponent(sizes: list[int], values: list[float]) -> str:
    if len(sizes) < 2:
        return ""
    ratio = max(values[-1], 1e-9) / max(values[0], 1e-9)
    return f"{math.log(ratio) / math.log(sizes[-1] / sizes[0]):.2f}"


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--pairs", type=int, nargs="+", default=SIZES)
    parser.add_argument("--quick", action="store_true", help="a few thousand pairs")
    parser.add_argument("--workers", type=int, default=None, help="default: one a core")
    parser.add_argument("--dir", type=Path, default=None, help="where to write (default: /tmp)")
    parser.add_argument("--json", type=Path, default=None, help="also write the rows here")
    parser.add_argument("--start", choices=("first", "second"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.start == "first":
        print(json.dumps(first_start(options.dir, options.workers)))
        return
    if options.start == "second":
        print(json.dumps(second_start(options.dir)))
        return
    sizes = QUICK_SIZES if options.quick else tuple(sorted(options.pairs))
    found = measure_sizes(sizes, options.workers, options.dir)
    show(found)
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
