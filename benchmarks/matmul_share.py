"""A training step against its matrix products alone.

    OMP_NUM_THREADS=1 python -m benchmarks.matmul_share [--quick] [--threads N] [--json FILE]

A step is what a run does once an update: forward, loss, backward, optimizer. Its products are those
of every linear map, of the scores and the contexts of every attention, and of the output
projection, with their gradients: same shapes and type, in the same process, and nothing between
them. They run twice: as fast as they can be, from contiguous operands that stay in the cache; and
as a step forms them, weight gradients from transposed factors, and from operands in memory. Only
the output projection, which a step computes in chunks, is whole in both. What is printed are ratios
of medians: the step with softmax to either, and the step with α-entmax, which runs in turn with
all, to that with softmax.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from itertools import cycle, islice
from typing import Any

import torch

from benchmarks.clock import medians
from benchmarks.command import arguments, keep
from benchmarks.updates import CPU, Updates, full_rows, model_config, run_config
from headwise.config.schema import ModelConfig
from headwise.ops.linear import matmul, weight_gradient
from headwise.precision import has_native_bf16
from headwise.train.memory import keep_freed_memory

VOCABULARY = {"tiny": 2000, "small": 8000, "base": 32000}
TOKENS = 4096
SIZES = (("small", "bf16"), ("small", "fp32"), ("base", "bf16"))
CASES = [(*size, length) for size in SIZES for length in (32, 64)]
QUICK = [("tiny", "bf16", 32), ("tiny", "fp32", 32)]
ATTENTIONS = ("softmax", "alpha_entmax")
COLD_BYTES = 1 << 27  # of the operands of one shape: more than a core's share of the cache

# (m, k, n) of a product (m, k) @ (k, n), or (b, m, k, n) of b of them
Product = tuple[int, ...]


def make_updates(name: str, attention: str, length: int, precision: str) -> Updates:
    """Of a batch of full rows."""
    config = run_config(f"model={name}", f"attention={attention}", f"trainer.precision={precision}")
    vocabulary = VOCABULARY[name]
    return Updates(config, vocabulary, [full_rows(TOKENS // length, length, vocabulary)])


def products(config: ModelConfig, vocabulary: int, batch: int, length: int) -> Counter[Product]:
    """How many products of which shape a step has, forward and backward, without dropout's masks.

    Source and target are `batch` rows of `length` tokens each.
    """
    n, width, inner = batch * length, config.d_model, config.d_ff
    n_attentions = config.encoder_layers + 2 * config.decoder_layers
    n_layers = config.encoder_layers + config.decoder_layers
    maps = {(width, width): 4 * n_attentions, (width, vocabulary): 1}  # (in, out): how many
    maps[(width, inner)] = maps[(inner, width)] = n_layers
    counts: Counter[Product] = Counter()
    for (d_in, d_out), count in maps.items():
        counts[(n, d_in, d_out)] += count  # x W
        counts[(n, d_out, d_in)] += count  # gradient in x
        counts[(d_out, n, d_in)] += count  # gradient in W
    heads, narrow = batch * config.n_heads, width // config.n_heads
    counts[(heads, length, narrow, length)] += 2 * n_attentions  # q k, gradient in the weights
    counts[(heads, length, length, narrow)] += 4 * n_attentions  # w v, gradients in q, k, v
    return counts


def bare_products(
    shapes: Counter[Product], dtype: torch.dtype, as_in_step: bool = False
) -> Callable[[], None]:
    """Return a call that forms the products of a step, one after the other.

    Each shape has operands of its own, with `as_in_step` so many that they are not in the cache.
    """
    calls: list[Callable[[], object]] = []
    for shape, count in shapes.items():
        *batch, m, k, n = shape
        n_bytes = math.prod(batch) * (m + n) * k * dtype.itemsize
        n_forms = min(count, COLD_BYTES // n_bytes + 1) if as_in_step else 1
        forms = [_product(shape, dtype, as_in_step) for _ in range(n_forms)]
        calls += islice(cycle(forms), count)

    def form_all() -> None:
        for call in calls:
            call()

    return form_all


def _product(shape: Product, dtype: torch.dtype, as_in_step: bool) -> Callable[[], object]:
    """Return a call that forms one product, as a step does: by `headwise.ops.linear`."""
    *batch, m, k, n = shape
    right = torch.randn(*batch, k, n).to(dtype)
    if as_in_step and k == TOKENS:
        return partial(weight_gradient, torch.randn(k, m).to(dtype), right)
    left = torch.randn(*batch, m, k).to(dtype)
    return partial(torch.bmm, left, right) if batch else partial(matmul, left, right.t())


def compare(name: str, precision: str, length: int, repeats: int) -> dict[str, Any]:
    """One row of the table: medians of a step by each attention, and of the products."""
    calls: dict[str, Callable[[], object]] = {
        attention: make_updates(name, attention, length, precision) for attention in ATTENTIONS
    }
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    shapes = products(model_config(name), VOCABULARY[name], TOKENS // length, length)
    calls["products"] = bare_products(shapes, dtype)
    calls["products of a step"] = bare_products(shapes, dtype, as_in_step=True)
    for call in calls.values():
        call()  # page faults of the first updates; `medians` warms up once more
    taken = medians(calls, repeats)
    row = {"model": name, "length": length, "precision": precision, "repeats": repeats}
    row |= {"seconds": taken, "ratio": taken["softmax"] / taken["products"]}
    row["to_formed"] = taken["softmax"] / taken["products of a step"]
    return {**row, "to_softmax": taken["alpha_entmax"] / taken["softmax"]}


def measure(quick: bool) -> Iterator[dict[str, Any]]:
    """Yield the rows of the table; with `quick` small ones of three repeats."""
    keep_freed_memory()
    for name, precision, length in QUICK if quick else CASES:
        if precision == "fp32" or has_native_bf16(CPU):
            yield compare(name, precision, length, 3 if quick else 7)


def main() -> None:
    args = arguments(__doc__)
    rows = []
    for row in measure(args.quick):
        rows.append(row)
        print(
            f"  {row['model']:<6} length {row['length']:<4} {row['precision']}   step / products "
            f"{row['ratio']:5.2f}, as the step forms them {row['to_formed']:5.2f}   "
            f"α-entmax / softmax {row['to_softmax']:5.3f}",
            flush=True,
        )
    keep(args.json, {"rows": rows})


if __name__ == "__main__":
    main()
