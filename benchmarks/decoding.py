"""Sentences per second of searches with a cache, and with the prefix recomputed at each step.

    python -m benchmarks.decoding [--quick]

Also tokens per second of sampling from a decoder-only model, both ways.

Models have random weights and a vocabulary of 8,000. Sources and numbers of steps are drawn like
Multi30k's (14 tokens) and newstest's (27). Random weights predict no end, so every hypothesis ends
at its limit.
What is timed is one batch of a translation of a thousand sentences with `decode.max_tokens` at its
default, the one with the median sentence, or as many sentences of it as a case names. The
model is prepared as there (`headwise.decode.prepared`); for the prefix recomputed, its weights are
laid out once. Both ways, and the
first again with `decode.precision=bf16` where the processor multiplies that, take turns in one
process; what is printed are sentences a second, of the median time, and the ratio of the two ways.
With one thread the time is that of the processor, which other load on the machine lengthens less;
else it is that of the clock.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial
from itertools import count
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.clock import medians
from benchmarks.command import arguments, keep
from benchmarks.updates import CPU, run_config
from headwise.config.schema import DecodeConfig
from headwise.data.loader import longest_first
from headwise.decode.beam import beam_search
from headwise.decode.prepared import PreparedModel, supports
from headwise.decode.sampling import Context
from headwise.model.build import build_model, build_single
from headwise.model.places import site_alone
from headwise.model.transformer import Transformer
from headwise.ops.linear import packed_weights
from headwise.precision import autocast, has_native_bf16, matmul_dtype
from headwise.train.memory import keep_freed_memory

VOCABULARY, BEAM, REPEATS = 8000, 5, 7
BYTES = 260  # vocabulary of sampling
TEST_SET = 1000  # sentences
TEXTS = {"multi30k": (15.0, 5.0), "newstest": (29.0, 14.0)}  # tokens: mean and deviation
CASES = (  # model, attention, text, beam, most sentences
    ("small", "softmax", "multi30k", BEAM, TEST_SET),
    ("small", "alpha_entmax", "multi30k", BEAM, TEST_SET),
    ("small", "softmax", "multi30k", 1, 300),
    ("small", "alpha_entmax", "newstest", BEAM, TEST_SET),
    ("small", "softmax", "newstest", 1, 150),
    ("base", "alpha_entmax", "multi30k", BEAM, 60),
    ("base", "alpha_entmax", "newstest", BEAM, 16),
)
QUICK = (("tiny", "softmax", "multi30k", BEAM, 8),)


def draw(text: str, n_sentences: int) -> tuple[list[list[int]], list[int]]:
    """Source ids and limits; the steps are 0.8 to 1.05 times the source."""
    mean, deviation = TEXTS[text]
    numbers = random.Random(1)
    sources, limits = [], []
    for _ in range(n_sentences):
        shape = (mean / deviation) ** 2
        n_tokens = max(3, round(numbers.gammavariate(shape, mean / shape)))
        sources.append([numbers.randrange(4, VOCABULARY) for _ in range(n_tokens)] + [3])
        limits.append(max(2, round(n_tokens * numbers.uniform(0.8, 1.05))))
    return sources, limits


def median_batch(text: str, beam: int, most: int) -> tuple[list[list[int]], list[int]]:
    """Sources and limits of the batch that holds the sentence of the median length."""
    sources, limits = draw(text, TEST_SET)
    n_left = TEST_SET // 2
    lengths = np.array(list(map(len, sources)))
    for batch in longest_first(lengths, DecodeConfig().max_tokens // beam):
        n_left -= len(batch)
        if n_left < 0:
            break
    batch = batch[:most]
    return [sources[i] for i in batch], [limits[i] for i in batch]


def build(model: str, attention: str) -> Transformer:
    """A model whose random weights are sharp enough for hypotheses to differ."""
    config = run_config(f"model={model}", f"attention={attention}")
    built = build_model(config, VOCABULARY, VOCABULARY, config.tokenizer.joint)
    with torch.no_grad():
        for parameter in built.decoder.parameters():
            if parameter.dim() > 1:
                parameter.mul_(2.0)
    return built.eval()


def compare(model: str, attention: str, text: str, beam: int, most: int) -> dict[str, Any]:
    """A row: both ways on one batch, `most` sentences of it at most."""
    built = build(model, attention)
    sources, limits = median_batch(text, beam, most)

    def search(cached: bool, precision: str) -> None:
        dtype = matmul_dtype(precision, CPU)
        prepared = PreparedModel(built, dtype) if cached and supports(built, dtype) else None
        searched = prepared or built
        weights = packed_weights(built) if prepared is None else nullcontext()
        with autocast(CPU, precision), weights:
            beam_search(searched, sources, limits, CPU, beam, cached=cached)

    calls = {"cached": partial(search, True, "fp32"), "recomputed": partial(search, False, "fp32")}
    if has_native_bf16(CPU):
        calls["bf16"] = partial(search, True, "bf16")
    taken = medians(calls, REPEATS)
    row = {"model": model, "attention": attention, "text": text, "beam": beam}
    row |= {"sentences": len(sources), "mean_steps": statistics.mean(limits), "seconds": taken}
    return {**row, "ratio": taken["recomputed"] / taken["cached"]}


@torch.no_grad()
def next_logits(context: Context, ids_1N: Tensor, lengths: Iterator[int]) -> None:
    """One step of sampling, after the next of `lengths` tokens."""
    context.logits(ids_1N[:, : next(lengths)])


def sampling(attention: str, n_tokens: int) -> dict[str, Any]:
    """A row: a step of sampling after `n_tokens`, one sample, 6 layers of width 256, float64."""
    config = run_config("model=small", "model.layers=6", f"attention={attention}")
    site = site_alone(config.model, "decoder_self", "tokens")
    model = build_single(config, BYTES, site).double().eval()
    ids_1N = torch.randint(4, BYTES, (1, n_tokens + REPEATS))
    calls = {
        way: partial(
            next_logits, Context(model, ids_1N.shape[1], is_cached), ids_1N, count(n_tokens)
        )
        for way, is_cached in (("cached", True), ("recomputed", False))
    }
    taken = medians(calls, REPEATS)
    row = {"attention": attention, "context": n_tokens, "seconds": taken}
    return {**row, "ratio": taken["recomputed"] / taken["cached"]}


def measure(quick: bool) -> list[dict[str, Any]]:
    """One row a text, beam and attention; ratios are cached / recomputed sentences a second."""
    keep_freed_memory()  # as the commands that translate do
    rows = []
    for case in QUICK if quick else CASES:
        row = compare(*case)
        rows.append(row)
        speeds = (f"{way} {row['sentences'] / s:7.1f}/s" for way, s in row["seconds"].items())
        print(
            f"  {row['model']} {row['attention']:<12} {row['text']:<9} {row['mean_steps']:4.1f} "
            f"steps  beam {row['beam']}  {'  '.join(speeds)}  ratio {row['ratio']:5.2f}",
            flush=True,
        )
    return rows


def measure_sampling(quick: bool) -> list[dict[str, Any]]:
    """One row per attention; ratios are cached / recomputed tokens per second."""
    rows = [sampling(name, 32 if quick else 1024) for name in ("softmax", "alpha_entmax")]
    for row in rows:
        speeds = (f"{way} {1 / s:7.2f}/s" for way, s in row["seconds"].items())
        about = f"{row['attention']:<12} {row['context']} tokens"
        print(f"  sampling {about}  {'  '.join(speeds)}  ratio {row['ratio']:5.2f}", flush=True)
    return rows


def main() -> None:
    args = arguments(__doc__)
    keep(args.json, {"rows": measure(args.quick), "sampling": measure_sampling(args.quick)})


if __name__ == "__main__":
    main()
