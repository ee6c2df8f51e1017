"""Time and memory of one attention layer by the number of positions.

    python -m benchmarks.length [--quick]

Self-attention of an encoder without padding, forward and backward, batch 1, 2 heads of 32, at
1024 to 16384 positions on a CPU: dense softmax (torch's fused kernel) and alpha_entmax (ours),
neither of which keeps the weights, both under the patterns with a stride near the square root of
the length, and every whole kernel of `conf/attention/`. A limit on positions (`max_length`) is
set to the length.

Times are medians, variants interleaved in one process; with one thread (OMP_NUM_THREADS=1) that of
the processor, else of the clock. Memory is the most that one forward and backward adds to the
resident set of a separate process (Linux only). Growth is the exponent between two lengths: 2 is
quadratic, 1 linear. What would need more memory than `MAX_GIB`, taken to be four times that of half
the length, is not run.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import torch

from benchmarks.clock import medians
from benchmarks.command import arguments, in_own_process, keep
from benchmarks.resident import added_bytes
from headwise.attention.build import AttentionFactory
from headwise.attention.mask import Mask
from headwise.attention.place import Place
from headwise.attention.protocol import Attention
from headwise.config.folders import group_choices, group_node
from headwise.config.instantiate import target_class

LENGTHS = (1024, 2048, 4096, 8192, 16384)
SCORED = ("softmax", "alpha_entmax")
PATTERNS = ("strided", "fixed")
HEADS, HEAD_DIM = 2, 32
BASELINE = "softmax"
MIB, MAX_GIB = 2**20, 6
Figures = dict[int, float | None]  # by length; None: not available on this system


Row = dict[str, Figures]  # "seconds" and "memory", in bytes, of a variant


def variants() -> list[str]:
    """Names "attention" or "attention pattern"."""
    names = []
    for attention in group_choices("attention"):
        if issubclass(target_class(group_node("attention", attention), "attention"), Attention):
            names.append(attention)
    scored = [(attention, pattern) for attention in SCORED for pattern in ("", *PATTERNS)]
    return [" ".join(pair).strip() for pair in scored] + names


class Layer:
    """One attention at one length."""

    def __init__(self, variant: str, length: int) -> None:
        attention, _, pattern = variant.partition(" ")
        node: dict[str, Any] = group_node("attention", attention)
        if "max_length" in node:
            node["max_length"] = length
        choices = {"attention": node}
        if pattern:
            choices["pattern"] = {**group_node("pattern", pattern), "stride": math.isqrt(length)}
        torch.manual_seed(1)
        self.layer = AttentionFactory(choices)(Place("encoder_self", 1, HEADS, HEAD_DIM))
        self.states = torch.randn(1, length, HEADS * HEAD_DIM, requires_grad=True)

    def __call__(self) -> None:
        """Forward and backward."""
        self.layer(self.states, self.states, self.states, Mask()).sum().backward()
        self.states.grad = None
        self.layer.zero_grad()


def added_memory(variant: str, length: int) -> int | None:
    """Bytes that forward and backward add to the resident set of this process at their highest."""
    Layer(variant, 300)()  # loads code and starts threads
    return added_bytes(Layer(variant, length))


def memory_of(variant: str, length: int) -> int | None:
    """`added_memory` of a fresh process."""
    return in_own_process(added_memory, variant, length)


def seconds_of(names: list[str], length: int, repeats: int) -> dict[str, float]:
    """Median seconds, interleaved."""
    return medians({name: Layer(name, length) for name in names}, repeats)


def growth(figures: Figures) -> str:
    """The exponents between each length and the next."""
    exponents = []
    for short, long in itertools.pairwise(LENGTHS):
        low, high = figures.get(short), figures.get(long)
        exponent = math.log(high / low) / math.log(long / short) if low and high else math.nan
        exponents.append(f"{exponent:5.2f}")
    return " ".join(exponents)


def measure(names: list[str], length: int, repeats: int, rows: dict[str, Row]) -> None:
    """Measure these variants at one length, add the results to `rows`, and print them."""
    for name in names:
        rows[name]["memory"][length] = memory_of(name, length)
    for name, median in seconds_of(names, length, repeats).items():
        rows[name]["seconds"][length] = median
    units = {"seconds": (1e-3, "ms"), "memory": (MIB, "MiB")}
    for name in names:
        line = f"  {name:<22}"
        for what, (size, unit) in units.items():
            value, base = (rows[n][what][length] for n in (name, BASELINE))
            if value and base:
                line += f" {value / size:9.1f} {unit} {value / base:6.2f} x {BASELINE}"
        print(line, flush=True)


def main() -> None:
    args = arguments(__doc__)
    repeats = 3 if args.quick else 7
    print(f"one layer, forward and backward, {HEADS} heads of {HEAD_DIM}; medians of {repeats}")
    names = variants()
    rows: dict[str, Row] = {name: {"seconds": {}, "memory": {}} for name in names}
    for length in LENGTHS:
        print(f"{length} positions, stride {math.isqrt(length)}", flush=True)
        for name in list(names):
            if 4 * (rows[name]["memory"].get(length // 2) or 0) > MAX_GIB * 2**30:
                print(f"  {name}: not run from here on, for more than {MAX_GIB} GiB")
                names.remove(name)
        measure(names, length, repeats, rows)
    print("growth exponents from each length to the next: time; memory")
    for name, row in rows.items():
        print(f"  {name:<22} {growth(row['seconds'])};  {growth(row['memory'])}")
    keep(args.json, {"variants": rows})


if __name__ == "__main__":
    main()
