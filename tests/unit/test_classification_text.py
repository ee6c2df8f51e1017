"""Labelled text of every format, row by row, and messages for wrong files and settings."""

import copy
import csv
import functools
import gzip
import io
import json
import os
import re
import unicodedata
from collections import Counter
from dataclasses import replace

import datasets
import numpy as np
import pytest
from omegaconf import OmegaConf

from corpus_writers import encode_lines, write_parquet
from headwise.config.data import LabelledDataConfig
from headwise.config.folders import composed
from headwise.config.schema import TokenizerConfig
from headwise.errors import ConfigError, DataError
from headwise.tasks.classification.predict import Prediction, tsv_line
from headwise.tasks.classification.prepare import prepare_classes
from headwise.tasks.classification.text import LabelledText
from labelled_texts import PUBLISHED

HEADER = ("label", "text", "second")
CELLS = [("no", 'He said "no".', "a, b"), ("yes", "Ja, schön", "c"), ("no", "x", "y")]
EDITED = ['no\tHe said "no".\ta, b', "yes\tJa, schön\tc", "yes\tx\t"]  # of as many bytes
BYTES = TokenizerConfig(kind="byte")
ROWS = [((text,), label) for label, text, _ in CELLS]


@functools.cache
def data_config(name):
    data = OmegaConf.to_object(composed(f"data={name}").data)
    assert isinstance(data, LabelledDataConfig)
    return data


def corpus(path, name="labelled", **changes):
    data = copy.deepcopy(data_config(name))
    return LabelledText(replace(data, **{"dir": str(path), **changes}), path.parent / "cache")


def write_table(path, cells, header):
    kind = path.name.split(".")[1]
    records = [dict(zip(header, row, strict=True)) for row in cells]
    if kind == "parquet":
        return write_parquet(path, records)
    table = io.StringIO()
    csv.writer(table, lineterminator="\n").writerows([header, *cells])
    data = {
        "tsv": encode_lines(["\t".join(map(str, row)) for row in (header, *cells)]),
        "csv": table.getvalue().encode(),
        "jsonl": encode_lines(list(map(json.dumps, records))),
    }[kind]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return None


@pytest.fixture
def folder(tmp_path):
    for split in ("train", "dev", "test"):
        write_table(tmp_path / "text" / f"{split}.tsv", CELLS, HEADER)
    return tmp_path / "text"


ENDINGS = ["tsv", "tsv.gz", "csv", "csv.gz", "jsonl", "jsonl.gz", "parquet"]


@pytest.mark.parametrize("ending", ENDINGS)
def test_formats_have_the_same_rows(tmp_path, ending):
    for split in ("train", "valid", "test"):
        write_table(tmp_path / "text" / f"{split}.{ending}", CELLS, HEADER)
    single = corpus(tmp_path / "text")
    assert [list(single.rows(split)) for split in ("train", "valid", "test")] == [ROWS] * 3
    assert single.path("test") == tmp_path / "text" / f"test.{ending}"
    pairs = corpus(tmp_path / "text", pair="second")
    assert list(pairs.rows("train")) == [((text, other), label) for label, text, other in CELLS]
    assert single.identity("train") != pairs.identity("train")


@pytest.mark.parametrize("form", ["archive", "unpacked", "hub"])
@pytest.mark.parametrize("name", PUBLISHED)
def test_published_forms_are_read(tmp_path, name, form):
    (train, test), write = PUBLISHED[name]
    write(tmp_path / "text", form)
    named = corpus(tmp_path / "text", name, valid_fraction=0.5)
    expected = [((text,), label.split(":")[0]) for text, label in train]
    assert sorted([*named.rows("train"), *named.rows("valid")]) == sorted(expected)
    assert list(named.rows("test")) == [((text,), label.split(":")[0]) for text, label in test]
    assert named.config.labels
    assert {label for _, label in expected} <= {*named.config.labels}


def test_fine_labels_of_trec_are_another_column(tmp_path):
    (train, _), write = PUBLISHED["trec"]
    write(tmp_path / "text", "archive")
    fine = corpus(tmp_path / "text", "trec", label="fine_label", labels=None, valid_fraction=0.5)
    rows = [*fine.rows("train"), *fine.rows("valid")]
    assert sorted(rows) == sorted(((text,), label) for text, label in train)


