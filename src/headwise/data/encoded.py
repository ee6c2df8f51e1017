"""From a corpus to memory-mapped ids, made once and kept in the cache.

The cleaned training text is first spooled to disk: cleaning is the slow part of reading, the
tokenizers need a sample of known size, and workers fetch their shards from the files. Then the
tokenizers are learnt and both splits encoded. Memory stays bounded whatever the corpus' size.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import importlib.metadata
import json
import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from tqdm import tqdm

from headwise.data.cache import make_once
from headwise.data.encoding import POOL_PAIRS, EncodingJob, write_encoded
from headwise.data.store import EncodedSplit, FlatWriter, IdStore, beside, id_dtype
from headwise.data.tokenizer import TokenizerPair
from headwise.data.tokenizer_training import (
    check_tokenizer_config,
    given_tokenizers,
    train_tokenizer_pair,
)
from headwise.data.workers import run_apart
from headwise.errors import DataError
from headwise.schema import TokenizerConfig

if TYPE_CHECKING:
    from headwise.data.corpus import Corpus

__all__ = ["EncodedSplit", "IdStore", "PreparedCorpus", "prepare_corpus"]

FORMAT = 1  # raise it when the files, or what is drawn for them, change
CHUNK_PAIRS = 10_000  # text in memory while it is spooled

log = logging.getLogger(__name__)


@dataclass
class PreparedCorpus:
    """A corpus ready to train on.

    `train` has no pair with a side of more than `max_sentence_pieces` pieces; `valid` is whole.
    `report` counts pairs, pieces and seconds of the preparation, whenever it took place.
    """

    tokenizers: TokenizerPair
    train: EncodedSplit
    valid: EncodedSplit
    corpus: Corpus
    fingerprint: str
    report: dict[str, Any]
    folder: Path  # its place in the cache
    max_sentence_pieces: int


def prepare_corpus(
    corpus: Corpus,
    config: TokenizerConfig,
    cache_dir: Path,
    n_workers: int | None = None,
    progress: bool = True,
    seed: int = 1,
) -> PreparedCorpus:
    """Tokenizers learnt from the training split, or given, and both splits as ids.

    A second call with the same text and options opens the cache and reads no text. `seed` only
    decides which sentences a tokenizer learns from when there are more than
    `max_training_sentences`; give all runs the same, so that they share tokenizer and cache.
    `n_workers` None means one process a core; their number changes nothing but the time.

    Raises:
        ConfigError: the tokenizer's options are wrong or do not fit the text.
        DataError: a split has no pairs.
        HeadwiseError: the cache cannot be written.
    """
    config = TokenizerConfig(  # plain, also where an OmegaConf node was given
        **{field.name: getattr(config, field.name) for field in dataclasses.fields(TokenizerConfig)}
    )
    check_tokenizer_config(config)
    given = given_tokenizers(config)
    fingerprint = _fingerprint(corpus, config, given, seed)
    folder = Path(cache_dir) / "encoded" / f"{corpus.config.name}-{fingerprint[:16]}"
    make = functools.partial(_prepare, corpus, config, given, n_workers, progress, seed)
    report = make_once(folder, make)
    tokenizers = TokenizerPair.load(folder)
    dtype = _dtype(tokenizers)
    return PreparedCorpus(
        tokenizers=tokenizers,
        train=EncodedSplit.open(folder / "train", dtype),
        valid=EncodedSplit.open(folder / "valid", dtype),
        corpus=corpus,
        fingerprint=fingerprint,
        report=report,
        folder=folder,
        max_sentence_pieces=config.max_sentence_pieces,
    )


def _fingerprint(
    corpus: Corpus, config: TokenizerConfig, given: TokenizerPair | None, seed: int
) -> str:
    data = corpus.config
    options = dataclasses.asdict(config)
    del options["folder"]  # what lies there counts, not where
    if given is not None:
        options["given"] = given.fingerprint()
    # Its size matters only when an epoch is drawn; whether there is any decides if text is kept.
    options["dropout"] = config.dropout > 0
    parts = {
        "format": FORMAT,
        "sentencepiece": importlib.metadata.version("sentencepiece"),
        "train": corpus.fingerprint(),
        "max_train_pairs": data.max_train_pairs,
        "valid": corpus.identity(data.valid),
        "languages": [data.source, data.target],
        "tokenizer": options,
        "seed": seed,
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _dtype(tokenizers: TokenizerPair) -> type[np.uint16] | type[np.int32]:
    return id_dtype(max(tokenizers.source.vocab_size, tokenizers.target.vocab_size))


def _prepare(
    corpus: Corpus,
    config: TokenizerConfig,
    given: TokenizerPair | None,
    n_workers: int | None,
    progress: bool,
    seed: int,
    folder: Path,
) -> dict[str, Any]:
    """Fill `folder` and return the report."""
    started = time.perf_counter()
    n_train, n_valid = _spool_splits(corpus, folder, progress)
    spooled = time.perf_counter()
    tokenizers = given or _learned(folder / "train.text", n_train, config, seed)
    tokenizers.save(folder)
    dtype = _dtype(tokenizers)
    learnt = time.perf_counter()
    log.info("encoding %s pairs", f"{n_train:,}")
    job = EncodingJob.of(folder / "train.text", tokenizers, config.max_sentence_pieces)
    train = write_encoded(job, n_train, folder / "train", dtype, n_workers, progress)
    if not train["pairs"]:
        raise DataError(
            "every training pair has a side of more pieces than "
            f"tokenizer.max_sentence_pieces={config.max_sentence_pieces}; set it higher"
        )
    job = EncodingJob.of(folder / "valid.text", tokenizers, None)
    valid = write_encoded(job, n_valid, folder / "valid", dtype, n_workers, progress)
    encoded = time.perf_counter()
    _remove_text(folder, keep_train=config.dropout > 0)
    return {
        "cleaning": corpus.report.as_dict(),
        "train": train,
        "valid": valid,
        "source_vocab_size": tokenizers.source.vocab_size,
        "target_vocab_size": tokenizers.target.vocab_size,
        "read_seconds": round(spooled - started, 3),
        "tokenizer_seconds": round(learnt - spooled, 3),
        "encode_seconds": round(encoded - learnt, 3),
    }


def _learned(text: Path, n_pairs: int, config: TokenizerConfig, seed: int) -> TokenizerPair:
    log.info("learning the %s tokenizer", config.kind)
    learn = functools.partial(train_tokenizer_pair, text, config, seed)
    if n_pairs < POOL_PAIRS:  # a process of its own costs a second
        return learn()
    return run_apart("learning the tokenizer", learn)


def _spool_splits(corpus: Corpus, folder: Path, progress: bool) -> tuple[int, int]:
    """Write the text of train (cleaned) and valid to flat files; the number of pairs of each."""
    names = corpus.config.train, corpus.config.valid
    n_train = _spool(corpus.train_pairs(), folder / "train.text", names[0], progress)
    n_valid = _spool(corpus.pairs(names[1]), folder / "valid.text", names[1], progress)
    for name, n_pairs in zip(names, (n_train, n_valid), strict=True):
        if not n_pairs:
            raise DataError(f"data.name={corpus.config.name}: no pairs in the split {name!r}")
    return n_train, n_valid


def _spool(pairs: Iterator[tuple[str, str]], path: Path, name: str, progress: bool) -> int:
    bar = tqdm(
        desc=f"reading {name}",
        unit=" pairs",
        unit_scale=True,
        disable=None if progress else True,  # None: at a terminal only
        leave=False,
    )
    n_pairs = 0
    with (
        bar,
        FlatWriter(beside(path, ".source")) as source,
        FlatWriter(beside(path, ".target")) as target,
    ):
        while chunk := list(islice(pairs, CHUNK_PAIRS)):
            for writer, side in zip((source, target), zip(*chunk, strict=True), strict=True):
                texts = [text.encode() for text in side]
                writer.append(b"".join(texts), np.fromiter(map(len, texts), np.int64))
            n_pairs += len(chunk)
            bar.update(len(chunk))
    return n_pairs


def _remove_text(folder: Path, keep_train: bool) -> None:
    """Only BPE-dropout reads the text again, and then only the rows that were kept."""
    patterns = ["valid.text.*", "valid.rows.npy"]
    if not keep_train:
        patterns += ["train.text.*", "train.rows.npy"]
    for pattern in patterns:
        for path in folder.glob(pattern):
            path.unlink()
