"""Labelled examples: encoding, batches, shares of the labels."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from headwise.config.schema import TokenizerConfig
from headwise.data.loader import BatchLoader
from headwise.data.tokenizer import BYTE_MODEL, EOS, Tokenizer
from headwise.errors import DataError
from headwise.tasks.classification.batches import TrainingClasses, evaluation_batches, stratified
from headwise.tasks.classification.prepare import example_ids, prepare_classes

BYTES = TokenizerConfig(kind="byte")
SPLITS = {
    "train": [(("good",), "yes"), (("bad  film",), "no"), (("très bien",), "yes")],
    "valid": [(("good",), "yes"), (("",), "no")],
    "test": [(("a\tb",), "no")],
}


@dataclass
class Corpus:
    """Examples in memory as a `ClassCorpus`."""

    cache_dir: Path
    splits: dict[str, Any] = field(default_factory=lambda: dict(SPLITS))
    max_length: int = 20
    test_sets = ("test",)

    @property
    def config(self):
        return SimpleNamespace(
            name="corpus", train="train", valid="valid", max_length=self.max_length
        )

    def identity(self, split):
        return str(self.splits[split])

    def hashes(self):
        return [self.identity("train"), self.identity("valid")]

    def packages(self, splits):
        return ()

    def path(self, split):
        return Path(f"{split}.tsv")

    def names(self, split):
        yield from (f"{split}.tsv, line {i}" for i, _ in enumerate(self.splits[split], 1))

    def rows(self, split):
        yield from self.splits[split]


def prepared(corpus, **options):
    return prepare_classes(corpus, BYTES, **options)


def test_texts_and_classes_come_back(tmp_path):
    data = prepared(Corpus(tmp_path))
    assert data.labels == ["no", "yes"]
    assert data.sizes == {"tokens": 260, "labels": 2}
    for name, rows in SPLITS.items():
        split = data.split(name)
        batch = split.batch(np.arange(len(split)))
        texts = [bytes(i - 4 for i in row).decode() for row in batch.columns["tokens"].items()]
        assert texts == [text for ((text,), _) in rows]
        assert [data.labels[c] for c in batch.targets_R.tolist()] == [label for _, label in rows]
        assert batch.scored_R.tolist() == list(range(len(rows)))


def test_labels_that_are_numbers_are_in_numeric_order(tmp_path):
    rows = [((str(n),), str(n)) for n in (10, 9, 2)]
    assert prepared(Corpus(tmp_path, dict.fromkeys(SPLITS, rows))).labels == ["2", "9", "10"]


def test_pairs_are_separated_and_the_longer_text_is_truncated():
    tokenizer = Tokenizer(BYTE_MODEL)

    def spelled(*texts, length):
        ids = example_ids(texts, tokenizer, length)
        return "".join("|" if i == EOS else chr(i - 4) for i in ids)

    assert spelled("abc", "defg", length=9) == "abc|defg|"
    assert spelled("abc", "defghijk", length=9) == "abc|defg|"
    assert spelled("abcdefgh", "xyzuvw", length=9) == "abc|xyz|"
    assert spelled("abcdefgh", length=4) == "abc|"


@pytest.mark.parametrize(
    ("splits", "labels", "message"),
    [
        ({"valid": [(("x",), "maybe")]}, None, "valid.tsv, line 1: unknown label 'maybe'"),
        ({"train": [(("x",), "yes")]}, None, "one class, yes"),
        ({}, ["yes", "no", "maybe"], "no example of maybe"),
        ({"test": []}, None, "test.tsv is empty"),
    ],
)
def test_wrong_labels_are_refused(tmp_path, splits, labels, message):
    with pytest.raises(DataError, match=message):
        prepared(Corpus(tmp_path, SPLITS | splits), labels=labels)


def many(tmp_path):
    rows = [(("x" * (n % 17 + 1),), str(n % 3)) for n in range(100)]
    return prepared(Corpus(tmp_path, dict.fromkeys(SPLITS, rows))).split("train")


def test_every_example_once_an_epoch_and_two_ranks_are_one(tmp_path):
    split = many(tmp_path)
    kept = np.arange(0, 100, 2)
    one = BatchLoader(TrainingClasses(split, kept, 100, seed=1))
    two = [BatchLoader(TrainingClasses(split, kept, 50, 1, 2), rank, 2) for rank in (0, 1)]
    seen = []
    for _ in range(one.n_batches):
        whole, parts = next(one), [next(loader) for loader in two]
        assert sorted(whole.rows) == sorted(row for part in parts for row in part.rows)
        assert whole.global_targets == len(whole) == parts[0].global_targets
        assert whole.columns["tokens"].ids_BN.numel() <= 100
        seen += whole.rows
    assert sorted(seen) == kept.tolist()
    assert next(one).rows != seen[: len(whole)]


def test_evaluation_scores_every_example_once(tmp_path):
    split = many(tmp_path)
    batches = evaluation_batches(split, 60)
    assert sorted(row for batch in batches for row in batch.rows) == list(range(100))
    classes = torch.cat([batch.targets_R for batch in batches])
    rows = [row for batch in batches for row in batch.rows]
    assert classes.tolist() == split.classes[rows].tolist()
    assert sum(map(len, evaluation_batches(split, 60, 7))) == 7


def test_shares_are_stratified_and_nested():
    classes = np.random.default_rng(1).choice(3, 1000, p=[0.9, 0.09, 0.01])
    small, large = (stratified(classes, share, seed=4) for share in (0.05, 0.5))
    assert set(small) <= set(large)
    for label, n in enumerate(np.bincount(classes)):
        assert (classes[small] == label).sum() == max(1, round(0.05 * n))
    assert stratified(classes, 1.0, 4).tolist() == list(range(1000))
    assert stratified(classes, 0.05, 5).tolist() != small.tolist()
