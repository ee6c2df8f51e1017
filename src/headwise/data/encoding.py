"""Encode a corpus in shards, in this process or in several; the result is the same.

Workers read the text from its files by themselves and import neither torch nor a config, so that
they start quickly.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import sentencepiece

from headwise.data.conversion import progress_bar
from headwise.data.store import FlatWriter, TextStore, beside, id_dtype
from headwise.data.tokenizer import UNK, Tokenizer, TokenizerPair
from headwise.data.workers import SPAWN, follow_parent, n_cores
from headwise.errors import HeadwiseError

Ints = npt.NDArray[np.integer[Any]]

SHARD_PAIRS = 2000  # changes what BPE-dropout draws: a new value needs a new cache format
POOL_PAIRS = 50_000  # below this, starting processes costs more than they save
MOST_WORDS = 100_000  # whose ids an encoder remembers; about 20 MB
WORD_START = "\u2581"  # SentencePiece's mark for a space

FlatRows = tuple[Ints, npt.NDArray[np.int64]]  # values of all rows, and their number in each


@dataclass(frozen=True)
class EncodingJob:
    """What a worker must know.

    `rows` names a .npy file with the rows of the text to take; None takes all of them.
    With `dropout` above 0, shard i is sampled from a generator seeded by (seed, epoch, i).
    """

    text: tuple[Path, Path]  # of the two sides, as `conversion` writes them
    source_model: bytes
    target_model: bytes | None  # None: the source's
    max_pieces: int | None = None  # longer pairs are left out; under dropout, not sampled
    rows: Path | None = None
    shard_pairs: int = SHARD_PAIRS
    dropout: float = 0.0
    seed: int = 0
    epoch: int = 0

    @classmethod
    def of(
        cls, text: tuple[Path, Path], tokenizers: TokenizerPair, max_pieces: int | None
    ) -> EncodingJob:
        """Encode all of `text` without dropout."""
        target = None if tokenizers.joint else tokenizers.target.model_bytes
        model = tokenizers.source.model_bytes
        return cls(text, model, target, max_pieces, shard_pairs=SHARD_PAIRS)


@dataclass(frozen=True)
class EncodedShard:
    """The ids of one shard, flat, with the number of ids a row; and which rows were kept."""

    ids: tuple[Ints, Ints]
    lengths: tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]
    kept: npt.NDArray[np.int64]


def encode_corpus(job: EncodingJob, n_pairs: int, n_workers: int | None) -> Iterator[EncodedShard]:
    """The shards in order; at most a few of them are in memory at any time.

    `n_pairs` is the number of rows that the job takes. `n_workers` None means one process a
    core; a small corpus is encoded in this process whatever is asked.
    """
    n_shards = -(-n_pairs // job.shard_pairs)
    n_workers = min(n_workers or n_cores(), n_shards)
    if n_workers <= 1 or n_pairs < POOL_PAIRS:
        encoder = ShardEncoder(job)
        yield from map(encoder.encode, range(n_shards))
        return
    pool = ProcessPoolExecutor(n_workers, SPAWN, _start_worker, (job,))
    # A window of our own: Executor.map would queue every result, however slow the reader.
    shards = iter(range(n_shards))
    window: deque[Future[EncodedShard]] = deque()
    try:
        for shard in islice(shards, 4 * n_workers):
            window.append(pool.submit(_encode_shard, shard))
        while window:
            result = window.popleft().result()
            for shard in islice(shards, 1):
                window.append(pool.submit(_encode_shard, shard))
            yield result
    except BrokenProcessPool as error:
        raise HeadwiseError(
            f"one of {n_workers} encoding processes was ended from outside, perhaps for want of "
            "memory; try again with a smaller trainer.n_workers"
        ) from error
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def write_encoded(
    job: EncodingJob,
    n_pairs: int,
    path: Path,
    dtype: npt.DTypeLike,
    n_workers: int | None,
    progress: bool,
) -> dict[str, Any]:
    """Write the ids of `PATH.source` and `PATH.target`, and the rows kept as `PATH.rows.npy`.

    Returns counts: pairs kept and dropped, pieces, their mean a sentence, the share of unk.
    """
    n_ids, n_unknown, kept = [0, 0], [0, 0], []
    with (
        progress_bar(f"encoding {path.name}", progress, n_pairs) as bar,
        FlatWriter(beside(path, ".source")) as source,
        FlatWriter(beside(path, ".target")) as target,
    ):
        for shard in encode_corpus(job, n_pairs, n_workers):
            for side, writer in enumerate((source, target)):
                writer.append(shard.ids[side].astype(dtype), shard.lengths[side])
                n_ids[side] += len(shard.ids[side])
                n_unknown[side] += int((shard.ids[side] == UNK).sum())
            kept.append(shard.kept)
            bar.update(job.shard_pairs)
    np.save(beside(path, ".rows.npy"), np.concatenate(kept))
    counts: dict[str, Any] = {"pairs": source.n_rows, "dropped_too_long": n_pairs - source.n_rows}
    for side, name in enumerate(("source", "target")):
        counts[f"{name}_pieces"] = n_ids[side]
        counts[f"{name}_mean_pieces"] = round(n_ids[side] / max(source.n_rows, 1), 3)
        counts[f"{name}_unknown_share"] = n_unknown[side] / max(n_ids[side], 1)
    return counts


class ShardEncoder:
    """Encodes numbered shards of one job."""

    def __init__(self, job: EncodingJob) -> None:
        self._job = job
        self._texts = [TextStore(path) for path in job.text]
        source = Tokenizer(job.source_model)
        target = source if job.target_model is None else Tokenizer(job.target_model)
        self._tokenizers = [source, target]
        shared = WordEncoder(source)
        self._encoders = [shared, shared if target is source else WordEncoder(target)]
        self._rows = None if job.rows is None else np.load(job.rows, mmap_mode="r")

    def encode(self, shard: int) -> EncodedShard:
        """Shard number `shard`, a function of the job and that number alone."""
        first, last = shard * self._job.shard_pairs, (shard + 1) * self._job.shard_pairs
        if self._rows is None:
            rows = np.arange(first, min(last, len(self._texts[0])))
        else:
            rows = np.asarray(self._rows[first:last], np.int64)
        (source, source_lengths), (target, target_lengths) = (
            self._encode_side(side, rows, shard) for side in range(2)
        )
        limit = self._job.max_pieces
        is_kept = np.ones(len(rows), bool)
        if limit is not None:
            is_kept = np.maximum(source_lengths, target_lengths) <= limit
        source, target = (
            flat[np.repeat(is_kept, lengths)]
            for flat, lengths in ((source, source_lengths), (target, target_lengths))
        )
        return EncodedShard(
            ids=(source, target),
            lengths=(source_lengths[is_kept], target_lengths[is_kept]),
            kept=rows[is_kept],
        )

    def _encode_side(self, side: int, rows: npt.NDArray[np.int64], shard: int) -> FlatRows:
        job, tokenizer = self._job, self._tokenizers[side]
        sentences = self._texts[side].read(rows)
        if job.dropout == 0:
            return self._encoders[side].encode(sentences)
        sampled = tokenizer.encode_sampled(
            sentences, job.dropout, [job.seed, job.epoch, shard, side]
        )
        # A sample may be longer than the plain segmentation, for which the pair was kept.
        limit = job.max_pieces
        long = [i for i, ids in enumerate(sampled) if limit is not None and len(ids) > limit]
        for i, ids in zip(long, tokenizer.encode([sentences[i] for i in long]), strict=True):
            sampled[i] = ids
        return _flat(sampled, id_dtype(tokenizer.vocab_size))


class WordEncoder:
    """Encodes sentences, each word but once where a word's pieces depend on nothing else.

    BPE whose pieces never hold a space inside merges nothing across words, so that the ids of a
    sentence are those of its words in a row. Whether a model is of that kind is read off its
    pieces; with any other each sentence is encoded whole.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._dtype = np.dtype(id_dtype(tokenizer.vocab_size))
        self._by_word = merges_within_words(tokenizer)
        self._known: dict[str, bytes] = {}  # word -> its ids

    def encode(self, sentences: list[str]) -> FlatRows:
        """Ids of all sentences, flat, and their number in each."""
        # SentencePiece takes the mark as a space, and trims it at the end of what it is given
        if not self._by_word or any(WORD_START in text for text in sentences):
            return _flat(self._tokenizer.encode(sentences), self._dtype)
        rows = [text.split() for text in sentences]
        new = list(set().union(*rows).difference(self._known))
        flat, lengths = _flat(self._tokenizer.encode(new), self._dtype)
        ids, ends = flat.tobytes(), (np.cumsum(lengths) * self._dtype.itemsize).tolist()
        spans = zip(new, [0, *ends], ends, strict=False)
        self._known.update((word, ids[start:end]) for word, start, end in spans)
        parts = [b"".join(map(self._known.__getitem__, row)) for row in rows]
        n_bytes = np.fromiter(map(len, parts), np.int64, len(parts))
        if len(self._known) > MOST_WORDS:
            self._known.clear()
        return np.frombuffer(b"".join(parts), self._dtype), n_bytes // self._dtype.itemsize


