"""Pairs in the folders of users: which files are splits, tables and archives."""

import re
import zipfile
from functools import partial

import datasets
import pytest

from corpus_writers import (
    data_config,
    encode_lines,
    iwslt_xml,
    open_config,
    open_named_corpus,
    sentences,
    translations,
    write_parquet,
    write_tar,
    write_text,
)
from headwise.data.sources.hub import Hub
from headwise.data.sources.tables import language_columns, row_pairs
from headwise.errors import ConfigError, DataError
from original_layouts import (
    TEST,
    TRAIN,
    VALID,
    sides_of,
    write_iwslt,
    write_kftt,
    write_wmt14,
    write_wmt16,
)
from originals import write_folder

AB = ("a", "b")


def open_ab(folder, **changes):
    """Pairs of the languages a and b in a folder."""
    settings = {"dir": str(folder), "source": "a", "target": "b", **changes}
    return open_named_corpus(folder.parent, "files", **settings)


def write_ab(folder, **splits):
    """Splits of 3 pairs with their name in them, or of those given."""
    folder.mkdir(exist_ok=True)
    for stem, pairs in splits.items():
        write_text(folder, stem, AB, pairs, gz=False)
    return folder


def named(stem, n=3):
    return sentences(*AB, n, stem)


def multi30k(folder, gz=True, **changes):
    """The folder of a corpus, as it is opened."""
    if not (folder / "text").exists():
        stems = "train", "valid", "test_2016_flickr", "test_2017_flickr"
        write_folder(folder / "text", "de", "en", stems, gz)
    return open_named_corpus(folder, "multi30k", dir=str(folder / "text"), **changes)


def test_user_text_in_tables_is_read(tmp_path):
    for stem in ("train", "dev", "test_a", "test_b"):
        table = encode_lines(["a\tb", *map("\t".join, named(stem))])
        (tmp_path / f"{stem}.tsv").write_bytes(table)
    corpus = open_ab(tmp_path)
    assert corpus.test_sets == ["test_a", "test_b"]  # discovered
    assert list(corpus.text("valid")) == named("dev")
    assert corpus.read("test_b")[0][2].endswith("test_b.")


def test_a_file_is_a_split_of_its_own_name(tmp_path):
    write_ab(tmp_path, **{stem: named(stem) for stem in ("train", "dev", "test", "test2")})
    corpus = open_ab(tmp_path, valid="dev")
    assert list(corpus.text("dev")) == named("dev")
    assert corpus.splits() == ["dev", "test", "test2", "train", "valid"]
    files = {"train": ["train"], "valid": ["dev"], "test": ["test2"], "dev": ["train"]}
    corpus = open_ab(tmp_path, files=files)
    assert corpus.test_sets == ["test"]  # not twice
    assert list(corpus.text("test")) == named("test2")
    assert list(corpus.text("dev")) == named("train")


def test_splits_may_be_shares_of_one_file(tmp_path):
    pairs = named("", 20)
    write_ab(tmp_path, train=pairs)
    corpus = open_ab(tmp_path, split=[0.8, 0.15, 0.05])
    assert corpus.test_sets == ["test"]
    parts = [list(corpus.text(split)) for split in ("train", "valid", "test")]
    assert parts == [pairs[:16], pairs[16:19], pairs[19:]]
    other = open_ab(tmp_path, split=[0.8, 0.2])
    identities = {corpus.fingerprint(), other.fingerprint(), *map(corpus.identity, other.splits())}
    assert len(identities) == 4
    write_ab(tmp_path, valid=pairs)
    with pytest.raises(DataError, match="has its own valid"):
        open_ab(tmp_path, split=[0.9, 0.1])
    with pytest.raises(ConfigError, match=r"data\.split must be unset"):
        open_ab(tmp_path, split=[0.9, 0.1], dir=None)


def test_sharded_test_sets_are_named_after_their_tables(tmp_path):
    text = write_ab(tmp_path / "text", train=named("", 5), valid=named("", 5))
    pairs = named("news", 4)
    for number in range(2):
        rows = translations(AB, pairs[2 * number :][:2])
        write_parquet(text / f"test_news-{number:05d}-of-00002.parquet", rows)
        write_parquet(text / f"test_talks/{number:04d}.parquet", rows)
    (text / "test_notes").mkdir()
    corpus = open_ab(text)
    assert corpus.test_sets == ["test_news", "test_talks"]  # discovered
    for name in corpus.test_sets:
        assert list(corpus.text(name)) == pairs


