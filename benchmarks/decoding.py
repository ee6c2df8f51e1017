"""Sentences a second of searches with a cache, and with the prefix computed anew at each step.

    python -m benchmarks.decoding [--quick]

Models with random weights and 8,000 pieces; sources and numbers of steps are drawn like Multi30k's
(14 pieces) and newstest's (27). Every hypothesis ends at its limit, as random weights know no end.
What is timed is one batch of a translation of a thousand sentences with `decode.max_tokens` at its
default, the one with the median sentence, or as many sentences of it as a case names. Weights are
laid out as there (`headwise.kernels.linear.packed`), for every way. Both ways, and the first again
with `decode.precision=bf16` where the processor multiplies that, take turns in one process; what is
printed are medians of their ratios, and of sentences a second. With one thread (OMP_NUM_THREADS=1)
the time is that of the processor, which other load on the machine lengthens less; else it is that
of the clock.
"""

from __future__ import annotations

import argparse
import random
import statistics
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.clock import machine, seconds
from benchmarks.updates import model_config
from headwise.attention.build import AttentionFactory
from headwise.config.folders import group_node
from headwise.config.schema import DecodeConfig, ModelConfig
from headwise.decode.batches import length_batches
from headwise.decode.beam import beam_search
from headwise.decode.greedy import greedy_search
from headwise.kernels.linear import packed
from headwise.model.transformer import Transformer
from headwise.precision import autocast, multiplies_bf16
from headwise.train.memory import keep_freed_memory

SMALL, BASE = model_config("small"), model_config("base")
TINY = ModelConfig("tiny", 2, 2, 64, 2, 128)
VOCABULARY, BEAM, REPEATS = 8000, 5, 7
TEST_SET = 1000  # sentences
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Text:
    """Numbers of pieces of the sources, and of the steps of their searches, as drawn."""

    name: str
    mean: float
    deviation: float

    def draw(self, n_sentences: int) -> tuple[list[list[int]], list[int]]:
        """Source ids and limits; the steps are 0.8 to 1.05 times the source."""
        numbers = random.Random(1)
        sources, limits = [], []
        for _ in range(n_sentences):
            shape = (self.mean / self.deviation) ** 2
            n_pieces = max(3, round(numbers.gammavariate(shape, self.mean / shape)))
            sources.append([numbers.randrange(4, VOCABULARY) for _ in range(n_pieces)] + [3])
            limits.append(max(2, round(n_pieces * numbers.uniform(0.8, 1.05))))
        return sources, limits


TEXTS = (Text("multi30k", 15.0, 5.0), Text("newstest", 29.0, 14.0))


def build(config: ModelConfig, attention: str) -> Transformer:
    """A model whose random weights are sharp enough for hypotheses to differ."""
    factory = AttentionFactory({"attention": group_node("attention", attention)})
    model = Transformer(config, VOCABULARY, VOCABULARY, True, factory, seed=1)
    with torch.no_grad():
        for parameter in model.decoder.parameters():
            if parameter.dim() > 1:
                parameter.mul_(2.0)
    return model.eval()


def search(
    model: Transformer,
    sources: list[list[int]],
    limits: list[int],
    beam: int,
    cached: bool,
    precision: str = "fp32",
) -> float:
    """Seconds."""

    def run() -> None:
        with autocast(CPU, precision), packed(model):
            if beam == 1:
                greedy_search(model, sources, limits, CPU, cached=cached)
            else:
                beam_search(model, sources, limits, CPU, beam, cached=cached)

    return seconds(run)


def median_batch(text: Text, beam: int, most: int) -> tuple[list[list[int]], list[int]]:
    """Sources and limits of the batch that holds the sentence of the median length."""
    sources, limits = text.draw(TEST_SET)
    lengths = [len(ids) for ids in sources]
    n_left = TEST_SET // 2
    for batch in length_batches(lengths, DecodeConfig().max_tokens // beam):
        n_left -= len(batch)
        if n_left < 0:
            break
    batch = batch[:most]
    return [sources[i] for i in batch], [limits[i] for i in batch]


def compare(
    config: ModelConfig, attention: str, text: Text, beam: int, most: int
) -> dict[str, Any]:
    """A row: both ways on one batch, `most` sentences of it at most."""
    model = build(config, attention)
    sources, limits = median_batch(text, beam, most)
    n = len(sources)
    search(model, sources[:4], limits[:4], beam, cached=True)
    cached, recomputed, half = [], [], []
    for _ in range(REPEATS):
        cached.append(search(model, sources, limits, beam, cached=True))
        recomputed.append(search(model, sources, limits, beam, cached=False))
        if multiplies_bf16(CPU):
            half.append(search(model, sources, limits, beam, cached=True, precision="bf16"))
    ratios = [slow / fast for slow, fast in zip(recomputed, cached, strict=True)]
    row = {
        "model": config.name,
        "attention": attention,
        "text": text.name,
        "beam": beam,
        "sentences": n,
        "mean_steps": statistics.mean(limits),
        "cached_per_second": n / statistics.median(cached),
        "recomputed_per_second": n / statistics.median(recomputed),
        "ratio": statistics.median(ratios),
        "lowest": min(ratios),
        "highest": max(ratios),
    }
    if half:
        gains = [full / low for full, low in zip(cached, half, strict=True)]
        row["fp32_to_bf16"] = statistics.median(gains)
    return row


def measure(quick: bool) -> dict[str, Any]:
    """One row a text, beam and attention; ratios are cached / recomputed sentences a second."""
    if quick:
        cases = [(TINY, "softmax", text, BEAM, 8) for text in TEXTS[:1]]
    else:
        cases = [
            (SMALL, "softmax", TEXTS[0], BEAM, TEST_SET),
            (SMALL, "alpha_entmax", TEXTS[0], BEAM, TEST_SET),
            (SMALL, "softmax", TEXTS[0], 1, 300),
            (SMALL, "alpha_entmax", TEXTS[1], BEAM, TEST_SET),
            (SMALL, "softmax", TEXTS[1], 1, 150),
            (BASE, "alpha_entmax", TEXTS[0], BEAM, 60),
            (BASE, "alpha_entmax", TEXTS[1], BEAM, 16),
        ]
    keep_freed_memory()  # as the commands that translate do
    rows = []
    for case in cases:
        rows.append(compare(*case))
        show(rows[-1])
    return {"benchmark": "decoding", "threads": torch.get_num_threads(), "rows": rows}


def show(row: dict[str, Any]) -> None:
    """Print a row."""
    print(
        f"  {row['model']} {row['attention']:<12} {row['text']:<9} {row['mean_steps']:4.1f} steps"
        f"  beam {row['beam']}  cached {row['cached_per_second']:7.1f}/s"
        f"  recomputed {row['recomputed_per_second']:6.1f}/s  ratio {row['ratio']:5.2f}"
        f" ({row['lowest']:.2f} to {row['highest']:.2f})"
        + (f"  bf16 {row['fp32_to_bf16']:.2f} times as fast" if "fp32_to_bf16" in row else ""),
        flush=True,
    )


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a tiny model and 8 sentences")
    options = parser.parse_args()
    print(f"machine: {machine()}, {torch.get_num_threads()} thread(s); medians of {REPEATS}")
    measure(options.quick)


if __name__ == "__main__":
    main()