def merges_within_words(tokenizer: Tokenizer) -> bool:
    """Whether a tokenizer is BPE without a piece that goes on beyond the start of a word."""
    if tokenizer.is_byte:
        return False
    processor = sentencepiece.SentencePieceProcessor(model_proto=tokenizer.model_bytes)
    learnt = [
        piece
        for piece in range(tokenizer.vocab_size)
        if not (processor.is_control(piece) or processor.is_unknown(piece))
        and not processor.is_byte(piece)
    ]
    # scores of BPE pieces are minus the order in which they were learnt, others log probabilities
    is_bpe = all(processor.get_score(piece) == -rank for rank, piece in enumerate(learnt))
    spellings = [processor.id_to_piece(piece) for piece in learnt]
    # without a piece of its own the mark is unknown, and unknown pieces in a row become one
    is_apart = WORD_START in spellings and not any(WORD_START in s[1:] for s in spellings)
    # a model may leave the mark out before the first word of a sentence
    return is_bpe and is_apart and processor.encode("a", out_type=str)[0].startswith(WORD_START)


def _flat(rows: list[list[int]], dtype: npt.DTypeLike) -> FlatRows:
    return (
        np.fromiter(chain.from_iterable(rows), np.dtype(dtype)),
        np.fromiter(map(len, rows), np.int64, len(rows)),
    )


_encoder: ShardEncoder | None = None  # of this worker process


def _start_worker(job: EncodingJob) -> None:
    global _encoder
    follow_parent()
    _encoder = ShardEncoder(job)


def _encode_shard(shard: int) -> EncodedShard:
    assert _encoder is not None
    return _encoder.encode(shard)
