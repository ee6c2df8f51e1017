"""A corpus as memory-mapped ids, cached.

The text is converted (`ParallelCorpus`), the tokenizers are trained on a sample of it, and both
splits are encoded; under BPE-dropout again for each epoch. Memory is bounded for any corpus.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import logging
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headwise.config.schema import TokenizerConfig
from headwise.data.cache import make_once
from headwise.data.tokenizer import TokenizerPair, load_tokenizers
from headwise.data.tokenizer_training import train_tokenizer_pair
from headwise.data.workers import run_in_process
from headwise.errors import DataError
from headwise.tasks.data import Prepared, Sides, prepare
from headwise.tasks.translation.corpus import EncodedSplit
from headwise.tasks.translation.encoding import POOL_PAIRS, EncodingJob, write_encoded

if TYPE_CHECKING:
    from headwise.tasks.translation.corpus import ParallelCorpus

FORMAT = 3  # increase when the files or the samples for them change
SAMPLE_SEED = 1  # of the sample that trains a tokenizer; the same for all runs

log = logging.getLogger(__name__)


@dataclass
class EncodedTexts:
    """Splits of sentence pairs, encoded in memory."""

    tokenizers: TokenizerPair
    sets: Mapping[str, Sides]

    def __post_init__(self) -> None:
        self._ids = {name: encoded(self.tokenizers, sides) for name, sides in self.sets.items()}

    def texts(self, split: str) -> Sides:
        """Sources and targets of a split."""
        return self.sets[split]

    def encoded(self, split: str) -> EncodedSplit:
        """The ids of the same pairs."""
        return self._ids[split]


def encoded(tokenizers: TokenizerPair, sides: Sides) -> EncodedSplit:
    """The ids of sentence pairs, in memory."""
    pair = zip((tokenizers.source, tokenizers.target), sides, strict=True)
    return EncodedSplit.from_lists(*(tokenizer.encode(list(side)) for tokenizer, side in pair))


class PreparedCorpus(Prepared["ParallelCorpus"]):
    """A corpus ready to train on; the report counts pairs and tokens.

    `train` has no pair with a side of more than `tokenizer.max_sentence_tokens` tokens; `valid` is
    complete.
    """

    config: TokenizerConfig
    tokenizers: TokenizerPair

    @property
    def sizes(self) -> dict[str, int]:
        """Sizes of the vocabularies."""
        return self.tokenizers.sizes

    @property
    def vocabulary(self) -> str:
        """Hash of the lists of tokens."""
        return self.tokenizers.fingerprint()

    @functools.cached_property
    def train(self) -> EncodedSplit:
        """The cleaned training pairs, memory-mapped."""
        return EncodedSplit.open(self.folder / "train", self.tokenizers.id_dtype)

    @functools.cached_property
    def valid(self) -> EncodedSplit:
        """The validation set, memory-mapped."""
        return EncodedSplit.open(self.folder / "valid", self.tokenizers.id_dtype)

    @functools.cached_property
    def _ids(self) -> dict[str, EncodedSplit]:
        return {self.corpus.config.valid: self.valid}

    def texts(self, split: str) -> Sides:
        return self.corpus.read(split)

    def encoded(self, split: str) -> EncodedSplit:
        """See `EncodedTexts.encoded`; test sets stay in memory."""
        if split not in self._ids:
            self._ids[split] = encoded(self.tokenizers, self.texts(split))
        return self._ids[split]


Pairs = PreparedCorpus | EncodedTexts


def prepare_corpus(
    corpus: ParallelCorpus,
    config: TokenizerConfig,
    n_workers: int | None = None,
    progress: bool = True,
) -> PreparedCorpus:
    """Train or load the tokenizers and encode both splits, or open them in the cache.

    The cache is used if text and options are unchanged. `n_workers` None means one per core;
    the result does not depend on it.

    Raises:
        ConfigError: the options of the tokenizer are wrong or do not fit the text.
        DataError: a split has no pairs.
        OSError: the cache cannot be written.
    """

    def encode(folder: Path, tokenizers: TokenizerPair | None) -> dict[str, Any]:
        assert tokenizers is not None
        train_text = corpus.train_text(progress)
        valid_text = corpus.text(corpus.config.valid, progress)
        log.info("encoding %s pairs", f"{len(train_text):,}")
        job = EncodingJob(train_text.paths, tokenizers, config.max_sentence_tokens)
        train = write_encoded(job, folder / "train", n_workers, progress)
        if not train["pairs"]:
            raise DataError(
                "every training pair has a side of more tokens than "
                f"tokenizer.max_sentence_tokens={config.max_sentence_tokens}; increase it"
            )
        job = EncodingJob(valid_text.paths, tokenizers)
        valid = write_encoded(job, folder / "valid", n_workers, progress)
        return {"cleaning": train_text.report["cleaning"], "train": train, "valid": valid}

    splits = dict(zip(("train", "valid"), corpus.hashes(), strict=True))
    train = functools.partial(_tokenizers, corpus, progress)
    about = {"format": FORMAT, "seed": SAMPLE_SEED}
    data = prepare(PreparedCorpus, corpus, config, splits, train, encode, about, training=splits)
    _warn_of_unknown(data.report["train"], config)
    for split in corpus.test_sets:  # errors of test sets are raised before the training
        corpus.text(split, progress)
    return data


def _warn_of_unknown(counts: dict[str, Any], config: TokenizerConfig) -> None:
    """Warn of unknown tokens in training text, all of whose characters should have tokens."""
    for side in ("source", "target"):
        share = counts[f"{side}_unknown_share"]
        if share and config.character_coverage == 1:
            log.warning(
                "%.2g %% of the tokens of the %s training text are unknown (<unk>): its characters "
                "have no tokens; set tokenizer.byte_fallback=true",
                *(100 * share, side),
            )


def _tokenizers(corpus: ParallelCorpus, progress: bool, config: TokenizerConfig) -> TokenizerPair:
    """The tokenizers that a config names, or those trained on the training text."""
    text = corpus.train_text(progress)
    corpus.text(corpus.config.valid, progress)  # its errors are raised before
    if loaded := load_tokenizers(config):
        return loaded
    log.info("training the %s tokenizer", config.kind)
    train = functools.partial(train_tokenizer_pair, text.paths, config, SAMPLE_SEED)
    if len(text) < POOL_PAIRS:  # starting a process takes a second
        return train()
    return run_in_process("training the tokenizer", train)


class EpochSplits:
    """Encodes the training text again for each epoch; a `split` of `TrainingPairs`.

    The ids of an epoch depend on the text, `dropout`, `seed` and the epoch alone, not on the
    number of workers, so that a resumed run gets the same ids. The rows are those of
    `prepared.train`, in the same order. They are stored in `scratch`, a folder that the ranks of
    a run share, and removed a few epochs later.

    Args:
        prepared: the corpus; its text is converted again if it is not in the cache.
        dropout: probability in (0, 1) of dropping a merge, each time it could be applied.
        seed: of the run.
        scratch: folder for the ids; created if missing.
        n_workers: processes for encoding; None means one per core.
        progress: show a bar while encoding.
    """

    def __init__(
        self,
        prepared: PreparedCorpus,
        dropout: float,
        seed: int,
        scratch: Path,
        n_workers: int | None = None,
        progress: bool = True,
    ) -> None:
        text = prepared.corpus.train_text().paths
        self._job = EncodingJob(
            text,
            prepared.tokenizers,
            prepared.config.max_sentence_tokens,
            rows=prepared.folder / "train.rows.npy",
            dropout=dropout,
            seed=seed,
        )
        self._scratch = Path(scratch)
        self._n_workers = n_workers
        self._progress = progress
        key = f"{prepared.fingerprint} {dropout!r} {seed}"
        self._key = hashlib.sha256(key.encode()).hexdigest()[:16]

    def __call__(self, epoch: int) -> EncodedSplit:
        """The split of `epoch`, counted from 1."""
        folder = self._folder(epoch)
        job = dataclasses.replace(self._job, epoch=epoch)

        def make(partial: Path) -> dict[str, Any]:
            path = partial / f"epoch_{epoch}"
            return write_encoded(job, path, self._n_workers, self._progress)

        from headwise.data.loader import DEPTH  # imports torch

        make_once(folder, make)
        # Other ranks are at most this many batches ahead or behind, and an epoch has at least one
        # batch.
        near = range(epoch - DEPTH - 1, epoch + DEPTH + 2)
        current = {self._folder(number) for number in near}
        for old in set(self._scratch.glob("epoch_*")) - current:
            if old.is_dir() and not old.name.endswith(".partial"):
                shutil.rmtree(old, ignore_errors=True)
        return EncodedSplit.open(folder / f"epoch_{epoch}", job.tokenizers.id_dtype)

    def _folder(self, epoch: int) -> Path:
        return self._scratch / f"epoch_{epoch}-{self._key}"
