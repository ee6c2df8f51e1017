"""Everything that speed is promised for, as one table of ratios.

    python -m benchmarks [--quick] [--only NAME ...] [--threads N ...]

Each figure is a ratio of medians of contenders that ran interleaved in one process. The table says
what was found beside what is aimed at, and what a figure needs that is not here (the public entmax
package) is left out. A full run takes about a quarter of an hour a thread count; it writes
`results/benchmarks/threads_<N>.json` and adds a line to `results/benchmarks/history.jsonl`, unless
`--quick` or `--only`. The parts print more when called alone: `python -m benchmarks.entmax`,
`.length`, `.matmul_share`, `.decoding`.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks import clock, decoding, entmax, length, matmul_share
from benchmarks.clock import machine
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
    taken = {
        (tuple(row["shape"]), row["map"]): {"forward": row["forward"], "both": row["both"]}
        for row in measured["rows"]
    }
    found = []
    for shape in dict.fromkeys(shape for shape, _ in taken):
        ours = taken[shape, "alpha_entmax"]["both"]
        goal = 4.0 if shape[-1] < 1024 else 2.0
        found.append(Figure(f"α-entmax / softmax, f+b, {shape}", ours, goal))
        oracle = taken.get((shape, "entmax_bisect"))  # see `contenders`
        if oracle is None:
            continue
        found.append(
            Figure(f"α-entmax / entmax_bisect(50), {shape}", ours / oracle["both"], 1 / 60)
        )
        for way, wanted in (("torch alone", 1 / 10), ("torch alone, compiled", 1 / 20)):
            ratio = taken[shape, f"alpha_entmax, {way}"]["both"] / oracle["both"]
            found.append(Figure(f"{way} / entmax_bisect(50), {shape}", ratio, wanted))
        for name in ("entmax15", "sparsemax") if shape[-1] >= 64 else ():
            ratio = taken[shape, name]["both"] / taken[shape, f"package's {name}"]["both"]
            found.append(Figure(f"{name} / the package's, {shape}", ratio, 0.2))
    goals = {"weights": 1e-6, "scores' gradient": 5e-6, "α's gradient": 1e-5}
    for n_keys, worst in measured["errors"].items():
        for name, error in worst.items():
            found.append(Figure(f"error of {name}, {n_keys} keys", error, goals[name]))
    return found


def attention(quick: bool) -> list[Figure]:
    """One layer of long self-attention, forward and backward."""
    names, n = ["softmax", "alpha_entmax"], 512 if quick else 4096
    taken = length.seconds_of(names, n, 3 if quick else 7)
    found = [
        Figure(f"α-entmax / softmax (sdpa), a layer, n = {n}", taken[names[1]] / taken[names[0]], 6)
    ]
    if quick:
        return found
    memory = [length.memory_of("alpha_entmax", n) for n in (2048, 8192)]
    if memory[0] and memory[1]:
        found.append(Figure("α-entmax, memory at 8k / at 2k", memory[1] / memory[0], 4.4))
    return found


def step(quick: bool) -> list[Figure]:
    """The training step."""
    found = []
    for row in matmul_share.measure(quick)["rows"]:
        case = f"{row['model']}, length {row['length']}, {row['precision']}"
        goal = 1.5 if row["model"] == "base" else 2.0
        found.append(Figure(f"softmax's step / its products, {case}", row["ratio"], goal))
        found.append(Figure(f"α-entmax's step / softmax's, {case}", row["to_softmax"], 1.05))
    return found


def search(quick: bool) -> list[Figure]:
    """Translation."""
    return [
        Figure(
            f"cached / recomputed, {row['model']}, {row['text']}, {row['attention']}, "
            f"beam {row['beam']}",
            row["ratio"],
            8,
            at_most=False,
        )
        for row in decoding.measure(quick)["rows"]
        if row["beam"] > 1
    ]


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
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few repeats of small cases")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), help="these parts")
    parser.add_argument("--threads", nargs="+", type=int, default=[1], help="of torch")
    arguments = parser.parse_args()
    is_whole = not arguments.quick and arguments.only == list(PARTS)
    about = {
        **clock.when(),
        "machine": machine(),
        "kernels": native.reason_without() or "C++",
    }
    print(f"machine: {about['machine']}; kernels: {about['kernels']}")
    for n_threads in arguments.threads:
        torch.set_num_threads(n_threads)
        found: list[Figure] = []
        for part in arguments.only:
            figures = PARTS[part](arguments.quick)
            show(part, figures, arguments.quick)
            found += figures
        if is_whole:
            keep({**about, "threads": n_threads, "figures": [asdict(one) for one in found]})


def keep(record: dict[str, Any]) -> None:
    """Write the last whole run on so many threads, and a line of history."""
    clock.keep(RESULTS / f"threads_{record['threads']}.json", record)
    with (RESULTS / "history.jsonl").open("a", encoding="utf-8") as history:
        history.write(json.dumps(record, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
