"""All speed goals, as one table of ratios.

    python -m benchmarks [--quick] [--only NAME ...] [--threads N ...] [--json FILE]

Each figure is a ratio of medians of contenders that ran interleaved in one process. The table shows
each value and its goal. Figures that need a missing package (the public entmax package) are left
out. A full run takes about twenty minutes per thread count. It writes
`outputs/benchmarks/threads_<N>.json`, unless `--quick` or `--only`. The parts print more when run
alone: `python -m benchmarks.entmax`, `.length`, `.matmul_share`, `.decoding`, `.own_models`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from benchmarks import command, decoding, entmax, length, matmul_share, own_models
from headwise.ops.cpp import build

RESULTS = Path("outputs/benchmarks")


@dataclass(frozen=True)
class Figure:
    """One ratio and its goal."""

    name: str
    value: float
    goal: float
    at_most: bool = True

    @property
    def is_met(self) -> bool:
        """Whether the goal is reached."""
        return self.value <= self.goal if self.at_most else self.value >= self.goal


def maps(quick: bool) -> list[Figure]:
    """The maps alone."""
    measured = entmax.measure(quick)
    taken = {(tuple(row["shape"]), row["map"]): row["both"] for row in measured["rows"]}
    results = []
    for shape in dict.fromkeys(shape for shape, _ in taken):
        limit = 4.0 if shape[-1] < 1024 else 2.0
        ours = taken[shape, "alpha_entmax"]
        results.append(Figure(f"α-entmax / softmax, f+b, {shape}", ours, limit))
        oracle = taken.get((shape, "entmax_bisect"))  # see `contenders`
        if oracle is None:
            continue
        ratio = ours / oracle
        results.append(Figure(f"α-entmax / entmax_bisect(50), {shape}", ratio, 1 / 60))
        for way, goal in (("torch alone", 1 / 10), ("torch alone, compiled", 1 / 20)):
            ratio = taken[shape, f"alpha_entmax, {way}"] / oracle
            results.append(Figure(f"{way} / entmax_bisect(50), {shape}", ratio, goal))
        for name in ("entmax15", "sparsemax") if shape[-1] >= 64 else ():
            ratio = taken[shape, name] / taken[shape, f"package's {name}"]
            results.append(Figure(f"{name} / the package's, {shape}", ratio, 0.2))
    goals = {"weights": 1e-6, "scores' gradient": 5e-6, "α's gradient": 1e-5}
    for n_keys, worst in measured["errors"].items():
        for name, error in worst.items():
            results.append(Figure(f"error of {name}, {n_keys} keys", error, goals[name]))
    return results


def attention(quick: bool) -> list[Figure]:
    """One layer of long self-attention, forward and backward."""
    n = 512 if quick else 4096
    names = ["softmax", "alpha_entmax"]
    taken = length.seconds_of(names, n, 3 if quick else 7, length.LAYERS)
    ratio = taken["alpha_entmax"] / taken["softmax"]
    results = [Figure(f"α-entmax / softmax (sdpa), a layer, n = {n}", ratio, 6)]
    if quick:
        return results
    short, long = (length.memory_of("alpha_entmax", n, length.LAYERS) for n in (2048, 8192))
    if short and long:
        results.append(Figure("α-entmax, memory at 8k / at 2k", long / short, 4.4))
    return results + patterns()


def patterns() -> list[Figure]:
    """Attention alone with the patterns of long input, causal, 12,288 positions."""
    goals = {"strided": 1 / 8, "fixed 8": 1 / 6, "fixed 32": 1 / 2.5}
    names = [f"{name} {pattern}" for name in length.SCORED for pattern in goals]
    taken = length.seconds_of(["softmax", *names], 12_288, 3, length.ALONE)
    results = []
    for pattern, goal in goals.items():
        softmax, entmax = (taken[f"{name} {pattern}"] for name in length.SCORED)
        results.append(Figure(f"softmax, {pattern} / dense", softmax / taken["softmax"], goal))
        results.append(Figure(f"α-entmax / softmax, {pattern}", entmax / softmax, 1.5))
        memory = [length.memory_of(f"softmax {pattern}", n, length.ALONE) for n in (4096, 16384)]
        if memory[0] and memory[1]:
            results.append(Figure(f"{pattern}, memory at 16k / at 4k", memory[1] / memory[0], 4.4))
    return results


def step(quick: bool) -> list[Figure]:
    """The training step."""
    results = []
    for row in matmul_share.measure(quick):
        case = f"{row['model']}, length {row['length']}, {row['precision']}"
        goal = 1.5 if row["model"] == "base" else 2.0
        results.append(Figure(f"softmax's step / its products, {case}", row["ratio"], goal))
        results.append(Figure(f"α-entmax's step / softmax's, {case}", row["to_softmax"], 1.05))
    return results


def search(quick: bool) -> list[Figure]:
    """Translation, and samples of a decoder-only model."""
    results = [
        Figure(
            f"sampling, cached / recomputed, {row['attention']}", row["ratio"], 50, at_most=False
        )
        for row in decoding.measure_sampling(quick)
    ]
    for row in decoding.measure(quick):
        case = f"{row['model']}, {row['text']}, {row['attention']}, beam {row['beam']}"
        if row["beam"] > 1:
            results.append(Figure(f"cached / recomputed, {case}", row["ratio"], 8, at_most=False))
    return results


def models(quick: bool) -> list[Figure]:
    """A model of Transformers made sparse, and calls of attention."""
    results = []
    for case, taken in own_models.measure(quick).items():
        to_sdpa, to_bisection = (1.05, 0.6) if case.startswith("BERT") else (1.3, 0.1)
        for name, other, ratio in own_models.ratios(taken):
            goal = to_sdpa if other == "sdpa" else to_bisection
            results.append(Figure(f"{name} / {other}, {case}", ratio, goal))
    return results


PARTS: dict[str, Callable[[bool], list[Figure]]] = {
    "maps": maps,
    "attention": attention,
    "step": step,
    "search": search,
    "models": models,
}


def show(part: str, figures: list[Figure], quick: bool) -> None:
    """Print figures; with `quick` they are not compared with the goals."""
    print(f"\n{part}, {torch.get_num_threads()} thread(s)")
    for figure in figures:
        sign = "≤" if figure.at_most else "≥"
        mark = "" if quick or figure.is_met else "   not met"
        print(f"  {figure.name:58} {figure.value:9.3g}  {sign} {figure.goal:.3g}{mark}", flush=True)


def main() -> None:
    args = command.arguments(
        __doc__,
        only={"nargs": "+", "choices": PARTS, "default": list(PARTS), "help": "these parts"},
        threads={"nargs": "+", "type": int, "default": [1], "help": "of torch"},
    )
    kernels = build.unavailable_reason() or "C++"
    print(f"kernels: {kernels}")
    records = []
    for n_threads in args.threads:
        torch.set_num_threads(n_threads)
        part_records = []
        for part in args.only:
            figures = PARTS[part](args.quick)
            show(part, figures, args.quick)
            part_records += [asdict(figure) for figure in figures]
        records.append({"kernels": kernels, "threads": n_threads, "figures": part_records})
        if not args.quick and args.only == list(PARTS):
            command.keep(RESULTS / f"threads_{n_threads}.json", records[-1])
    command.keep(args.json, {"runs": records})


if __name__ == "__main__":
    main()
