"""A training step and a beam search, compared with those of other toolkits.

    make peers    # an environment with all of them, then this on one thread and on two
    python -m benchmarks.peers [--quick] [--only step|search|sentence] [--dropout RATE]
        [--threads N] [--json FILE]

Transformers of one size with random weights: the update from one batch of full rows, as each
toolkit takes it, and its own beam search with five hypotheses, all as long as the sources; of
CTranslate2 the search alone. What is printed is the time of each as a multiple of ours, with
softmax in float32: medians of interleaved calls in one process. Toolkits that cannot be imported
are named and left out. All run in float32, and ours also in bf16 where the processor multiplies
it: the mixed precision of the others is for GPUs. Freed memory is reused for all of them
(`headwise.train.memory`).
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from benchmarks.clock import medians
from benchmarks.command import arguments, keep
from benchmarks.ctranslate import CTranslate2
from benchmarks.toolkits import (
    CPU,
    Fairseq,
    Headwise,
    JoeyNMT,
    Marian,
    OpenNMT,
    Searcher,
    Toolkit,
)
from benchmarks.updates import model_config
from headwise.config.schema import ModelConfig
from headwise.precision import has_native_bf16
from headwise.train.memory import keep_freed_memory

REPEATS, REPEATS_OF_SHORT, QUICK_REPEATS = 7, 25, 3
BEAM, DROPOUT = 5, 0.1
VOCABULARY = {"tiny": 500, "small": 8000, "base": 32000}
CASES = {  # model, sentences, their length
    "step": [("small", 128, 32), ("base", 64, 32)],
    "search": [("small", 32, 26), ("base", 8, 26)],
    "sentence": [("small", 1, 26), ("base", 1, 26)],  # a search of one at a time
}
QUICK = [("tiny", 4, 8)]
PEERS: tuple[type[Searcher], ...] = (JoeyNMT, OpenNMT, Fairseq, Marian, CTranslate2)


def toolkits(config: ModelConfig, n_words: int) -> Iterator[Searcher]:
    """Ours, the first of which is what all are compared with; others, or why they are not here."""
    for precision in ("fp32", "bf16") if has_native_bf16(CPU) else ("fp32",):
        for attention in ("softmax", "alpha_entmax"):
            yield Headwise(config, n_words, attention, precision)
    for peer in PEERS:
        try:
            yield peer(config, n_words)
        except ImportError as error:
            print(f"  {peer.name} is left out: {error}")


def compare(
    what: str, model: str, sentences: int, length: int, repeats: int, dropout: float = DROPOUT
) -> dict[str, Any]:
    """A row of a table, which is printed: seconds of a "step", or of a search.

    Raises:
        ValueError: a search ended before its limit, so that its time is not comparable.
    """
    config, n_words = model_config(model), VOCABULARY[model]
    config = replace(config, dropout=dropout, activation_dropout=dropout)
    # words, none of them special
    source, target = (torch.randint(4, n_words, (sentences, length)) for _ in range(2))
    calls: dict[str, Callable[[], object]] = {}
    parameters = {}
    for toolkit in toolkits(config, n_words):
        name = toolkit.name
        if isinstance(toolkit, Toolkit):
            parameters[name] = sum(p.numel() for p in toolkit.model.parameters() if p.requires_grad)
        if what == "step":
            if isinstance(toolkit, Toolkit):  # else it cannot train
                calls[name] = partial(toolkit.step, source, target)
            continue
        calls[name] = partial(toolkit.search, source, BEAM, length)
        shortest = toolkit.search(source, BEAM, length)
        if shortest != length:
            raise ValueError(f"{name} returned {shortest} words instead of {length}")
    taken = medians(calls, repeats)
    kind = "a training step" if what == "step" else f"a search, beam {BEAM}"
    print(f"{kind}, {model}, {sentences} x {length} words")
    first = next(iter(taken.values()))
    for name, seconds in taken.items():
        print(f"  {name:30} {seconds:8.3f} s   {seconds / first:5.2f}", flush=True)
    row = {"what": what, "model": model, "sentences": sentences, "length": length}
    return {**row, "repeats": repeats, "seconds": taken, "parameters": parameters}


def measure(quick: bool, tables: Iterable[str] = CASES, dropout: float = DROPOUT) -> list[Any]:
    """The rows of some tables."""
    keep_freed_memory()
    torch.manual_seed(1)
    rows = []
    for what in tables:
        for case in QUICK if quick else CASES[what]:
            repeats = REPEATS if case[1] > 1 else REPEATS_OF_SHORT
            rows.append(compare(what, *case, QUICK_REPEATS if quick else repeats, dropout))
    return rows


def main() -> None:
    args = arguments(
        __doc__,
        only={"choices": CASES, "help": "one of the tables"},
        dropout={"type": float, "default": DROPOUT, "help": "dropout probability, in training"},
    )
    warnings.simplefilter("ignore")  # of the others, about torch
    logging.disable(logging.INFO)
    rows = measure(args.quick, [args.only] if args.only else CASES, args.dropout)
    keep(args.json, {"dropout": args.dropout, "rows": rows})


if __name__ == "__main__":
    main()
