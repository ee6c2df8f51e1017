"""The English of the built-in corpus as a text for density models."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from headwise.config.density_data import BuiltinTextConfig
from headwise.data.builtin.corpus import BuiltinCorpus


@dataclass(frozen=True)
class BuiltinText:
    """One generated sentence per line (`headwise.data.token_stream.DensityCorpus`)."""

    config: BuiltinTextConfig
    cache_dir: Path

    @cached_property
    def _corpus(self) -> BuiltinCorpus:
        data = self.config
        return BuiltinCorpus("de", "en", data.seed, data.n_train, data.n_valid, data.n_test)

    @property
    def test_sets(self) -> list[str]:
        """See `DensityCorpus.test_sets`."""
        return self.config.test

    def hashes(self) -> list[str]:
        """See `DensityCorpus.hashes`."""
        return [self.identity(split) for split in (self.config.train, self.config.valid)]

    def identity(self, split: str) -> str:
        """See `DensityCorpus.identity`."""
        return f"{self._corpus.identity(split)}-lines"

    def path(self, split: str) -> Path:
        """Name of a split, for error messages."""
        return Path(f"data={self.config.name} {split}")

    def chunks(self, split: str) -> Iterator[bytes]:
        """See `DensityCorpus.chunks`."""
        for _, sentence in self._corpus.pairs(split):
            yield f"{sentence}\n".encode()

    def starts_document(self, before: bytes, chunk: bytes) -> bool:
        """See `DensityCorpus.starts_document`: a split is one document."""
        return not before
