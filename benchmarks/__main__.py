"""Everything that speed is promised for, as one table of ratios.

    python -m benchmarks [--quick] [--only NAME ...] [--threads N ...] [--json FILE]

Each figure is a ratio of medians of contenders that ran interleaved in one process. The table says
what was found beside what is aimed at, and what a figure needs that is not here (the public entmax
package) is left out. A full run takes about a quarter of an hour a thread count; it writes
`results/benchmarks/threads_<N>.json` and adds a line to `results/benchmarks/history.jsonl`, unless
`--quick` or `--only`. The parts print more when called alone: `python -m benchmarks.entmax`,
`.length`, `.matmul_share`, `.decoding`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks import command, decoding, entmax, length, matmul_share
from headwise.kernels import native

RESULTS = Path(__file__).parents[1] / "results" / "benchmarks"


@dataclass(frozen=True)
class Figure:
    """One ratio, and the end it is wanted at."""

    name: str
    found: float
    goal: float
    at_most: bool = True

    @property
    def is_met(self) -> bool:
        """Whether the goal is reached."""
        return self.found <= self.goal if self.at_most else self.found >= self.goal


def maps(quick: bool) -> list[Figure]:
    """The maps alone."""
    measured = entmax.measure(quick)
    taken = {(tuple(row["shape"]), row["map"]): row["both"] for row in measured["rows"]}
    found = []
    for shape in dict.fromkeys(shape for shape, _ in taken):
        goal = 4.0 if shape[-1] < 1024 else 2.0
        ours = taken[shape, "alpha_entmax"]
        found.append(Figure(f"α-entmax / softmax, f+b, {shape}", ours, goal))
        oracle = taken.get((shape, "entmax_bisect"))  # see `contenders`
        if oracle is None:
            continue
        ratio = ours / oracle
        found.append(Figure(f"α-entmax / entmax_bisect(50), {shape}", ratio, 1 / 60))
        for way, wanted in (("torch alone", 1 / 10), ("torch alone, compiled", 1 / 20)):
            ratio = taken[shape, f"alpha_entmax, {way}"] / oracle
            found.append(Figure(f"{way} / entmax_bisect(50), {shape}", ratio, wanted))
        for name in ("entmax15", "sparsemax") if shape[-1] >= 64 else ():
            ratio = taken[shape, name] / taken[shape, f"package's {name}"]
            found.append(Figure(f"{name} / the package's, {shape}", ratio, 0.2))
    goals = {"weights": 1e-6, "scores' gradient": 5e-6, "α's gradient": 1e-5}
    for n_keys, worst in measured["errors"].items():
        for name, error in worst.items():
            found.append(Figure(f"error of {name}, {n_keys} keys", error, goals[name]))
    return found


def attention(quick: bool) -> list[Figure]:
    """One layer of long self-attention, forward and backward."""
    n = 512 if quick else 4096
    taken = length.seconds_of(["softmax", "alpha_entmax"], n, 3 if quick else 7)
    ratio = taken["alpha_entmax"] / taken["softmax"]
    found = [Figure(f"α-entmax / softmax (sdpa), a layer, n = {n}", ratio, 6)]
    if quick:
        return found
    short, long = (length.memory_of("alpha_entmax", n) for n in (2048, 8192))
    if short and long:
        found.append(Figure("α-entmax, memory at 8k / at 2k", long / short, 4.4))
    return found


def step(quick: bool) -> list[Figure]:
    """The training step."""
    found = []
    for row in matmul_share.measure(quick):
        case = f"{row['model']}, length {row['length']}, {row['precision']}"
        goal = 1.5 if row["model"] == "base" else 2.0
        found.append(Figure(f"softmax's step / its products, {case}", row["ratio"], goal))
        found.append(Figure(f"α-entmax's step / softmax's, {case}", row["to_softmax"], 1.05))
    return found


def search(quick: bool) -> list[Figure]:
    """Translation."""
    found = []
    for row in decoding.measure(quick):
        case = f"{row['model']}, {row['text']}, {row['attention']}, beam {row['beam']}"
        if row["beam"] > 1:
            found.append(Figure(f"cached / recomputed, {case}", row["ratio"], 8, at_most=False))
    return found


PARTS: dict[str, Callable[[bool], list[Figure]]] = {
    "maps": maps,
    "attention": attention,
    "step": step,
    "search": search,
}


def show(part: str, figures: list[Figure], quick: bool) -> None:
    """Print figures; small cases of few repeats are not held against the goals."""
    print(f"\n{part}, {torch.get_num_threads()} thread(s)")
    for figure in figures:
        sign = "≤" if figure.at_most else "≥"
        mark = "" if quick or figure.is_met else "   not met"
        print(f"  {figure.name:58} {figure.found:9.3g}  {sign} {figure.goal:.3g}{mark}", flush=True)


def main() -> None:
    given = command.arguments(
        __doc__,
        only={"nargs": "+", "choices": PARTS, "default": list(PARTS), "help": "these parts"},
        threads={"nargs": "+", "type": int, "default": [1], "help": "of torch"},
    )
    kernels = native.reason_without() or "C++"
    print(f"kernels: {kernels}")
    records = []
    for n_threads in given.threads:
        torch.set_num_threads(n_threads)
        found = []
        for part in given.only:
            figures = PARTS[part](given.quick)
            show(part, figures, given.quick)
            found += [asdict(figure) for figure in figures]
        records.append({"kernels": kernels, "threads": n_threads, "figures": found})
        if not given.quick and given.only == list(PARTS):
            keep(records[-1])
    command.keep(given.json, {"runs": records})


def keep(record: dict[str, Any]) -> None:
    """Write the last whole run on so many threads, and a line of history."""
    path = RESULTS / f"threads_{record['threads']}.json"
    command.keep(path, record)
    with (RESULTS / "history.jsonl").open("a", encoding="utf-8") as history:
        kept = json.loads(path.read_text(encoding="utf-8"))
        history.write(json.dumps(kept, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
