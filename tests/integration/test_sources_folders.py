"""Corpora opened from folders of text with the yaml files of headwise."""

import pytest

from corpus_writers import (
    data_config,
    encode_lines,
    open_named_corpus,
    parallel_corpora,
    sentences,
    translations,
    write_parquet,
    write_text,
)
from headwise.errors import ConfigError, DataError
from headwise.tasks.translation.corpus import open_corpus

# name -> (languages in file names, stems of the files of a local folder)
FOLDERS = {
    "multi30k": ("de", "en", ["train", "valid", "test_2016_flickr", "test_2017_flickr"]),
    "iwslt17": ("de", "en", ["train", "valid_dev2010", "test_tst2013", "test_tst2014"]),
    "kftt": ("ja", "en", ["train", "valid", "test", "tune"]),
    "wmt16_ro_en": ("ro", "en", ["train", "valid", "test_newstest2016"]),
    "wmt14_en_de": ("en", "de", ["train", "valid_newstest2013", "test_newstest2014"]),
}


def _fill(folder, name, gz=True):
    source, target, stems = FOLDERS[name]
    folder.mkdir(parents=True, exist_ok=True)
    for stem in stems:
        write_text(folder, stem, (source, target), sentences(source, target, 4, stem), gz)


@pytest.mark.parametrize("name", FOLDERS)
@pytest.mark.parametrize("gz", [True, False])
def test_every_corpus_opens_from_a_local_folder(tmp_path, name, gz):
    source, target, stems = FOLDERS[name]
    _fill(tmp_path / "text", name, gz)
    corpus = open_named_corpus(tmp_path, name, dir=str(tmp_path / "text"))
    assert list(corpus.train_text()) == sentences(source, target, 4, "train")
    assert corpus.read("valid")[0][0] == sentences(source, target, 1, stems[1])[0][0]
    for test in corpus.config.test:
        assert len(corpus.read(test)[1]) == 4
    assert corpus.train_text().report["cleaning"]["kept"] == 4


@pytest.mark.parametrize("name", FOLDERS)
def test_corpora_open_from_headwise_data(tmp_path, name, monkeypatch):
    config = data_config(name)
    assert config.folder
    _fill(tmp_path / "shelf" / config.folder, name)
    monkeypatch.setenv("HEADWISE_DATA", str(tmp_path / "shelf"))
    from_shelf = open_corpus(config, tmp_path / "cache")
    from_folder = open_named_corpus(tmp_path, name, dir=str(tmp_path / "shelf" / config.folder))
    assert from_shelf.fingerprint() == from_folder.fingerprint()
    # data.dir takes precedence over HEADWISE_DATA
    _fill(tmp_path / "own", name, gz=False)
    other_text = open_named_corpus(tmp_path, name, dir=str(tmp_path / "own"))
    assert other_text.fingerprint() != from_shelf.fingerprint()


def test_user_text_in_tables_is_read(tmp_path):
    for stem in ("train", "dev", "test_a", "test_b"):
        pairs = sentences("fr", "eu", 3, stem)
        table = encode_lines(["fr\teu", *map("\t".join, pairs)])
        (tmp_path / f"{stem}.tsv").write_bytes(table)
    corpus = open_named_corpus(tmp_path, "files", dir=str(tmp_path), source="fr", target="eu")
    assert corpus.config.test == ["test_a", "test_b"]  # discovered
    assert list(corpus.text("valid")) == sentences("fr", "eu", 3, "dev")
    assert corpus.read("test_b")[0][2].endswith("test_b.")


def test_a_file_is_a_split_of_its_own_name(tmp_path):
    for stem in ("train", "dev", "test", "test2"):
        write_text(tmp_path, stem, ("a", "b"), sentences("a", "b", 3, stem), gz=False)
    options = {"dir": str(tmp_path), "source": "a", "target": "b"}
    corpus = open_named_corpus(tmp_path, "files", valid="dev", **options)
    assert list(corpus.text("dev")) == sentences("a", "b", 3, "dev")
    assert corpus.splits() == ["dev", "test", "test2", "train", "valid"]
    files = {"train": ["train"], "valid": ["dev"], "test": ["test2"], "dev": ["train"]}
    corpus = open_named_corpus(tmp_path, "files", files=files, **options)
    assert corpus.config.test == ["test"]  # not twice
    assert list(corpus.text("test")) == sentences("a", "b", 3, "test2")
    assert list(corpus.text("dev")) == sentences("a", "b", 3, "train")


