"""Plain and labelled texts of users: their files, tokens that spell every byte, and documents."""

import gzip
import subprocess
import sys
import unicodedata
from collections import Counter
from dataclasses import replace
from functools import partial

import datasets
import numpy as np
import pytest

from corpus_writers import data_config, encode_lines, open_named_corpus, write_table
from headwise.config.schema import TokenizerConfig
from headwise.data.lossless import ids_text, lossless, text_ids
from headwise.data.tokenizer import EOS, N_SPECIALS
from headwise.data.tokenizer_training import train_tokenizer
from headwise.errors import ConfigError, DataError
from headwise.tasks.classification.predict import Prediction, tsv_line
from headwise.tasks.classification.prepare import prepare_classes
from headwise.tasks.stream.stream import prepare_tokens
from original_layouts import LABELLED
from small_blocks import small_blocks

__all__ = ["small_blocks"]  # a fixture
TEXT = "Der  Hund sieht\tdas Haus.\n\n  Die Häuser 犬が好き\r\nund kein Ende"
ODD = TEXT.encode() + b" \n\xff\xfe\0 \xe2\x96\x81<s> <0x41>\xc3\n" + "😀 unseen\u2028".encode()
SPLITS = ("train", "valid", "test")
SUB_WORDS = [
    {"kind": "char"},
    {"kind": "bpe", "vocab_size": 320},
    {"kind": "unigram", "vocab_size": 285},
]
BYTES = TokenizerConfig(kind="byte")


def plain(folder, **changes):
    """The text in a folder."""
    return open_named_corpus(folder.parent, "text", **{"dir": str(folder), **changes})


def corpus_of(folder, text, valid=None, **changes):
    (folder / "text").mkdir(parents=True, exist_ok=True)
    for split in SPLITS:
        content = text if valid is None or split == "train" else valid
        (folder / "text" / f"{split}.txt").write_bytes(content)
    return plain(folder / "text", **changes)


def prepared(folder, text, valid=None, documents=None, **options):
    corpus = corpus_of(folder, text, valid, documents=documents)
    return prepare_tokens(corpus, TokenizerConfig(**{"kind": "byte", **options}))


def spelled(data, split):
    return lossless(data.tokenizer).decode(data.stream(split).ids.tolist())


def test_byte_ids_equal_the_bytes(tmp_path):
    text = bytes(range(256)) + TEXT.encode()
    text_data = prepared(tmp_path, text)
    stream = text_data.stream("valid")
    assert bytes((stream.ids - N_SPECIALS).astype(np.uint8)) == text == spelled(text_data, "valid")
    assert stream.bytes_of(0, len(stream.ids)) == len(text) == text_data.report["valid"]["bytes"]


DOCUMENTS = {
    "line": [" = A = \n", "= B\n", "\n", " x\r\n", " \r\n", "\n", " = Ä = \n", " = C = \n", "end"],
    "blank_line": [" = A = \n= B\n\n", " x\r\n \r\n\n", " = Ä = \n = C = \nend"],
    "heading": [" = A = \n= B\n\n x\r\n \r\n\n", " = Ä = \n = C = \nend"],
}


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize(
    ("documents", "options"),
    [*((kind, {"kind": "byte"}) for kind in DOCUMENTS), *(("line", words) for words in SUB_WORDS)],
    ids=str,
)
def test_documents_start_at_lines(tmp_path, documents, options):
    expected = [document.encode() for document in DOCUMENTS[documents]]
    data = prepared(tmp_path, (TEXT * 5).encode(), b"".join(expected), documents, **options)
    stream, spell = data.stream("valid"), lossless(data.tokenizer).decode
    parts = np.split(np.asarray(stream.ids), stream.document_starts[1:])
    assert [spell(part.tolist()) for part in parts] == expected


@pytest.mark.parametrize("line", [b" = A = \r\n", b"= B =\r\n", b" = C = \r"])
def test_headings_may_have_windows_line_ends(tmp_path, line):
    assert plain(tmp_path, documents="heading").starts_document(b"\r\n", line)


