"""Encode a corpus in shards, in this process or in several, with the same result.

Workers read the text from its files and import neither torch nor a config, so that they start
quickly.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt

from headwise.data.store import FlatWriter, TextStore, with_ending
from headwise.data.tokenizer import UNK, TokenizerPair
from headwise.data.workers import in_order, n_cores
from headwise.progress import progress_bar

Ints = npt.NDArray[np.integer[Any]]

SHARD_PAIRS = 2000  # affects the samples of BPE-dropout: a new value needs a new cache format
POOL_PAIRS = 50_000  # below this, starting processes takes longer than they save

FlatRows = tuple[Ints, npt.NDArray[np.int64]]  # values of all rows, and the length of each


@dataclass(frozen=True)
class EncodingJob:
    """The arguments of a worker.

    `rows` is the path of a .npy file with the rows of the text to encode; None: all of them.
    With `dropout` above 0, shard i is sampled from a generator seeded by (seed, epoch, i).
    """

    text: tuple[Path, Path]  # of the two sides, in the layout of `conversion`
    tokenizers: TokenizerPair
    max_tokens: float = math.inf  # longer pairs are dropped; under dropout, not sampled
    rows: Path | None = None
    shard_pairs: int = field(default_factory=lambda: SHARD_PAIRS)
    dropout: float = 0.0
    seed: int = 0
    epoch: int = 0

    def row_numbers(self) -> Sequence[int] | npt.NDArray[np.int64]:
        """The rows of the text to encode, in order."""
        if self.rows is None:
            return range(len(TextStore(self.text[0])))
        rows: npt.NDArray[np.int64] = np.load(self.rows, mmap_mode="r")
        return rows


class EncodedShard(NamedTuple):
    """The ids of one shard, source and target, and the rows that were kept."""

    sides: list[FlatRows]
    kept: npt.NDArray[np.int64]


def encode_corpus(job: EncodingJob, n_workers: int | None) -> Iterator[EncodedShard]:
    """Yield the shards in order, with at most a few of them in memory.

    `n_workers` None means one process per core; a small corpus is always encoded in this process.
    """
    n_pairs = len(job.row_numbers())
    n_shards = -(-n_pairs // job.shard_pairs)
    n_workers = 1 if n_pairs < POOL_PAIRS else min(n_workers or n_cores(), n_shards)
    make = functools.partial(_shard_encoder, job)
    yield from (encoded for _, encoded in in_order(make, range(n_shards), n_workers))


def write_encoded(
    job: EncodingJob, path: Path, n_workers: int | None, progress: bool
) -> dict[str, Any]:
    """Write the ids to `PATH.source` and `PATH.target`, and the kept rows to `PATH.rows.npy`.

    Returns counts: pairs kept and dropped, tokens, their mean per sentence, the share of unk.
    """
    n_pairs = len(job.row_numbers())
    n_unknown = [0, 0]
    with (
        progress_bar(f"encoding {path.name}", progress, n_pairs) as bar,
        FlatWriter(with_ending(path, ".source")) as source,
        FlatWriter(with_ending(path, ".target")) as target,
        open(with_ending(path, ".rows.npy"), "wb") as rows,
    ):
        _write_header(rows, n_pairs)
        for shard in encode_corpus(job, n_workers):
            for side, writer in enumerate((source, target)):
                ids, lengths = shard.sides[side]
                writer.append(ids, lengths)
                n_unknown[side] += int((ids == UNK).sum())
            rows.write(shard.kept.tobytes())
            bar.update(job.shard_pairs)
        rows.seek(0)
        _write_header(rows, source.n_rows)
    counts: dict[str, Any] = {"pairs": source.n_rows, "dropped_too_long": n_pairs - source.n_rows}
    for side, name, writer in ((0, "source", source), (1, "target", target)):
        counts[f"{name}_pieces"] = writer.n_values
        counts[f"{name}_mean_pieces"] = round(writer.n_values / max(writer.n_rows, 1), 3)
        counts[f"{name}_unknown_share"] = n_unknown[side] / max(writer.n_values, 1)
    return counts


def _write_header(file: BinaryIO, n_rows: int) -> None:
    """The header of a .npy file of int64; numpy gives it one size for any number of rows."""
    header = {"descr": "<i8", "fortran_order": False, "shape": (n_rows,)}
    np.lib.format.write_array_header_1_0(file, header)


class ShardEncoder:
    """Encodes numbered shards of one job."""

    def __init__(self, job: EncodingJob) -> None:
        self._job = job
        self._texts = [TextStore(path) for path in job.text]
        self._tokenizers = [job.tokenizers.source, job.tokenizers.target]
        self._rows = job.row_numbers()

    def encode(self, shard: int) -> EncodedShard:
        """Shard number `shard`; depends on the job and that number alone."""
        first, last = shard * self._job.shard_pairs, (shard + 1) * self._job.shard_pairs
        rows = np.asarray(self._rows[first:last], np.int64)
        sides = [self._encode_side(side, rows, shard) for side in range(2)]
        is_kept = np.maximum(*(lengths for _, lengths in sides)) <= self._job.max_tokens
        kept = [(ids[np.repeat(is_kept, lengths)], lengths[is_kept]) for ids, lengths in sides]
        return EncodedShard(kept, rows[is_kept])

    def _encode_side(self, side: int, rows: npt.NDArray[np.int64], shard: int) -> FlatRows:
        job, tokenizer = self._job, self._tokenizers[side]
        sentences = self._texts[side].read(rows)
        if job.dropout == 0:
            return _flat(tokenizer.encode(sentences), job.tokenizers.id_dtype)
        sampled = tokenizer.encode_sampled(
            sentences, job.dropout, [job.seed, job.epoch, shard, side]
        )
        # Pairs were selected by length without dropout; that encoding replaces longer samples.
        long = [i for i, ids in enumerate(sampled) if len(ids) > job.max_tokens]
        for i, ids in zip(long, tokenizer.encode([sentences[i] for i in long]), strict=True):
            sampled[i] = ids
        return _flat(sampled, job.tokenizers.id_dtype)


def _flat(rows: list[list[int]], dtype: npt.DTypeLike) -> FlatRows:
    return (
        np.fromiter(chain.from_iterable(rows), np.dtype(dtype)),
        np.fromiter(map(len, rows), np.int64, len(rows)),
    )


def _shard_encoder(job: EncodingJob) -> Callable[[int], EncodedShard]:
    return ShardEncoder(job).encode
