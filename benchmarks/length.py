"""Time and memory of one attention layer by the number of positions.

    python -m benchmarks.length [--quick] [--alone]

Self-attention of an encoder without padding, forward and backward, batch 1, 2 heads of 32, at
1024 to 16384 positions on a CPU: dense softmax (torch's fused kernel) and alpha_entmax (ours),
neither of which keeps the weights, both under the patterns with a stride near the square root of
the length, and every whole kernel of `conf/attention/`. A limit on positions (`max_length`) is
set to the length.

With `--alone`: attention without projections, causal, 8 heads of 64, at the stride and the summary
cells of Child et al. (2019) for text, at 3072 to 16384 positions, and a window of 64.

Times are medians, variants interleaved in one process; with one thread (OMP_NUM_THREADS=1) that of
the processor, else of the clock. Memory is the most that one forward and backward adds to the
resident set of a separate process (Linux only). Growth is the exponent between two lengths: 2 is
quadratic, 1 linear. What would need more memory than `MAX_GIB`, taken to be four times that of half
the length, is not run.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from benchmarks.clock import added_bytes, medians
from benchmarks.command import arguments, in_own_process, keep
from headwise.attention.attention import Attention
from headwise.attention.build import AttentionFactory
from headwise.attention.mask import Mask
from headwise.attention.place import Place
from headwise.config.instantiate import target_class
from headwise.config.register import group_choices, group_node

SCORED = ("softmax", "alpha_entmax")
BASELINE = "softmax"
MIB, MAX_GIB = 2**20, 6
Figures = dict[int, float | None]  # by length; None: not available on this system


@dataclass(frozen=True)
class Setting:
    """Which layers are measured, at which lengths."""

    lengths: tuple[int, ...]
    patterns: tuple[str, ...]  # with a number (`NUMBERS`), if it is not that of the yaml
    heads: int
    head_dim: int
    stride: int | None  # None: near the square root of the length
    is_alone: bool


LAYERS = Setting((1024, 2048, 4096, 8192, 16384), ("strided", "fixed"), 2, 32, None, False)
ON_LONG_INPUT = ("strided", "fixed 8", "fixed 32", "window 64")
ALONE = Setting((3072, 4096, 12288, 16384), ON_LONG_INPUT, 8, 64, 128, True)
NUMBERS = {"fixed": "summary_cells", "window": "radius"}
Row = dict[str, Figures]  # "seconds" and "memory", in bytes, of a variant


def variants(setting: Setting) -> list[str]:
    """Names "attention" or "attention pattern"."""
    names = []
    for attention in () if setting.is_alone else group_choices("attention"):
        if issubclass(target_class(group_node("attention", attention), "attention"), Attention):
            names.append(attention)
    scored = [(attention, pattern) for attention in SCORED for pattern in ("", *setting.patterns)]
    return [" ".join(pair).strip() for pair in scored] + names


class Layer:
    """One attention at one length."""

    def __init__(self, variant: str, length: int, setting: Setting) -> None:
        attention, pattern, number = (variant + "  ").split(" ")[:3]
        node: dict[str, Any] = group_node("attention", attention)
        if "max_length" in node:
            node["max_length"] = length
        choices = {"attention": node}
        if pattern:
            choices["pattern"] = group_node("pattern", pattern)
            if "stride" in choices["pattern"]:
                choices["pattern"]["stride"] = setting.stride or math.isqrt(length)
            if number:
                choices["pattern"][NUMBERS[pattern]] = int(number)
        torch.manual_seed(1)
        site = "decoder_self" if setting.is_alone else "encoder_self"
        place = Place(site, 1, setting.heads, setting.head_dim)
        self.layer = AttentionFactory(choices)(place)
        if setting.is_alone:
            for name in ("query", "key", "value", "output"):
                setattr(self.layer, name, nn.Identity())
        self.mask = Mask(causal=setting.is_alone)
        shape = (1, length, setting.heads * setting.head_dim)
        drawn = [torch.randn(shape, requires_grad=True) for _ in range(3)]
        self.states = drawn if setting.is_alone else drawn[:1] * 3

    def __call__(self) -> None:
        """Forward and backward."""
        self.layer(*self.states, self.mask).sum().backward()
        for states in self.states:
            states.grad = None
        self.layer.zero_grad()


def added_memory(variant: str, length: int, setting: Setting) -> int | None:
    """Bytes that forward and backward add to the resident set of this process at their highest."""
    Layer(variant, 300, setting)()  # loads code and starts threads
    return added_bytes(Layer(variant, length, setting))


def memory_of(variant: str, length: int, setting: Setting) -> int | None:
    """`added_memory` of a fresh process."""
    return in_own_process(added_memory, variant, length, setting)


def seconds_of(names: list[str], length: int, repeats: int, setting: Setting) -> dict[str, float]:
    """Median seconds, interleaved."""
    return medians({name: Layer(name, length, setting) for name in names}, repeats)


def growth(figures: Figures) -> str:
    """The exponents between each length and the next."""
    exponents = []
    for short, long in itertools.pairwise(figures):
        low, high = figures.get(short), figures.get(long)
        exponent = math.log(high / low) / math.log(long / short) if low and high else math.nan
        exponents.append(f"{exponent:5.2f}")
    return " ".join(exponents)


def measure(
    names: list[str], length: int, setting: Setting, repeats: int, rows: dict[str, Row]
) -> None:
    """Measure these variants at one length, add the results to `rows`, and print them."""
    for name in names:
        rows[name]["memory"][length] = memory_of(name, length, setting)
    for name, median in seconds_of(names, length, repeats, setting).items():
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
    alone = {"action": "store_true", "help": "attention without projections, long input"}
    args = arguments(__doc__, alone=alone)
    setting = ALONE if args.alone else LAYERS
    repeats, lengths = (3, setting.lengths[:2]) if args.quick else (7, setting.lengths)
    sizes = f"{setting.heads} heads of {setting.head_dim}"
    print(f"one layer, forward and backward, {sizes}; medians of {repeats}")
    names = variants(setting)
    rows: dict[str, Row] = {name: {"seconds": {}, "memory": {}} for name in names}
    for length in lengths:
        print(f"{length} positions, stride {setting.stride or math.isqrt(length)}", flush=True)
        for name in list(names):
            if 4 * (rows[name]["memory"].get(length // 2) or 0) > MAX_GIB * 2**30:
                print(f"  {name}: not run from here on, for more than {MAX_GIB} GiB")
                names.remove(name)
        measure(names, length, setting, repeats, rows)
    print("growth exponents from each length to the next: time; memory")
    for name, row in rows.items():
        print(f"  {name:<22} {growth(row['seconds'])};  {growth(row['memory'])}")
    keep(args.json, {"variants": rows})


if __name__ == "__main__":
    main()