@pytest.mark.usefixtures("small_blocks")
def test_line_that_loses_text_is_named_by_other_processes(tmp_path):
    char = TokenizerConfig(kind="char", vocab_size=99)
    train_tokenizer(iter([TEXT] * 9), char).save(tmp_path / "tokenizer.model")
    given = TokenizerConfig(kind="given", folder=str(tmp_path))
    corpus = corpus_of(tmp_path, b"\n" * 1000 + b"Hund\n" + b"\n" * 200)
    with pytest.raises(DataError, match=r"train\.txt, line 1001: "):
        prepare_tokens(corpus, given, n_workers=2)


@pytest.mark.usefixtures("small_blocks")
def test_parts_of_long_lines_are_no_documents(tmp_path):
    """Lines of more than 100 bytes are read in parts."""
    text = b"a" * 450 + b"\nb\n"
    lines = prepared(tmp_path, text, documents="line")
    assert lines.stream("valid").document_starts.tolist() == [0, 451]
    assert prepared(tmp_path, text).stream("valid").document_starts.tolist() == [0]


@pytest.mark.parametrize("options", SUB_WORDS)
def test_tokens_spell_every_byte(tmp_path, options):
    text = (TEXT * 5).encode()
    data = prepared(tmp_path, text, ODD, **options)
    assert spelled(data, "train") == text
    assert spelled(data, "valid") == ODD
    stream = data.stream("valid")
    assert stream.bytes_of(0, len(stream.ids)) == len(ODD)
    assert sum(stream.bytes_of(i, i + 3) for i in range(0, len(stream.ids), 3)) == len(ODD)
    assert len(stream.ids) < len(ODD)
    assert (np.asarray(stream.ids) == EOS).sum() == ODD.count(b"\n")
    assert ids_text(text_ids(TEXT, data.tokenizer), data.tokenizer) == TEXT


def test_long_lines_are_encoded_in_parts(tmp_path):
    text = ("ä" * 150_000 + "\nEnde ").encode()
    assert spelled(prepared(tmp_path, text, kind="bpe", vocab_size=270), "valid") == text