@pytest.mark.parametrize("name", PUBLISHED)
def test_named_sets_are_pinned(name):
    origins = {
        origin["_target_"].rpartition(".")[2]: origin for origin in data_config(name).origins
    }
    assert re.fullmatch("[0-9a-f]{40}", origins["HubSource"]["revision"])
    for archive in origins["ArchiveTables"]["archives"].values():
        assert {"md5", "sha256"} & archive["downloads"][0].keys()
    assert data_config(name).notes


def test_named_set_of_the_user_is_read_from_headwise_data(folder, monkeypatch):
    monkeypatch.setenv("HEADWISE_DATA", str(folder.parent))
    named = corpus(folder, "agnews", dir=None, folder="text", labels=["no", "yes"])
    assert len([*named.rows("train"), *named.rows("valid")]) == len(CELLS)


def test_missing_set_names_its_files(tmp_path, monkeypatch):
    def no_network(*_, **__):
        raise DataError("no network")

    monkeypatch.delenv("HEADWISE_DATA", raising=False)
    monkeypatch.setattr("datasets.load_dataset", no_network)
    monkeypatch.setattr("headwise.data.sources.archive.download", no_network)
    with pytest.raises(DataError) as caught:
        corpus(tmp_path / "text", "sst2", dir=None).hashes()
    message = str(caught.value)
    for part in ("data.dir=FOLDER with train.tsv", "nyu-mll/glue could not be", "put SST-2.zip or"):
        assert part in message
    with pytest.raises(DataError, match=r"data\.dir=FOLDER with train\.tsv, valid\.tsv \(or \.csv"):
        corpus(tmp_path / "text", dir=None).hashes()


def test_files_of_any_name_are_read(folder):
    paths = {"train": str(folder / "train.tsv"), "valid": [str(folder / "dev")], "mine": "test.tsv"}
    named = corpus(folder, files=paths)
    assert list(named.rows("mine")) == list(named.rows("valid")) == ROWS
    assert list(corpus(folder, dir=None, files=paths, test=[]).rows("train")) == ROWS
    joined = corpus(folder, train="train+test")
    assert list(joined.rows("train+test")) == ROWS * 2


def test_files_without_header_have_configured_columns(folder):
    lines = encode_lines(["\t".join(row) for row in CELLS])
    for split in ("train", "dev", "test"):
        (folder / f"{split}.tsv").write_bytes(lines)
    joined = corpus(folder, columns=["label", "text", "text"])
    assert list(joined.rows("train"))[1] == (("Ja, schön c",), "yes")


def test_edit_of_the_same_size_and_time_is_read(folder):
    before, status = prepare_classes(corpus(folder), BYTES), (folder / "train.tsv").stat()
    (folder / "train.tsv").write_bytes(encode_lines(["label\ttext\tsecond", *EDITED]))
    os.utime(folder / "train.tsv", ns=(status.st_atime_ns, status.st_mtime_ns))
    after = prepare_classes(corpus(folder), BYTES)
    assert before.report["splits"]["train"] == {"no": 2, "yes": 1}
    assert after.report["splits"]["train"] == {"no": 1, "yes": 2}
    (folder / "test.tsv").write_bytes((folder / "train.tsv").read_bytes())
    replaced = prepare_classes(corpus(folder), BYTES)  # a run can be scored on it
    assert replaced.report["splits"]["test"] == after.report["splits"]["train"]
    assert replaced.fingerprint == after.fingerprint != before.fingerprint


def test_identity_covers_what_selects_and_changes_values(folder):
    files = {"train": "train", "valid": "dev"}
    before = corpus(folder, files=files).identity("train")
    (folder / "train.tsv").rename(folder / "train.csv")
    assert corpus(folder, files=files).identity("train") != before
    PUBLISHED["sst2"][1](folder / "sst2", "archive")
    origin = data_config("sst2").origins[-1]
    changed = {**origin, "values": {"label": {"0": "positive", "1": "negative"}}}
    one, other = (corpus(folder / "sst2", "sst2", origins=[o]) for o in (origin, changed))
    assert one.identity("test") != other.identity("test")


