"""The English of the built-in corpus as a text for density models."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from headwise.config.data import BuiltinTextConfig
from headwise.data.builtin.corpus import BuiltinCorpus
from headwise.data.file_corpus import FileCorpus
from headwise.errors import require


@dataclass(frozen=True)
class BuiltinText(FileCorpus):
    """One generated sentence per line; a split is one document."""

    config: BuiltinTextConfig

    def __post_init__(self) -> None:
        for key in ("dir", "document_mask"):
            value = getattr(self.config, key)
            require(not value, f"data.{key}", f"not set with data={self.config.name}", value)

    @cached_property
    def _corpus(self) -> BuiltinCorpus:
        data = self.config
        return BuiltinCorpus("de", "en", data.seed, data.n_train, data.n_valid, data.n_test)

    def identity(self, split: str) -> str:
        return f"{self._corpus.identity(split)}-lines"

    def path(self, split: str) -> Path:
        """Name of a split, for error messages."""
        return Path(f"data={self.config.name} {split}")

    def chunks(self, split: str) -> Iterator[bytes]:
        for _, sentence in self._corpus.pairs(split):
            yield f"{sentence}\n".encode()

    def starts_document(self, before: bytes, chunk: bytes) -> bool:
        return not before
