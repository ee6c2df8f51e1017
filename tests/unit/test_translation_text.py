"""Text is converted once into files with every sentence unchanged."""

import dataclasses

import numpy as np
import pytest

from fake_corpora import corpus, pairs_of
from headwise.config.data import CleaningConfig
from headwise.tasks.translation.text import ParallelText, write_pairs

ODD = ["", "a\u2028b\u0085c\rd", "ends so\r", "\ufeffmark", " kept ", "寺院 🙂", "last"]


@pytest.fixture
def fake(tmp_path):
    return dataclasses.replace(corpus(), cache_dir=tmp_path)


@pytest.mark.parametrize("chunk", [2, 10_000])
def test_lines_equal_sentences(tmp_path, chunk, monkeypatch):
    monkeypatch.setattr("headwise.tasks.translation.text.CHUNK_PAIRS", chunk)
    pairs = list(zip(ODD, reversed(ODD), strict=True))
    paths = tmp_path / "a.de", tmp_path / "a.en"
    assert write_pairs(iter(pairs), paths) == len(pairs)
    text = ParallelText(paths, {})
    assert list(text) == pairs
    assert len(text) == len(pairs)
    assert text.sides[0].read(np.array([1, 4, 6])) == [ODD[1], ODD[4], ODD[6]]
    assert text.sides[1].read(np.array([], np.int64)) == []
    assert paths[0].read_bytes() == "".join(f"{line}\n" for line in ODD).encode()


def test_second_corpus_reads_only_the_files(fake, tmp_path):
    first = list(fake.text("train+valid"))
    assert fake.source.n_read == 2
    again = dataclasses.replace(corpus(), cache_dir=tmp_path)
    assert list(again.text("train+valid")) == first == [*pairs_of(600, 1), *pairs_of(40, 2)]
    assert again.source.n_read == 0
    report = again.text("train+valid").report
    assert (report["pairs"], set(report["sources"])) == (640, {"train", "valid"})


def test_other_text_rules_or_languages_are_converted_separately(fake, tmp_path):
    reversed_config = dataclasses.replace(fake.config, source="en", target="de")
    strict = dataclasses.replace(fake.config, cleaning=CleaningConfig(max_words=3))
    few = dataclasses.replace(fake.config, max_train_pairs=7)
    others = [dataclasses.replace(fake, config=config) for config in (reversed_config, strict, few)]
    others.append(dataclasses.replace(corpus(pairs_of(9, 4)), cache_dir=tmp_path))
    texts = [corpus_of_text.train_text() for corpus_of_text in (fake, *others)]
    assert len({text.paths for text in texts} | {fake.text("train").paths}) == 6
    assert [len(text) for text in texts] == [600, 600, len(texts[2]), 7, 9]
    # cleaning rules do not change test sets
    assert others[1].text("valid").paths == fake.text("valid").paths
