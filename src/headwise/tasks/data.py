"""What the data of a task offer, before and after they are prepared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

Sizes = Mapping[str, int]  # of the vocabularies, by column of a batch
Sides = tuple[Sequence[str], Sequence[str]]  # aligned lines: what is read, and what is predicted


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