def test_files_and_shares_of_the_user(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a").write_bytes(b"one\n")
    (tmp_path / "b.gz").write_bytes(gzip.compress(b"two\n"))
    files = {"train": "a", "valid": ["missing", "b"], "test": f"{tmp_path}/a"}
    data = prepare_tokens(plain(tmp_path, dir=None, files=files), BYTES)
    assert [spelled(data, split) for split in SPLITS] == [b"one\n", b"two\n", b"one\n"]
    (tmp_path / "all.txt").write_bytes(bytes(range(101)))
    shares = plain(tmp_path, dir=None, file="all.txt", split=[0.7, 0.3], test=[])
    with pytest.raises(ConfigError, match=r"must be one of train, valid; got 'more'"):
        shares.path("more")
    parts = [b"".join(shares.chunks(split)) for split in SPLITS[:2]]
    assert parts == [bytes(range(70)), bytes(range(70, 101))]
    both = {"train": [f"{tmp_path}/a", f"{tmp_path}/b"]}
    with pytest.raises(DataError, match="are alternatives: name one in data"):
        plain(tmp_path, files=both).files("train")


@pytest.mark.parametrize("is_named", [False, True])
def test_split_may_be_a_folder_of_books(tmp_path, is_named):
    """Its files in the order of their names, each from a line of its own."""
    (tmp_path / "train" / "late").mkdir(parents=True)
    books = {"b 2.txt": b"two", "a 1.txt": b"one\r\n", "late/c.txt.gz": gzip.compress(b"three")}
    for name, content in books.items():
        (tmp_path / "train" / name).write_bytes(content)
    (tmp_path / "valid.txt").write_bytes(b"valid")
    files = {"train": f"{tmp_path}/train", "valid": f"{tmp_path}/valid.txt"}
    corpus = plain(tmp_path, **{"dir": None, "files": files} if is_named else {})
    assert b"".join(corpus.chunks("train")) == b"one\r\ntwo\nthree\n"
    assert b"".join(corpus.chunks("valid")) == b"valid"
    before = corpus.identity("train")
    (tmp_path / "train" / "b 2.txt").rename(tmp_path / "train" / "z 2.txt")
    assert b"".join(corpus.chunks("train")) == b"one\r\nthree\ntwo\n"
    assert corpus.identity("train") != before


def test_documents_of_a_column_are_its_cells(tmp_path):
    for split in SPLITS:
        write_table(tmp_path / f"{split}.jsonl", ("text",), [("good  film",), ("two\nlines",)])
    data = prepare_tokens(plain(tmp_path, column="text", documents="line"), BYTES)
    assert spelled(data, "train") == b"good  film\ntwo lines\n"
    assert data.stream("train").document_starts.tolist() == [0, 11]


ENWIK8 = data_config("enwik8").downloads


@pytest.mark.parametrize(
    ("changes", "split", "message"),
    [
        ({"dir": None}, "train", r"set data\.dir=FOLDER"),
        ({}, "train", r"train\.txt \(plain, \.gz or \.zip\) not found in .*, nor a folder train\. "
         r"Splits there: part; name one with data\.train=SPLIT$"),
        ({}, "valid", r"set data\.file=train\.txt data\.split=\[0.9,0.05,0.05\]"),
        ({"file": "enwik8", "split": [0.9, 0.1], "test": [], "downloads": ENWIK8}, "train",
         r"is missing: put enwik8\.zip into .* or enwik8"),
        ({"column": "text"}, "extra", r"no split 'extra': expected extra\.tsv"),
    ],
)  # fmt: skip
def test_missing_text_is_refused(tmp_path, changes, split, message):
    (tmp_path / "part.txt.gz").touch()
    with pytest.raises(DataError, match=message):
        list(plain(tmp_path, **changes).chunks(split))


def test_training_is_on_the_bits_that_are_reported(make):
    for data, smoothing in (("builtin_text", 0), ("builtin", 0.1)):
        assert make([f"data={data}"]).loss.label_smoothing == smoothing


MEMORY = """
import resource, sys
from pathlib import Path
from headwise.config.data import TextDataConfig
from headwise.config.schema import TokenizerConfig
from headwise.tasks.stream.text import TextCorpus
from headwise.tasks.stream.stream import prepare_tokens
config = TextDataConfig(name="large", file="large", split=[0.9, 0.1], test=[], dir=sys.argv[1])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
prepare_tokens(TextCorpus(config, Path(sys.argv[1])), TokenizerConfig(kind="byte"))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.slow
def test_memory_of_preparation_does_not_grow_with_the_text(tmp_path):
    n_bytes = 2**26
    (tmp_path / "large").write_bytes(
        b"a line of some words\n" * (n_bytes // 42) + b"x" * (n_bytes // 2)
    )
    command = [sys.executable, "-c", MEMORY, str(tmp_path)]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    unit = 1 if sys.platform == "darwin" else 1024
    assert int(printed) * unit < n_bytes / 2


# Labelled texts

HEADER = ("label", "text", "second")
CELLS = [("no", 'He said "no".', "a, b"), ("yes", "Ja, schön", "c"), ("no", "x", "y")]
ROWS = [((text,), label) for label, text, _ in CELLS]


def corpus(path, name="labelled", **changes):
    return open_named_corpus(path.parent, name, **{"dir": str(path), **changes})


@pytest.fixture
def folder(tmp_path):
    for split in ("train", "dev", "test"):
        write_table(tmp_path / "text" / f"{split}.tsv", HEADER, CELLS)
    return tmp_path / "text"


def test_fine_labels_of_trec_are_another_column(tmp_path):
    (train, _), write = LABELLED["trec"][:2]
    write(tmp_path / "text", "archive")
    fine = corpus(tmp_path / "text", "trec", label="fine_label", labels=None, valid_fraction=0.5)
    rows = [*fine.rows("train"), *fine.rows("valid")]
    assert sorted(rows) == sorted(((text,), label) for text, label in train)


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


def test_identity_covers_what_selects_and_changes_values(folder):
    files = {"train": "train", "valid": "dev"}
    before = corpus(folder, files=files).identity("train")
    (folder / "train.tsv").rename(folder / "train.csv")
    assert corpus(folder, files=files).identity("train") != before
    (folder / "sst2").mkdir()
    LABELLED["sst2"][1](folder / "sst2", "archive")
    origin = data_config("sst2").origins[-1]
    changed = {**origin, "values": {"label": {"0": "positive", "1": "negative"}}}
    one, other = (corpus(folder / "sst2", "sst2", origins=[o]) for o in (origin, changed))
    assert one.identity("test") != other.identity("test")


def test_validation_share_is_stratified_and_disjoint(folder):
    cells = [("yes" if i % 10 else "no", f"text {i}", "-") for i in range(1000)]
    write_table(folder / "train.tsv", HEADER, cells)
    cut = corpus(folder, valid_fraction=0.2)
    train, valid = list(cut.rows("train")), list(cut.rows("valid"))
    assert Counter(label for _, label in valid) == {"yes": 180, "no": 20}
    assert sorted([*train, *valid]) == sorted(((text,), label) for label, text, _ in cells)
    assert len(cut.hashes()) == len(set(cut.hashes())) == 2
    assert len(list(cut.rows("test"))) == len(CELLS)


def test_numbers_are_indices_of_classes(folder):
    write_table(folder / "train.tsv", HEADER, [("1", "a", ""), ("no", "b", "")])
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
def test_whole_numbers_are_labels_and_fractions_are_not(tmp_path, ending):
    for split, label in zip(("train", "valid", "test"), (1.0, 0.5, np.nan), strict=True):
        write_table(tmp_path / f"{split}.{ending}", ("label", "text"), [(label, "x")])
    assert list(corpus(tmp_path).rows("train")) == [(("x",), "1")]
    for split in ("valid", "test"):
        with pytest.raises(DataError, match=r" 1: the label in .* must be text or a whole number"):
            list(corpus(tmp_path).rows(split))


@pytest.mark.parametrize(
    ("split", "labels", "changes", "message"),
    [
        ("test", ["no", "maybe"], {"valid": "dev+test", "test": []},
         r"/test\.tsv, line 3: unknown label 'maybe'; known are no"),
        ("train", ["yes", "yes"], {}, r"train\.tsv has one class, yes"),
        ("train", ["yes", "no"], {"labels": ["yes", "no", "maybe"]}, "no example of maybe"),
        ("test", [], {}, r"test\.tsv is empty"),
    ],
)  # fmt: skip
def test_wrong_labels_are_refused(folder, split, labels, changes, message):
    write_table(folder / f"{split}.tsv", HEADER, [(label, "x", "") for label in labels])
    settings = corpus(folder, **changes)
    with pytest.raises(DataError, match=message):
        prepare_classes(settings, BYTES, settings.config.labels)


def test_labels_that_are_numbers_are_in_numeric_order(folder):
    for split in ("train", "dev", "test"):
        write_table(folder / f"{split}.tsv", HEADER, [(str(n), "x", "") for n in (10, 9, 2)])
    assert prepare_classes(corpus(folder), BYTES).labels == ["2", "9", "10"]


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


DECOMPOSED = partial(unicodedata.normalize, "NFD")  # as macOS writes names


@pytest.mark.parametrize("ending", ["tsv", "jsonl", "parquet"])
def test_labels_and_columns_are_the_same_in_every_normal_form(tmp_path, ending):
    rows = [("café", "a"), (DECOMPOSED("café"), "b"), ("thé", "c")]
    for split, column in (("train", "mot-clé"), ("valid", DECOMPOSED("mot-clé"))):
        write_table(tmp_path / "text" / f"{split}.{ending}", (column, "text"), rows)
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
