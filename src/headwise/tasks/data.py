"""What the data of a task offer, before and after they are prepared."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from headwise.config.instantiate import target_class
from headwise.config.schema import Config, TokenizerConfig
from headwise.data.cache import ENCODED, make_once
from headwise.data.file_corpus import Corpus
from headwise.data.sources.digest import combined_digest
from headwise.data.tokenizer import (
    COLUMN,
    TokenizerPair,
    check_tokenizer_config,
    tokenizer_identity,
)
from headwise.errors import ConfigError
from headwise.files import check_file_name
from headwise.runs.environment import package_versions

C = TypeVar("C", bound=Corpus)
P = TypeVar("P", bound="Prepared[Any]")

Sizes = Mapping[str, int]  # of the vocabularies, by column of a batch
Sides = tuple[Sequence[str], Sequence[str]]  # aligned lines: what is read, and what is predicted
SMALL_TEXT = 20_000  # training pairs or labelled texts
# More are for a larger text, see `vocab_size` and `max_updates` in conf/data.
MOST = (("tokenizer.vocab_size", 4_000), ("trainer.max_updates", 5_000))

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class NoFiles:
    """The `Corpus`, and the data, of a task that generates its examples; see `Prepared`."""

    test_sets: Sequence[str]
    sizes: Sizes
    vocabulary = fingerprint = "no files"
    folder = None

    def hashes(self) -> list[str]:
        """Empty: the examples depend on the settings alone."""
        return []

    @property
    def report(self) -> dict[str, Any]:
        """Empty: there is no preparation."""
        return {}

    def save(self, folder: Path) -> None:
        """Write nothing: a finished run needs no files."""


@dataclass(frozen=True)
class Prepared(Generic[C]):
    """A corpus whose splits are encoded in the cache; see `prepare`.

    Attributes:
        corpus: of the data.
        config: the settings of its tokenizers; None: values of pixels.
        tokenizers: those of both sides are the same if a batch has one column.
        fingerprint: of the training and validation set, and of all that their ids depend on.
        report: counts of the preparation, also of data that were in the cache.
        folder: of the files in the cache.
        sizes: of the vocabularies, by column of a batch.
        vocabulary: hash of the lists of tokens.
    """

    corpus: C
    config: TokenizerConfig | None
    tokenizers: TokenizerPair | None
    fingerprint: str
    report: dict[str, Any]
    folder: Path

    @property
    def sizes(self) -> Sizes:
        assert self.tokenizers is not None
        return {COLUMN: self.tokenizers.source.vocab_size}

    @property
    def vocabulary(self) -> str:
        assert self.tokenizers is not None
        return self.tokenizers.source.fingerprint()

    def save(self, folder: Path) -> None:
        """Write what a finished run needs, the tokenizers, to its folder."""
        if self.tokenizers is not None:
            self.tokenizers.save(folder)


Data = Prepared[Any] | NoFiles


def prepare(
    kind: type[P],
    corpus: Any,
    config: TokenizerConfig | None,
    splits: Mapping[str, str],
    make_tokenizers: Callable[[TokenizerConfig], TokenizerPair],
    encode: Callable[[Path, TokenizerPair | None], dict[str, Any]],
    about: Mapping[str, Any],
    end: str = "",
    training: Collection[str] = (),
) -> P:
    """Encode splits into the cache, or open them there if nothing that they depend on changed.

    Test sets are left out of the fingerprint: a finished run may be scored on others.

    Args:
        kind: of the result.
        corpus: a `Corpus` with a cache.
        config: of the tokenizers; None: none are needed.
        splits: name of a split -> hash of its content.
        make_tokenizers: loads or trains them; called if the data are not in the cache.
        encode: writes the splits into a folder, and returns the report in plain types.
        about: what else the files depend on, as plain types.
        end: of the folder's name.
        training: splits in the fingerprint; by default those of training and validation.

    Raises:
        ConfigError: a name that is a path, or options of the tokenizer that do not fit the text.
        OSError: the cache cannot be written, or the disk is full.
    """
    for name in (corpus.config.name, *splits):
        check_file_name("data.name or a split", name)
    identity = {**package_versions(corpus.packages(list(splits))), **about}
    if config is not None:
        check_tokenizer_config(config)
        identity |= tokenizer_identity(config)

    def make(folder: Path) -> dict[str, Any]:
        tokenizers = None
        if config is not None:
            tokenizers = make_tokenizers(config)
            tokenizers.save(folder)
        return encode(folder, tokenizers)

    def digest(names: Collection[str]) -> str:
        hashed = {name: content for name, content in splits.items() if name in names}
        return combined_digest([json.dumps({**identity, "splits": hashed}, sort_keys=True)])

    folder = corpus.cache_dir / ENCODED / f"{corpus.config.name}{end}-{digest(splits)[:16]}"
    report = make_once(folder, make)
    tokenizers = None if config is None else TokenizerPair.load(folder)
    fingerprint = digest(training or (corpus.config.train, corpus.config.valid))
    return kind(corpus, config, tokenizers, fingerprint, report, folder)


def open_corpus(config: Any, cache: Path, **options: Any) -> Any:
    """The corpus of the class that settings of data name, located but not read.

    Raises:
        ConfigError: another class, or a wrong setting.
    """
    kind = target_class(config, "data")
    if Corpus not in kind.__mro__:
        raise ConfigError(f"data._target_ must be a Corpus, got {kind.__name__}")
    return kind(config, cache, **options)


def named_splits(corpus: Corpus, splits: Sequence[str] = ()) -> dict[str, str]:
    """Splits with the hashes of their content; by default training, validation and test sets."""
    training = corpus.config.train, corpus.config.valid
    return {split: corpus.identity(split) for split in splits or (*training, *corpus.test_sets)}


def warn_of_small_text(config: Config, n_rows: int, sizes: Sizes) -> None:
    """Warn if the vocabulary, or the number of updates, is that of a larger training text.

    Args:
        config: with `init_from` or a given tokenizer, any vocabulary is right.
        n_rows: training pairs or labelled texts.
        sizes: of the vocabularies.
    """
    n_tokens = 0 if config.init_from or config.tokenizer.folder else max(sizes.values())
    used = zip(MOST, (n_tokens, config.trainer.max_updates), strict=True)
    large = [f"{key}={most} (now {n})" for (key, most), n in used if n > most]
    if n_rows < SMALL_TEXT and large:
        log.warning("only %d training examples: set at most %s", n_rows, " and ".join(large))