def test_folder_with_the_layout_of_the_hub_is_named(tmp_path):
    for stem in ("data/train", "data/validation", "data/test", "more/train"):
        path = tmp_path / f"{stem}-00000-of-00001.parquet"
        write_parquet(path, translations(AB, named("x")))
    with pytest.raises(DataError, match=r"no train, but .*/data or data\.dir=.*/more$"):
        open_ab(tmp_path)
    with pytest.raises(DataError, match="has several tables"):
        open_ab(tmp_path, train="data")
    assert open_ab(tmp_path / "data").splits() == ["test", "train", "valid", "validation"]
    (tmp_path / "data").rename(tmp_path / "more" / "test_data")
    with pytest.raises(DataError, match="test_data has several tables"):
        open_ab(tmp_path / "more", valid="train")


def test_only_the_training_text_depends_on_cleaning_and_limits(tmp_path):
    plain, no_tests = multi30k(tmp_path), multi30k(tmp_path, test=[])
    assert no_tests.test_sets == []  # the default test sets are not added
    few = multi30k(tmp_path, max_train_pairs=2)
    strict = multi30k(tmp_path, cleaning={"max_words": 9})
    assert len({corpus.fingerprint() for corpus in (plain, no_tests, few, strict)}) == 3
    assert list(few.train_text()) == TRAIN[:2]
    paths = {corpus.text("valid").paths for corpus in (plain, few, strict)}
    assert paths == {plain.text("valid").paths}


def test_data_dir_takes_precedence_over_headwise_data(tmp_path, monkeypatch):
    config = data_config("multi30k", dir=str(tmp_path / "text"))
    monkeypatch.setenv("HEADWISE_DATA", str(tmp_path / "shelf"))
    stems = "train", "valid", "test_2016_flickr", "test_2017_flickr"
    write_folder(tmp_path / "shelf" / config.folder, "de", "en", stems, gz=True)
    write_folder(tmp_path / "text", "de", "en", stems, gz=True)
    write_text(tmp_path / "text", "train", ("de", "en"), VALID, gz=True)
    assert list(open_config(config, tmp_path / "cache").text("train")) == VALID


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
    corpus = multi30k(tmp_path, cleaning={"max_words": 1})
    with pytest.raises(DataError, match=r"no training pair is left: kept 0 of 4.*max_words 4"):
        list(corpus.train_text())


def iwslt17(folder, **changes):
    return open_named_corpus(folder, "iwslt17", dir=str(folder), **changes)


def test_joined_splits_are_read_as_one(tmp_path):
    write_iwslt(tmp_path)
    joined = "test_tst2014+test_tst2013"
    corpus = iwslt17(tmp_path, valid="valid+test_tst2013", test=[joined])
    parts = [corpus.read(name) for name in joined.split("+")]
    assert corpus.read(joined) == (parts[0][0] + parts[1][0], parts[0][1] + parts[1][1])
    assert len(corpus.read("valid+test_tst2013")[0]) == len(VALID) + len(TEST)
    splits = joined, "test_tst2013+test_tst2014", "test_tst2013"
    assert len(set(map(corpus.identity, splits))) == 3


@pytest.mark.parametrize("test", ["test_tst2O14", "test_tst2013+test_tst2O14"])
def test_missing_split_is_rejected_by_name(tmp_path, test):
    stems = "train", "valid_dev2010", "test_tst2013", "test_tst2014"
    write_folder(tmp_path, "de", "en", stems, gz=True)
    with pytest.raises(DataError, match=r"no split 'test_tst2O14'.*test_tst2013, test_tst2014"):
        iwslt17(tmp_path, test=[test])
    with pytest.raises(DataError, match=r"got 'test_tst2O14'[.] Did you mean test_tst2014"):
        iwslt17(tmp_path).text(test)


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
    multi30k(tmp_path)
    for path in (path for name in missing.split() for path in (tmp_path / "text").glob(f"{name}*")):
        path.rename(f"{path}_")
    place = folder and str(tmp_path / folder)
    with pytest.raises(DataError, match=message):
        open_named_corpus(tmp_path, "files", dir=place, source="de", target="en")


# Archives


def test_tokenised_version_of_kftt_is_read(tmp_path):
    write_kftt(tmp_path)
    settings = {"train": "train_tok", "valid": "valid_tok", "test": ["test_tok"]}
    corpus = open_named_corpus(tmp_path, "kftt", dir=str(tmp_path), **settings)
    assert list(corpus.text("train_tok")) == [(f"{s} .", f"{t} .") for s, t in TRAIN]
    assert len(corpus.read("test_tok")[0]) == len(TEST)


