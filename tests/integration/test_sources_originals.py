"""Corpora in their published layouts, with the yaml files of headwise."""

import hashlib
import re
import zipfile

import datasets
import pytest

from corpus_writers import (
    data_config,
    encode_lines,
    iwslt_xml,
    open_named_corpus,
    serve_folder,
    translations,
    write_parquet,
    write_tar,
)
from headwise.data.sources.hub import HubSource
from headwise.errors import ConfigError, DataError
from headwise.tasks.translation.corpus import open_corpus
from original_layouts import (
    HUB,
    ORIGINALS,
    TEST,
    TRAIN,
    VALID,
    sides_of,
    write_hub_copy,
    write_iwslt,
    write_kftt,
    write_wmt14,
    write_wmt16,
)


def _check(corpus):
    assert list(corpus.text(corpus.config.train)) == TRAIN
    assert list(corpus.text("valid")) == VALID
    assert list(corpus.text(corpus.config.test[0])) == TEST


@pytest.mark.parametrize("case", ORIGINALS)
def test_archives_in_a_local_folder_are_read(tmp_path, case):
    name, write = ORIGINALS[case]
    folder = tmp_path / "archives"
    folder.mkdir()
    write(folder)
    corpus = open_named_corpus(tmp_path, name, dir=str(folder))
    _check(corpus)
    assert corpus.fingerprint() == open_named_corpus(tmp_path, name, dir=str(folder)).fingerprint()
    assert not (tmp_path / "cache" / "downloads").exists()


def test_tokenised_version_of_kftt_is_read(tmp_path):
    write_kftt(tmp_path)
    settings = {"train": "train_tok", "valid": "valid_tok", "test": ["test_tok"]}
    corpus = open_named_corpus(tmp_path, "kftt", dir=str(tmp_path), **settings)
    assert list(corpus.text("train_tok")) == [(f"{s} .", f"{t} .") for s, t in TRAIN]
    assert len(corpus.read("test_tok")[0]) == len(TEST)


def test_iwslt_test_set_is_read_from_two_archives(tmp_path):
    write_iwslt(tmp_path)
    with pytest.raises(DataError, match=r"'test_de' is missing: put 2017-01-ted-test/de-en\.tgz"):
        open_named_corpus(tmp_path, "iwslt17", dir=str(tmp_path), test=["test_tst2017"])
    sides = sides_of(TEST, "de", "en")
    for pair, code in (("de-en", "de"), ("en-de", "en")):
        name = f"{pair}/IWSLT17.TED.tst2017.{pair}.{code}.xml"
        path = tmp_path / "2017-01-ted-test" / f"{pair}.tgz"
        write_tar(path, {name: iwslt_xml(sides[code], code, talk=pair)})
    corpus = open_named_corpus(tmp_path, "iwslt17", dir=str(tmp_path), test=["test_tst2017"])
    joined = "valid+test_tst2017"
    joined_targets = open_named_corpus(tmp_path, "iwslt17", dir=str(tmp_path), test=[joined]).read(
        joined
    )[1]
    assert joined_targets == corpus.read("valid")[1] + corpus.read("test_tst2017")[1]
    assert list(corpus.text("test_tst2017")) == TEST


def test_test_set_works_in_both_directions(tmp_path):
    write_wmt16(tmp_path)
    settings = {"source": "en", "target": "ro"}
    corpus = open_named_corpus(tmp_path, "wmt16_ro_en", dir=str(tmp_path), **settings)
    # in the order of the source side, whose documents are reversed here
    assert sorted(corpus.text("test_newstest2016")) == [(t, s) for s, t in TEST]


@pytest.mark.parametrize("name", HUB)
@pytest.mark.parametrize("top", [True, False])
def test_local_copy_of_the_hub_is_read(tmp_path, name, top):
    write_hub_copy(tmp_path / "copy", name, top)
    corpus = open_named_corpus(tmp_path, name, dir=str(tmp_path / "copy"))
    assert list(corpus.text("train")) == TRAIN
    assert list(corpus.text("valid")) == VALID
    pairs = list(corpus.text(corpus.config.test[0]))
    assert pairs[: len(TEST)] == TEST
    assert len(pairs) == (993 if name == "iwslt17" else len(TEST))


def test_hub_source_uses_the_datasets_library(tmp_path, monkeypatch):
    """A local folder replaces the repository; library, columns and order are real."""
    for split, pairs in {"train": TRAIN, "validation": VALID, "test": TEST}.items():
        rows = translations(("de", "en"), [(t, s) for s, t in pairs])
        write_parquet(tmp_path / f"repo/de-en/{split}-00000-of-00001.parquet", rows)
    splits = {"train": "train", "valid": "validation", "test_part": "test[1:3]"}
    load, repo = datasets.load_dataset, str(tmp_path / "repo")
    monkeypatch.setattr(datasets, "load_dataset", lambda _, **options: load(repo, **options))
    languages = {"source": "en", "target": "de"}
    source = HubSource("owner/name", splits, tmp_path / "cache", "de-en", **languages)
    assert list(source.pairs("train")) == TRAIN
    assert list(source.pairs("test_part")) == TEST[1:3]
    assert source.identity("train") == source.identity("train") != source.identity("valid")