def test_splits_may_be_shares_of_one_file(tmp_path):
    pairs = sentences("a", "b", 20)
    write_text(tmp_path, "train", ("a", "b"), pairs, gz=False)
    options = {"dir": str(tmp_path), "source": "a", "target": "b"}
    corpus = open_named_corpus(tmp_path, "files", split=[0.8, 0.15, 0.05], **options)
    assert corpus.config.test == ["test"]
    parts = [list(corpus.text(split)) for split in ("train", "valid", "test")]
    assert parts == [pairs[:16], pairs[16:19], pairs[19:]]
    other = open_named_corpus(tmp_path, "files", split=[0.8, 0.2], **options)
    assert (
        len({corpus.fingerprint(), other.fingerprint(), *map(corpus.identity, other.splits())}) == 4
    )
    write_text(tmp_path, "valid", ("a", "b"), pairs, gz=False)
    with pytest.raises(DataError, match="has its own valid"):
        open_named_corpus(tmp_path, "files", split=[0.9, 0.1], **options)
    with pytest.raises(ConfigError, match=r"data\.split must be unset"):
        open_named_corpus(tmp_path, "files", split=[0.9, 0.1], source="a", target="b")


def test_sharded_test_sets_are_named_after_their_tables(tmp_path):
    text = tmp_path / "text"
    text.mkdir()
    for stem in ("train", "valid"):
        write_text(text, stem, ("a", "b"), sentences("a", "b", 5), gz=False)
    pairs = sentences("a", "b", 4, "news")
    for number in range(2):
        rows = translations(("a", "b"), pairs[2 * number :][:2])
        write_parquet(text / f"test_news-{number:05d}-of-00002.parquet", rows)
        write_parquet(text / f"test_talks/{number:04d}.parquet", rows)
    (text / "test_notes").mkdir()
    corpus = open_named_corpus(tmp_path, "files", dir=str(text), source="a", target="b")
    assert corpus.config.test == ["test_news", "test_talks"]  # discovered
    for name in corpus.config.test:
        assert list(corpus.text(name)) == pairs


def test_folder_with_the_layout_of_the_hub_is_named(tmp_path):
    pairs = translations(("a", "b"), sentences("a", "b", 3, "x"))
    for stem in ("data/train", "data/validation", "data/test", "more/train"):
        write_parquet(tmp_path / f"{stem}-00000-of-00001.parquet", pairs)
    options = {"source": "a", "target": "b"}
    with pytest.raises(DataError, match=r"no train, but .*/data or data\.dir=.*/more$"):
        open_named_corpus(tmp_path, "files", dir=str(tmp_path), **options)
    with pytest.raises(DataError, match="has several tables"):
        open_named_corpus(tmp_path, "files", dir=str(tmp_path), train="data", **options)
    corpus = open_named_corpus(tmp_path, "files", dir=str(tmp_path / "data"), **options)
    assert corpus.splits() == ["test", "train", "valid", "validation"]
    (tmp_path / "data").rename(tmp_path / "more" / "test_data")
    with pytest.raises(DataError, match="test_data has several tables"):
        open_named_corpus(tmp_path, "files", dir=str(tmp_path / "more"), valid="train", **options)


def test_source_and_target_set_the_direction(tmp_path):
    _fill(tmp_path / "text", "multi30k")
    folder = str(tmp_path / "text")
    forward = open_named_corpus(tmp_path, "multi30k", dir=folder)
    backward = open_named_corpus(tmp_path, "multi30k", dir=folder, source="en", target="de")
    assert [(t, s) for s, t in backward.text("valid")] == list(forward.text("valid"))
    assert forward.fingerprint() != backward.fingerprint()


def test_fingerprint_depends_on_text_cleaning_and_limit(tmp_path):
    _fill(tmp_path / "text", "multi30k", gz=False)
    folder = str(tmp_path / "text")
    fingerprints = {open_named_corpus(tmp_path, "multi30k", dir=folder).fingerprint()}
    without_tests = open_named_corpus(tmp_path, "multi30k", dir=folder, test=[])
    assert without_tests.fingerprint() in fingerprints
    assert without_tests.config.test == []  # the default test sets are not added
    for change in ({"max_train_pairs": 2}, {"cleaning": {"max_words": 9}}):
        corpus = open_named_corpus(tmp_path, "multi30k", dir=folder, **change)
        fingerprints.add(corpus.fingerprint())
    with (tmp_path / "text" / "train.de").open("a") as stream:
        stream.write("noch ein Satz\n")
    fingerprints.add(open_named_corpus(tmp_path, "multi30k", dir=folder).fingerprint())
    assert len(fingerprints) == 4


