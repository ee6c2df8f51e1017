"""From a corpus to memory-mapped ids, made once and kept in the cache.

The text is converted (`headwise.data.conversion`), the tokenizers are learnt from a sample of it,
and both splits are encoded. Memory stays bounded whatever the corpus' size.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.metadata
import json
import logging
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from headwise.config.schema import TokenizerConfig
from headwise.data.cache import make_once
from headwise.data.conversion import ParallelText
from headwise.data.digest import combined_digest
from headwise.data.encoding import POOL_PAIRS, EncodingJob, write_encoded
from headwise.data.store import EncodedSplit, IdStore, id_dtype
from headwise.data.tokenizer import TokenizerPair
from headwise.data.tokenizer_training import (
    check_tokenizer_config,
    given_tokenizers,
    train_tokenizer_pair,
)
from headwise.data.workers import run_apart
from headwise.errors import DataError

if TYPE_CHECKING:
    from headwise.data.corpus import Corpus

__all__ = ["EncodedSplit", "IdStore", "PreparedCorpus", "prepare_corpus"]

FORMAT = 2  # raise it when the files, or what is drawn for them, change

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
    check_tokenizer_config(config)
    given = given_tokenizers(config)
    fingerprint = _fingerprint(corpus, config, given, seed)
    folder = corpus.cache_dir / "encoded" / f"{corpus.config.name}-{fingerprint[:16]}"
    make = functools.partial(_prepare, corpus, config, given, n_workers, progress, seed)
    report = make_once(folder, make)
    for split in corpus.config.test:  # one that is broken is found now, not after the training
        corpus.text(split, progress)
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
    del options["dropout"]  # matters only when an epoch is drawn
    parts = {
        "format": FORMAT,
        "sentencepiece": importlib.metadata.version("sentencepiece"),
        "train": corpus.fingerprint(),
        "valid": corpus.identity(data.valid),
        "tokenizer": options,
        "seed": seed,
    }
    return combined_digest([json.dumps(parts, sort_keys=True)])


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
    train_text = corpus.train_text(progress)
    valid_text = corpus.text(corpus.config.valid, progress)
    converted = time.perf_counter()
    tokenizers = given or _learned(train_text, config, seed)
    tokenizers.save(folder)
    dtype = _dtype(tokenizers)
    learnt = time.perf_counter()
    log.info("encoding %s pairs", f"{len(train_text):,}")
    job = EncodingJob.of(train_text.paths, tokenizers, config.max_sentence_pieces)
    train = write_encoded(job, len(train_text), folder / "train", dtype, n_workers, progress)
    if not train["pairs"]:
        raise DataError(
            "every training pair has a side of more pieces than "
            f"tokenizer.max_sentence_pieces={config.max_sentence_pieces}; set it higher"
        )
    job = EncodingJob.of(valid_text.paths, tokenizers, None)
    valid = write_encoded(job, len(valid_text), folder / "valid", dtype, n_workers, progress)
    encoded = time.perf_counter()
    return {
        "cleaning": train_text.report["cleaning"],
        "train": train,
        "valid": valid,
        "source_vocab_size": tokenizers.source.vocab_size,
        "target_vocab_size": tokenizers.target.vocab_size,
        "read_seconds": round(converted - started, 3),
        "tokenizer_seconds": round(learnt - converted, 3),
        "encode_seconds": round(encoded - learnt, 3),
    }


def _learned(text: ParallelText, config: TokenizerConfig, seed: int) -> TokenizerPair:
    log.info("learning the %s tokenizer", config.kind)
    learn = functools.partial(train_tokenizer_pair, text.paths, config, seed)
    if len(text) < POOL_PAIRS:  # a process of its own costs a second
        return learn()
    return run_apart("learning the tokenizer", learn)
