"""Corpora in memory, and what the preparation makes of them."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headwise.data.encoded import PreparedCorpus, prepare_corpus
from headwise.schema import DataConfig, TokenizerConfig

Pairs = list[tuple[str, str]]


def pairs_of(n_pairs: int, seed: int) -> Pairs:
    draw = random.Random(seed)
    words = ["".join(draw.choices("abdeilnorstu", k=draw.randint(2, 7))) for _ in range(300)]
    return [
        (
            " ".join(draw.choices(words, k=draw.randint(1, 12))),
            " ".join(draw.choices(words, k=draw.randint(1, 12))).upper(),
        )
        for _ in range(n_pairs)
    ]


@dataclass
class FakeSource:
    texts: dict[str, Pairs]
    n_read: int = 0

    def splits(self) -> list[str]:
        return list(self.texts)

    def pairs(self, split: str) -> Iterator[tuple[str, str]]:
        self.n_read += 1
        yield from self.texts[split]


class FakeReport:
    def as_dict(self) -> dict[str, Any]:
        return {"read": 7, "kept": 5}


@dataclass
class FakeCorpus:
    config: DataConfig
    source: FakeSource
    report: FakeReport = field(default_factory=FakeReport)

    def pairs(self, split: str, clean: bool = False) -> Iterator[tuple[str, str]]:
        return self.source.pairs(split)

    def train_pairs(self) -> Iterator[tuple[str, str]]:
        return self.source.pairs("train")

    def fingerprint(self) -> str:
        return self.identity("train")

    def identity(self, split: str) -> str:
        return hashlib.sha256(repr(self.source.texts[split]).encode()).hexdigest()


def corpus(train: Pairs | None = None, valid: Pairs | None = None) -> Any:
    texts = {
        "train": pairs_of(600, 1) if train is None else train,
        "valid": pairs_of(40, 2) if valid is None else valid,
    }
    config = DataConfig(name="fake", source="de", target="en", licence="none")
    return FakeCorpus(config, FakeSource(texts))


def options(**changes: Any) -> TokenizerConfig:
    return TokenizerConfig(**{"vocab_size": 150, **changes})


def prepare(text: Any, cache: Path, config: TokenizerConfig | None = None) -> PreparedCorpus:
    return prepare_corpus(text, config or options(), cache, n_workers=1, progress=False)
