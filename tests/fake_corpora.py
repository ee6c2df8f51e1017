"""Corpora in memory and their preparation."""

from __future__ import annotations

import dataclasses
import hashlib
import random
from dataclasses import dataclass
from pathlib import Path

from headwise.config.data import DataConfig
from headwise.config.schema import TokenizerConfig
from headwise.data.sources.tables import aligned_rows
from headwise.tasks.translation.corpus import ParallelCorpus
from headwise.tasks.translation.prepare import prepare_corpus

Pairs = list[tuple[str, str]]


def pairs_of(n_pairs, seed):
    generator = random.Random(seed)
    words = [
        "".join(generator.choices("abdeilnorstu", k=generator.randint(2, 7))) for _ in range(300)
    ]
    return [
        (
            " ".join(generator.choices(words, k=generator.randint(1, 12))),
            " ".join(generator.choices(words, k=generator.randint(1, 12))).upper(),
        )
        for _ in range(n_pairs)
    ]


@dataclass
class FakeOrigin:
    texts: dict[str, Pairs]
    n_read: int = 0

    def splits(self):
        return list(self.texts)

    def rows(self, split, select):
        yield from aligned_rows(self.texts[split], ("de", "en"))

    def identity(self, split):
        return hashlib.sha256(repr(self.texts[split]).encode()).hexdigest()


@dataclass(frozen=True)
class FakeCorpus(ParallelCorpus):
    origin: FakeOrigin = None


def corpus(train=None, valid=None):
    texts = {
        "train": pairs_of(600, 1) if train is None else train,
        "valid": pairs_of(40, 2) if valid is None else valid,
    }
    config = DataConfig(name="fake", source="de", target="en", licence="none")
    return FakeCorpus(config, Path(), FakeOrigin(texts))


def options(**changes):
    return TokenizerConfig(**{"vocab_size": 150, **changes})


def prepare(text, cache, config=None, n_workers=1):
    return prepare_corpus(
        dataclasses.replace(text, cache_dir=cache), config or options(), n_workers, progress=False
    )