def test_validation_share_is_stratified_and_disjoint(folder):
    cells = [("yes" if i % 10 else "no", f"text {i}", "-") for i in range(1000)]
    write_table(folder / "train.tsv", cells, HEADER)
    cut = corpus(folder, valid_fraction=0.2)
    train, valid = list(cut.rows("train")), list(cut.rows("valid"))
    assert Counter(label for _, label in valid) == {"yes": 180, "no": 20}
    assert sorted([*train, *valid]) == sorted(((text,), label) for label, text, _ in cells)
    assert len(cut.hashes()) == len(set(cut.hashes())) == 2
    assert len(list(cut.rows("test"))) == len(CELLS)


def test_numbers_are_indices_of_classes(folder):
    write_table(folder / "train.tsv", [("1", "a", ""), ("no", "b", "")], HEADER)
    named = corpus(folder, labels=["no", "yes"])
    assert [label for _, label in named.rows("train")] == ["yes", "no"]
    assert [label for _, label in corpus(folder).rows("train")] == ["1", "no"]


def test_parquet_of_datasets_has_the_names_of_classes(tmp_path):
    text = datasets.Value("string")
    for split, names in (("train", ["neg", "pos"]), ("valid", ["pos", "neg"])):
        features = datasets.Features({"text": text, "label": datasets.ClassLabel(names=names)})
        table = datasets.Dataset.from_dict({"text": ["a", "b"], "label": [1, 0]}, features)
        table.to_parquet(tmp_path / f"{split}.parquet")
    for labels, expected in (None, "pos neg"), ("pos neg", "pos neg"), ("- +", "+ -"):
        named = corpus(tmp_path, labels=labels and labels.split(), test=[])
        assert [label for _, label in named.rows("train")] == expected.split()
    assert [label for _, label in named.rows("valid")] == ["+", "-"]
    run = replace(corpus(tmp_path, test=[]), saved=["-1", "neg", "pos"])  # -1: no label
    assert [label for _, label in run.rows("valid")] == ["neg", "pos"]


def test_label_keeps_its_spaces():
    assert tsv_line(Prediction("very  good", 0.5), "a\tb") == "very  good\t0.5000\ta b"


@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
@pytest.mark.parametrize("label", [1.0, np.nan, 0.5, [0], {"x": 1}])
def test_labels_are_text_or_whole_numbers(tmp_path, ending, label):
    for split in ("train", "valid"):
        path = tmp_path / "text" / f"{split}.{ending}"
        write_table(path, [(label, "x")], ("label", "text"))
    rows = corpus(tmp_path / "text", test=[]).rows("train")
    if label == 1:
        assert list(rows) == [(("x",), "1")]
        return
    message = rf"train\.{ending}, (row|line) 1: the label in .* must be text or a whole number, got"
    with pytest.raises(DataError, match=message):
        list(rows)


def test_unknown_label_is_named_with_its_file(folder):
    write_table(folder / "test.tsv", [("no", "x", ""), ("maybe", "x", "")], HEADER)
    joined = corpus(folder, valid="dev+test", test=[])
    with pytest.raises(DataError, match=r"/test\.tsv, line 3: unknown label 'maybe'; known are no"):
        prepare_classes(joined, BYTES)


