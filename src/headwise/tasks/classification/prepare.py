"""Labelled data, encoded once into the cache: inputs and classes of each split."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from headwise.config.schema import TokenizerConfig
from headwise.data.lossless import lossless
from headwise.data.store import FlatWriter, IdStore, id_dtype
from headwise.data.tokenizer import COLUMN, EOS, Tokenizer, TokenizerPair
from headwise.data.tokenizer_training import exact_tokenizer
from headwise.errors import DataError
from headwise.files import nfc
from headwise.progress import progress_bar
from headwise.tasks.classification.inputs import (
    ClassCorpus,
    ImageInputs,
    LabelledSplit,
    TextInputs,
)
from headwise.tasks.data import Prepared, named_splits, prepare

FORMAT = 3  # increase when the files change
LABELS = "labels"  # key of the report, and of the sizes
N_VALUES = 256  # of a pixel


class PreparedClasses(Prepared[ClassCorpus]):
    """Inputs and classes by split; the report has the labels, and the examples of each by split."""

    @property
    def tokenizer(self) -> Tokenizer | None:
        """Of texts; None for images."""
        return None if self.tokenizers is None else self.tokenizers.source

    @property
    def labels(self) -> list[str]:
        """Names of the classes."""
        labels: list[str] = self.report[LABELS]
        return labels

    @property
    def sizes(self) -> dict[str, int]:
        """Size of the vocabulary, or number of values of a pixel, and number of classes."""
        n_ids = N_VALUES if self.tokenizer is None else self.tokenizer.vocab_size
        return {COLUMN: n_ids, LABELS: len(self.labels)}

    @property
    def vocabulary(self) -> str:
        """Hash of the list of tokens."""
        return "values of pixels" if self.tokenizer is None else self.tokenizer.fingerprint()

    def split(self, name: str) -> LabelledSplit:
        """A split, memory-mapped."""
        return LabelledSplit(self._inputs(name), np.load(self.folder / f"{name}.classes.npy"))

    def _inputs(self, name: str) -> TextInputs | ImageInputs:
        if self.tokenizer is not None:
            dtype = id_dtype(self.tokenizer.vocab_size)
            return TextInputs(IdStore.open(self.folder / name, dtype))
        config = self.corpus.config
        values = np.memmap(self.folder / name, np.uint8, mode="r")
        return ImageInputs(values.reshape(-1, *config.shape), config)


def prepare_classes(
    corpus: ClassCorpus,
    config: TokenizerConfig | None,
    labels: Sequence[str] | None = None,
    splits: Sequence[str] = (),
    progress: bool = False,
) -> PreparedClasses:
    """Encode splits, or open them in the cache if files and options are unchanged.

    Args:
        corpus: of the data.
        config: the tokenizer, trained on the training split unless it is loaded; None for images.
        labels: names of the classes, in order; None: those of the training split, sorted, which
            `splits` then includes.
        splits: names; empty for training, validation and test sets.
        progress: show a bar while encoding.

    Raises:
        DataError: a label that is not among `labels`, a class without training examples, one class.
    """
    chosen, train = named_splits(corpus, splits), corpus.config.train

    def encode(folder: Path, tokenizers: TokenizerPair | None) -> dict[str, Any]:
        tokenizer = None if tokenizers is None else tokenizers.source
        names_of = {split: _encode(corpus, split, tokenizer, folder, progress) for split in chosen}
        classes = list(labels or sorted(set(names_of[train]), key=_order))
        if len(classes) < 2:
            path = corpus.path(train)
            raise DataError(f"{path} has one class, {classes[0]}: there is nothing to learn")
        counts = {
            split: _write_classes(corpus, split, names, classes, folder / f"{split}.classes.npy")
            for split, names in names_of.items()
        }
        missing = [label for label, n in counts.get(train, {}).items() if not n]
        if missing:
            raise DataError(f"{corpus.path(train)} has no example of {', '.join(missing)}")
        return {LABELS: classes, "splits": counts}

    about: dict[str, Any] = {"format": FORMAT, "labels": labels}
    if config is not None:
        about["max_length"] = corpus.config.max_length
    tokenizer = functools.partial(exact_tokenizer, functools.partial(_lines, corpus, train))
    return prepare(PreparedClasses, corpus, config, chosen, tokenizer, encode, about, "-classes")


def _lines(corpus: ClassCorpus, split: str) -> Iterator[bytes]:
    return (text.encode() for texts, _ in corpus.rows(split) for text in texts)


def _order(label: str) -> tuple[float, str]:
    """Numbers by value, then names."""
    return (int(label) if label.isdecimal() else np.inf, label)


def _encode(
    corpus: ClassCorpus, split: str, tokenizer: Tokenizer | None, folder: Path, progress: bool
) -> list[str]:
    """Write the inputs of a split; return the labels of the examples."""
    labels: list[str] = []
    bar = progress_bar(f"encoding {split}", progress, unit=" examples")
    with FlatWriter(folder / split) as writer, bar:
        for example, label in corpus.rows(split):
            values = example
            if tokenizer is not None:
                ids = example_ids(example, tokenizer, corpus.config.max_length)
                values = np.array(ids, id_dtype(tokenizer.vocab_size))
            writer.append(values, np.array([values.size]))
            labels.append(label)
            bar.update()
    if not labels:
        raise DataError(f"{corpus.path(split)} is empty: the split {split!r} has no examples")
    return labels


def _write_classes(
    corpus: ClassCorpus, split: str, names: Sequence[str], labels: Sequence[str], path: Path
) -> dict[str, int]:
    """Write the numbers of the labels of examples; return the number of examples by label."""
    numbers = {nfc(label): number for number, label in enumerate(labels)}
    for number, name in enumerate(names):
        if name not in numbers:
            where = next(islice(corpus.names(split), number, None))
            raise DataError(f"{where}: unknown label {name!r}; known are {', '.join(labels)}")
    classes = np.array([numbers[name] for name in names], np.int64)
    np.save(path, classes)
    return dict(zip(labels, np.bincount(classes, minlength=len(labels)).tolist(), strict=True))


def example_ids(texts: Sequence[str], tokenizer: Tokenizer, max_length: int) -> list[int]:
    """Tokens of one or two texts, each with an end token, `max_length` at most.

    Of two texts that are too long, the longer one is truncated more.
    """
    rows = [lossless(tokenizer).encode([text.encode()]).tolist() for text in texts]
    budget = max_length - len(rows)
    limits = [max(budget - sum(map(len, rows)) + len(row), budget // len(rows)) for row in rows]
    return [token for row, n in zip(rows, limits, strict=True) for token in (*row[:n], EOS)]
