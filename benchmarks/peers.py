"""A training step and a beam search, beside those of other toolkits.

    make peers    # an environment with all of them, then this on one thread and on two
    python -m benchmarks.peers [--quick] [--only step|search] [--dropout RATE]
        [--threads N] [--json FILE]

Transformers of one size with random weights: the update from one batch of full rows, as each
toolkit takes it, and its own beam search with five hypotheses, all as long as the sources. What is
printed is the time of each as a multiple of ours, with softmax in float32: medians of interleaved
calls in one process. Toolkits that cannot be imported are named and left out. All run in float32,
and ours also in bf16 where the processor multiplies it: the mixed precision of the others is for
GPUs. Freed memory is kept (`headwise.train.memory`), for all of them.
"""

from __future__ import annotations

import argparse
import logging
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.clock import keep, machine, medians
from benchmarks.toolkits import CPU, PEERS, Headwise, Sizes, Toolkit
from benchmarks.updates import model_config
from headwise.precision import multiplies_bf16
from headwise.train.memory import keep_freed_memory

REPEATS, REPEATS_OF_SHORT, QUICK_REPEATS = 7, 25, 3
BEAM, DROPOUT = 5, 0.1
VOCABULARY = {"tiny": 500, "small": 8000, "base": 32000}
STEPS = [("small", 128, 32), ("base", 64, 32)]  # model, sentences, their length
SEARCHES = [("small", 1, 26), ("small", 32, 26), ("base", 8, 26)]
QUICK = [("tiny", 4, 8)]


def sizes_of(name: str, dropout: float) -> Sizes:
    """Those of `conf/model`."""
    config = model_config(name)
    return Sizes(
        layers=config.encoder_layers,
        width=config.d_model,
        heads=config.n_heads,
        inner=config.d_ff,
        vocabulary=VOCABULARY[name],
        dropout=dropout,
    )


def ours(sizes: Sizes) -> list[Toolkit]:
    """The first is what all are compared with."""
    found: list[Toolkit] = [Headwise(sizes), Headwise(sizes, "alpha_entmax")]
    if multiplies_bf16(CPU):
        found += [Headwise(sizes, name, "bf16") for name in ("softmax", "alpha_entmax")]
    return found


def theirs(sizes: Sizes) -> list[Toolkit]:
    """Those that are installed; the others are named."""
    found = []
    for peer in PEERS:
        try:
            found.append(peer(sizes))
        except ImportError as error:
            print(f"  {peer.name} is left out: {error}")
    return found


def ids(sizes: Sizes, sentences: int, length: int) -> Tensor:
    """Words, none of them special."""
    return torch.randint(4, sizes.vocabulary, (sentences, length))


def time_steps(
    name: str, sentences: int, length: int, repeats: int, dropout: float = DROPOUT
) -> dict[str, Any]:
    """A row of the first table: seconds a step."""
    sizes = sizes_of(name, dropout)
    source, target = ids(sizes, sentences, length), ids(sizes, sentences, length)
    calls: dict[str, Callable[[], object]] = {}
    parameters = {}
    for toolkit in (*ours(sizes), *theirs(sizes)):
        calls[toolkit.name] = partial(toolkit.step, source, target)
        parameters[toolkit.name] = sum(
            p.numel() for p in toolkit.model.parameters() if p.requires_grad
        )
    taken = medians(calls, repeats)
    return {
        "what": "step",
        "model": name,
        "sentences": sentences,
        "length": length,
        "repeats": repeats,
        "seconds": taken,
        "parameters": parameters,
    }


def time_searches(
    name: str, sentences: int, length: int, repeats: int, dropout: float = DROPOUT
) -> dict[str, Any]:
    """A row of the second table: seconds a batch of sentences.

    Raises:
        ValueError: a search ended before its limit, so that its time would say nothing.
    """
    sizes = sizes_of(name, dropout)
    source = ids(sizes, sentences, length)
    calls: dict[str, Callable[[], object]] = {}
    for toolkit in (*ours(sizes), *theirs(sizes)):
        n_words = toolkit.search(source, BEAM, length)
        if n_words != length:
            raise ValueError(f"{toolkit.name} found {n_words} words where {length} were asked for")
        calls[toolkit.name] = partial(toolkit.search, source, BEAM, length)
    return {
        "what": "search",
        "model": name,
        "sentences": sentences,
        "length": length,
        "repeats": repeats,
        "seconds": medians(calls, repeats),
    }


def show(row: dict[str, Any]) -> None:
    """Print a row, one line a toolkit."""
    what = "a training step" if row["what"] == "step" else f"a search, beam {BEAM}"
    print(f"{what}, {row['model']}, {row['sentences']} x {row['length']} words")
    first = next(iter(row["seconds"].values()))
    for name, seconds in row["seconds"].items():
        print(f"  {name:30} {seconds:8.3f} s   {seconds / first:5.2f}", flush=True)


def measure(quick: bool, only: str | None = None, dropout: float = DROPOUT) -> dict[str, Any]:
    """The rows as `{"rows": [...]}`, of both tables or one."""
    keep_freed_memory()
    torch.manual_seed(1)
    rows = []
    tables = {"step": (time_steps, STEPS), "search": (time_searches, SEARCHES)}
    for what in tables if only is None else [only]:
        take, cases = tables[what]
        for case in QUICK if quick else cases:
            repeats = REPEATS if case[1] > 1 else REPEATS_OF_SHORT
            rows.append(take(*case, QUICK_REPEATS if quick else repeats, dropout))
            show(rows[-1])
    threads = torch.get_num_threads()
    return {"benchmark": "peers", "threads": threads, "dropout": dropout, "rows": rows}


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a tiny model, 3 repeats")
    parser.add_argument("--only", choices=("step", "search"), help="one of the two tables")
    parser.add_argument("--dropout", type=float, default=DROPOUT, help="its rate, in training")
    parser.add_argument("--threads", type=int, help="of torch; its default otherwise")
    parser.add_argument("--json", type=Path, metavar="FILE", help="keep the figures here")
    options = parser.parse_args()
    warnings.simplefilter("ignore")  # of the others, about torch
    logging.disable(logging.INFO)
    if options.threads:
        torch.set_num_threads(options.threads)
    print(f"machine: {machine()}, {torch.get_num_threads()} thread(s)")
    found = measure(options.quick, options.only, options.dropout)
    if options.json:
        keep(options.json, {"machine": machine(), **found})


if __name__ == "__main__":
    main()
