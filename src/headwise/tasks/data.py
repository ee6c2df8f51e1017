"""What the data of a task offer, before and after they are prepared."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from headwise.config.schema import Config

Sizes = Mapping[str, int]  # of the vocabularies, by column of a batch
Sides = tuple[Sequence[str], Sequence[str]]  # aligned lines: what is read, and what is predicted
SMALL_TEXT = 20_000  # training pairs or labelled texts
# More are for a larger text, see `vocab_size` and `max_updates` in conf/data.
MOST = (("tokenizer.vocab_size", 4_000), ("trainer.max_updates", 5_000))

log = logging.getLogger(__name__)


class Data(Protocol):
    """Prepared data, ready for training."""

    @property
    def sizes(self) -> Sizes:
        """Sizes of the vocabularies."""
        ...

    @property
    def vocabulary(self) -> str:
        """Hash of the vocabularies."""
        ...

    @property
    def fingerprint(self) -> str:
        """Hash of the ids."""
        ...

    @property
    def report(self) -> dict[str, Any]:
        """Counts of the preparation."""
        ...

    @property
    def folder(self) -> Path | None:
        """Its folder in the cache; None without files."""
        ...

    def save(self, folder: Path) -> None:
        """Write what a finished run needs, such as tokenizers, to the run folder."""
        ...


@dataclass(frozen=True)
class NoFiles:
    """The `Corpus` and `Data` of a task that generates its examples."""

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