def test_iwslt_test_set_is_read_from_two_archives(tmp_path):
    write_iwslt(tmp_path)
    with pytest.raises(DataError, match=r"'test_de' is missing: put 2017-01-ted-test/de-en\.tgz"):
        iwslt17(tmp_path, test=["test_tst2017"])
    sides = sides_of(TEST, "de", "en")
    for pair, code in (("de-en", "de"), ("en-de", "en")):
        name = f"{pair}/IWSLT17.TED.tst2017.{pair}.{code}.xml"
        path = tmp_path / "2017-01-ted-test" / f"{pair}.tgz"
        write_tar(path, {name: iwslt_xml(sides[code], code, talk=pair)})
    assert list(iwslt17(tmp_path, test=["test_tst2017"]).text("test_tst2017")) == TEST


def test_test_set_works_in_both_directions(tmp_path):
    write_wmt16(tmp_path)
    settings = {"source": "en", "target": "ro"}
    corpus = open_named_corpus(tmp_path, "wmt16_ro_en", dir=str(tmp_path), **settings)
    # in the order of the source side, whose documents are reversed here
    assert sorted(corpus.text("test_newstest2016")) == [(t, s) for s, t in TEST]


def test_hub_uses_the_datasets_library(tmp_path, monkeypatch):
    """A local folder replaces the repository; library, columns and order are real."""
    for split, pairs in {"train": TRAIN, "validation": VALID, "test": TEST}.items():
        rows = translations(("de", "en"), [(t, s) for s, t in pairs])
        write_parquet(tmp_path / f"repo/de-en/{split}-00000-of-00001.parquet", rows)
    splits = {"train": "train", "valid": "validation", "test_part": "test[1:3]"}
    load, repo = datasets.load_dataset, str(tmp_path / "repo")
    monkeypatch.setattr(datasets, "load_dataset", lambda _, **options: load(repo, **options))
    origin = Hub("owner/name", splits, tmp_path / "cache", "de-en")
    select = partial(language_columns, ("en", "de"))
    assert list(row_pairs(origin.rows("train", select), "en", "de")) == TRAIN
    assert list(row_pairs(origin.rows("test_part", select), "en", "de")) == TEST[1:3]
    assert origin.identity("train") == origin.identity("train") != origin.identity("valid")


def zipped(flags):
    """A zip file with one member and bytes of its headers changed."""

    def write(path):
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("newstest2014-deen-src.en.sgm", "<seg>")
        content = bytearray(path.read_bytes())
        for start in (0, content.index(b"PK\x01\x02") + 2):
            for offset, flag in flags.items():
                content[start + offset] = flag
        path.write_bytes(content)

    return write


def one_side(path):
    write_tar(path, {"test-full/newstest2014-deen-src.en.sgm": b"<seg>"})


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (lambda path: path.unlink(), r"archive 'test' is missing: put test-full\.tgz into"),
        (
            lambda path: path.write_bytes(path.read_bytes()[:150]),
            "is truncated or not a zip or tar",
        ),
        (zipped({6: 1}), r"src\.en\.sgm cannot be extracted"),  # encrypted
        (zipped({8: 99}), r"src\.en\.sgm cannot be extracted"),  # unknown compression
        (one_side, r"has no newstest2014-deen-ref\.de\.sgm"),
    ],
)
def test_incomplete_and_damaged_archives_are_named(tmp_path, write, message):
    write_wmt14(tmp_path)
    write(tmp_path / "test-full.tgz")
    with pytest.raises(DataError, match=message) as refusal:
        open_named_corpus(tmp_path, "wmt14_en_de", dir=str(tmp_path)).read("test_newstest2014")
    assert "test-full.tgz" in str(refusal.value)


@pytest.mark.parametrize(
    ("key", "path", "change"),
    [
        ("name", "../kftt", lambda origin, kftt, path: origin.update(name=path)),
        ("files", "sub/../../x", lambda origin, kftt, path: kftt["files"].append(path)),
        ("downloads", "/x.tgz", lambda origin, kftt, path: kftt["downloads"][0].update(file=path)),
        ("splits", "..", lambda origin, kftt, path: origin["splits"].update({path: {}})),
    ],
)
def test_names_outside_the_cache_are_rejected(tmp_path, key, path, change):
    config = data_config("kftt")
    origin = config.origins[1]
    change(origin, origin["archives"]["kftt"], path)
    message = rf"data\.origins\[1\]\..*{key}.*{re.escape(repr(path))}"
    with pytest.raises(ConfigError, match=message):
        open_config(config, tmp_path / "cache")
    assert not (tmp_path / "cache").exists()