def test_missing_corpus_names_its_files(tmp_path, monkeypatch):
    calls = []

    def load_dataset(*args, **kwargs):
        calls.append((args, kwargs))
        raise ConnectionError("Couldn't reach the hub\nlong trace")

    monkeypatch.setattr("datasets.load_dataset", load_dataset)
    monkeypatch.setattr("headwise.data.sources.archive.download", _no_network)
    with pytest.raises(DataError) as error:
        open_named_corpus(tmp_path, "iwslt17")
    args, kwargs = calls[0]
    assert args == ("IWSLT/iwslt2017",)
    assert kwargs["data_dir"] == "iwslt2017-de-en"
    assert kwargs["revision"] == "refs/convert/parquet"
    message = str(error.value)
    for part in (
        "data.dir=FOLDER with train.de, train.en, valid_dev2010.de, valid_dev2010.en",
        "HEADWISE_DATA=FOLDER with such a folder named ted_iwslt_de_en",
        "IWSLT/iwslt2017 could not be loaded from the Hugging Face Hub (Couldn't reach the hub)",
        "put de-en.tgz or de-en.zip",
        str(tmp_path / "cache" / "downloads" / "iwslt17"),
    ):
        assert part in message
    assert len(message.splitlines()) <= 6


def _no_network(entries, folder):
    raise DataError(f"{entries[0]['url']}: Network is unreachable")


def test_incomplete_and_damaged_archives_are_named(tmp_path):
    write_wmt14(tmp_path)
    content = (tmp_path / "test-full.tgz").read_bytes()
    (tmp_path / "dev.tgz").rename(tmp_path / "elsewhere")
    with pytest.raises(DataError, match=r"archive 'dev' is missing: put dev\.tgz into"):
        open_named_corpus(tmp_path, "wmt14_en_de", dir=str(tmp_path))
    (tmp_path / "elsewhere").rename(tmp_path / "dev.tgz")
    (tmp_path / "test-full.tgz").write_bytes(content[: len(content) // 2])
    corpus = open_named_corpus(tmp_path, "wmt14_en_de", dir=str(tmp_path))
    with pytest.raises(DataError, match=r"test-full\.tgz is truncated or not a zip or tar archive"):
        list(corpus.text("test_newstest2014"))
    with zipfile.ZipFile(tmp_path / "test-full.tgz", "w") as archive:
        archive.writestr("newstest2014-deen-src.en.sgm", "<seg>")
    archive_bytes = (tmp_path / "test-full.tgz").read_bytes()
    for offset, flag in (6, 1), (8, 99):  # encrypted; an unknown compression method
        corrupt = bytearray(archive_bytes)
        for start in (0, archive_bytes.index(b"PK\x01\x02") + 2):
            corrupt[start + offset] = flag
        (tmp_path / "test-full.tgz").write_bytes(corrupt)
        with pytest.raises(DataError, match=r"src\.en\.sgm cannot be extracted"):
            list(corpus.text("test_newstest2014"))
    write_tar(tmp_path / "test-full.tgz", {"test-full/newstest2014-deen-src.en.sgm": b"<seg>"})
    with pytest.raises(DataError, match=r"has no newstest2014-deen-ref\.de\.sgm"):
        list(corpus.text("test_newstest2014"))


def test_newstest2013_is_read_from_plain_text(tmp_path):
    write_wmt14(tmp_path)
    sides = sides_of(VALID, "en", "de")
    write_tar(
        tmp_path / "dev.tgz", {f"dev/newstest2013.{c}": encode_lines(sides[c]) for c in sides}
    )
    assert (
        list(open_named_corpus(tmp_path, "wmt14_en_de", dir=str(tmp_path)).text("valid")) == VALID
    )


def test_downloaded_corpus_works_offline(tmp_path, monkeypatch):
    write_kftt(tmp_path)
    archive = tmp_path / "kftt-data-1.0.tar.gz"
    config = data_config("kftt")
    entry = config.origins[1]["archives"]["kftt"]["downloads"][0]
    del config.origins[0]
    with serve_folder(tmp_path) as address:
        entry["url"] = f"{address}/{archive.name}"
        with pytest.raises(DataError, match=r"not the published file: SHA1"):
            open_corpus(config, tmp_path / "cache")
        entry["sha1"] = hashlib.sha1(archive.read_bytes()).hexdigest()
        _check(open_corpus(config, tmp_path / "cache"))
    monkeypatch.setattr("headwise.data.sources.archive.download", _no_network)
    _check(open_corpus(config, tmp_path / "cache"))
    downloaded = tmp_path / "cache" / "downloads" / "kftt" / archive.name
    downloaded.write_bytes(archive.read_bytes() + b"more")
    with pytest.raises(DataError, match=r"is not the published file: sha1 .* Delete it"):
        open_corpus(config, tmp_path / "cache")


PATHS_OUTSIDE = {
    "name": ("../kftt", lambda origin, path: origin.update(name=path)),
    "files": (
        "sub/../../x.tgz",
        lambda origin, path: origin["archives"]["kftt"]["files"].append(path),
    ),
    "downloads": (
        "/nonexistent/x.tgz",
        lambda origin, path: origin["archives"]["kftt"]["downloads"][0].update(file=path),
    ),
    "splits": (
        "..",
        lambda origin, path: origin["splits"].update({path: origin["splits"]["test"]}),
    ),
}


@pytest.mark.parametrize("key", PATHS_OUTSIDE)
def test_names_outside_the_cache_are_rejected(tmp_path, key):
    config = data_config("kftt")
    value, change = PATHS_OUTSIDE[key]
    change(config.origins[1], value)
    message = rf"data\.origins\[1\]\..*{key}.*{re.escape(repr(value))}"
    with pytest.raises(ConfigError, match=message):
        open_corpus(config, tmp_path / "cache")
    assert not (tmp_path / "cache").exists()