@pytest.mark.parametrize(
    ("name", "content", "changes", "message"),
    [
        ("tsv", "label\tbody\n", {}, r"no columns 'text'; got label, body\. .*data\.text="),
        ("tsv", "klass\ttext\nx\ty\n", {}, r"no columns 'label'; got klass, text"),
        ("jsonl", '{"label": 1, "body": "x"}\n', {}, r"line 1: no columns 'text'; got label, body"),
        ("tsv", "label\ttext\nx\ty\n", {"pair": "b"}, r"no columns 'b'; .*null: single texts"),
        ("tsv", "label\ta\tb\nx\ty\tz\n", {}, r"no columns 'text'; got label, a, b\..*data\.pair="),
        ("tsv", "label\ttext\ttext\n", {}, "2 columns 'text'"),
        ("tsv", "label\ttext\nx\n", {}, "line 2: 1 cells, the header has 2"),
        ("csv", "label,text\nx,y\nx,y,z\n", {}, "line 3: 3 cells, the header has 2"),
        ("csv", 'label,text\nx,"y\nz\n', {}, r"line 3: unexpected end of data"),
        ("csv", "\n\n", {}, "no columns 'text'; got none"),
        ("tsv", "x\ty\tz\n", {"columns": ["label", "text"]}, "line 1: 3 cells, columns are 2"),
        ("tsv", "label\ttext\nx\t \n", {}, r"line 2: no text in the column 'text'; got ' '"),
        ("jsonl", '{"label": "x", "text": 3}\n', {}, "no text in the column 'text'; got 3"),
        ("jsonl", '{"label": null, "text": "x"}\n', {}, "line 1: no label in the column 'label'"),
        ("tsv", "label\ttext\n\ty\n", {}, "line 2: no label"),
        ("tsv", "label\ttext\nyess\ty\n", {"labels": ["no", "yes"]}, "label must .*mean yes"),
        ("tsv", "label\ttext\n2\ty\n", {"labels": ["no", "yes"]}, "line 2: the label must be one"),
        ("tsv", "label\ttext\n", {}, "is empty"),
    ],
)  # fmt: skip
def test_wrong_files_are_refused(tmp_path, name, content, changes, message):
    for split in ("train", "valid", "test"):
        (tmp_path / "text").mkdir(exist_ok=True)
        (tmp_path / "text" / f"{split}.{name}").write_text(content, encoding="utf-8")
    with pytest.raises(DataError, match=message) as caught:
        list(corpus(tmp_path / "text", **changes).rows("train"))
    assert f"train.{name}" in str(caught.value)


def test_wrong_lines_of_trec_are_refused(tmp_path):
    (tmp_path / "train_5500.label").write_text("DESC:manner How ?\nWhat is it ?\n")
    (tmp_path / "TREC_10.label").write_text("DESC:manner How ?\n")
    with pytest.raises(DataError, match=r"label, line 2 must start with CLASS:subclass"):
        list(corpus(tmp_path, "trec").rows("train"))


def test_missing_split_is_named(folder):
    (folder / "dev.tsv").unlink()
    message = r"no split 'valid': expected valid\.tsv, validation\.tsv.* Splits there: test, train;"
    with pytest.raises(DataError, match=message + r" set data\.valid_fraction=0\.05 "):
        corpus(folder).hashes()
    with pytest.raises(DataError, match=r"a split of data=labelled must be .*; got 'tset'"):
        list(corpus(folder, valid="test").rows("tset"))
    (folder / "test.tsv").rename(folder / DECOMPOSED("größe.tsv"))
    named = corpus(folder, valid="größe", test=[])
    assert list(named.rows("größe")) == list(named.rows(DECOMPOSED("größe"))) == ROWS
    (folder / DECOMPOSED("größe.tsv")).unlink()
    with pytest.raises(DataError, match=r"there: train; data\.test=\[\] for"):
        corpus(folder, valid_fraction=0.5).hashes()


DECOMPOSED = functools.partial(unicodedata.normalize, "NFD")  # as macOS writes names


@pytest.mark.parametrize("ending", ["tsv", "jsonl", "parquet"])
def test_labels_and_columns_are_the_same_in_every_normal_form(tmp_path, ending):
    rows = [("café", "a"), (DECOMPOSED("café"), "b"), ("thé", "c")]
    for split, column in (("train", "mot-clé"), ("valid", DECOMPOSED("mot-clé"))):
        write_table(tmp_path / "text" / f"{split}.{ending}", rows, (column, "text"))
    for labels in (None, ["café", "thé"], [DECOMPOSED("café"), "thé"]):
        text = corpus(tmp_path / "text", label=DECOMPOSED("mot-clé"), labels=labels, test=[])
        prepared = prepare_classes(text, BYTES)
        assert prepared.labels == ["café", "thé"]
        assert prepared.report["splits"]["valid"] == {"café": 2, "thé": 1}
    # those of a run of an earlier version
    earlier = prepare_classes(text, BYTES, [DECOMPOSED("café"), "thé"], ["valid"])
    assert earlier.split("valid").classes.tolist() == [0, 0, 1]
    with pytest.raises(ConfigError, match="two or more different names"):
        corpus(tmp_path / "text", labels=["café", DECOMPOSED("café")])