def test_only_training_text_is_filtered(tmp_path):
    pairs = [("Aşa este.", "So it is."), (" ", "nothing"), ("a " * 81, "b " * 81), ("ţară", "land")]
    pairs.append(("one", "too many"))
    for stem in ("train", "valid", "test_newstest2016"):
        write_text(tmp_path, stem, ("ro", "en"), pairs, gz=True)
    corpus = open_named_corpus(tmp_path, "wmt16_ro_en", dir=str(tmp_path), max_train_pairs=2)
    train = corpus.train_text()
    assert list(train) == [("Așa este.", "So it is."), ("țară", "land")]
    counts = {"read": 4, "kept": 2, "dropped": {"empty": 1, "max_words": 1}, "truncated": True}
    assert train.report["cleaning"] == counts
    test = corpus.read("test_newstest2016")
    assert len(test[0]) == 5
    assert test[0][3] == "țară"


def test_cleaning_that_removes_all_pairs_is_rejected(tmp_path):
    _fill(tmp_path, "multi30k")
    corpus = open_named_corpus(tmp_path, "multi30k", dir=str(tmp_path), cleaning={"max_words": 1})
    with pytest.raises(DataError, match=r"no training pair is left: kept 0 of 4.*max_words 4"):
        list(corpus.train_text())


@pytest.mark.parametrize("name", parallel_corpora())
def test_every_yaml_is_typed_and_documented(name):
    config = data_config(name)
    assert config.licence
    assert config.notes
    assert set(config.test) <= set(config.files) or name == "builtin"
    if name not in ("builtin", "files"):
        assert config.folder
        # a corpus without a published split needs a folder
        assert len(config.origins) >= 1 or "no official split" in config.notes


def test_joined_splits_are_read_as_one(tmp_path):
    _fill(tmp_path / "text", "iwslt17")
    folder, joined = str(tmp_path / "text"), "test_tst2014+test_tst2013"
    corpus = open_named_corpus(
        tmp_path, "iwslt17", dir=folder, valid="valid+test_tst2013", test=[joined]
    )
    parts = [corpus.read(name) for name in joined.split("+")]
    assert corpus.read(joined) == (parts[0][0] + parts[1][0], parts[0][1] + parts[1][1])
    assert len(corpus.read("valid+test_tst2013")[0]) == 8
    reversed_identity = corpus.identity("test_tst2013+test_tst2014")
    single_identity = corpus.identity("test_tst2013")
    assert len({corpus.identity(joined), reversed_identity, single_identity}) == 3


@pytest.mark.parametrize("test", ["test_tst2O14", "test_tst2013+test_tst2O14"])
def test_missing_split_is_rejected_by_name(tmp_path, test):
    _fill(tmp_path, "iwslt17")
    with pytest.raises(DataError, match=r"no split 'test_tst2O14'.*test_tst2013, test_tst2014"):
        open_named_corpus(tmp_path, "iwslt17", dir=str(tmp_path), test=[test])
    corpus = open_named_corpus(tmp_path, "iwslt17", dir=str(tmp_path))
    with pytest.raises(DataError, match=r"got 'test_tst2O14'[.] Did you mean test_tst2014"):
        corpus.text(test)


@pytest.mark.parametrize(
    ("folder", "missing", "message"),
    [
        ("text", "train.de.gz train.en.gz", r"expected train.de, train.en .*closest.*train\.d"),
        ("text", "train.de.gz train.en.gz", r"there: .*; name one with data\.train=SPLIT$"),
        ("text", "valid.de.gz valid.en.gz test", r"there: train; set data\.split=\[0\.95"),
        ("text", "train.en.gz", r"its other side train\.en .*closest.*train\.en\.gz_"),
        ("text", "test_2016_flickr.de.gz", r"its other side test_2016_flickr\.de "),
        ("texts", "", r"does not exist\. Did you mean .*text\?"),
        ("text/valid.de.gz", "", "must be a folder"),
        (None, "", r"data\.dir=FOLDER with train\.de, train\.en"),
    ],
)
def test_missing_files_are_named_with_a_suggestion(tmp_path, folder, missing, message):
    _fill(tmp_path / "text", "multi30k")
    for path in (path for name in missing.split() for path in (tmp_path / "text").glob(f"{name}*")):
        path.rename(f"{path}_")
    place = folder and str(tmp_path / folder)
    with pytest.raises(DataError, match=message):
        open_named_corpus(tmp_path, "files", dir=place, source="de", target="en")
