"""A text as a stream of tokens that spell every byte of the file, and where its files are."""

import gzip
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from command_line import composer
from corpus_writers import serve_folder
from headwise.config.data import TextDataConfig
from headwise.config.register import typed
from headwise.config.schema import TokenizerConfig
from headwise.data.lossless import ids_text, lossless, text_ids
from headwise.data.sources.digest import file_digest
from headwise.data.tokenizer import EOS, N_SPECIALS
from headwise.data.tokenizer_training import train_tokenizer
from headwise.errors import ConfigError, DataError
from headwise.tasks.stream import stream as token_stream
from headwise.tasks.stream import text as plain_text
from headwise.tasks.stream.stream import prepare_tokens
from headwise.tasks.stream.text import TextCorpus, text_corpus
from slow_marks import slow_but

TEXT = "Der  Hund sieht\tdas Haus.\n\n  Die Häuser 犬が好き\r\nund kein Ende"
ODD = TEXT.encode() + b" \n\xff\xfe\0 \xe2\x96\x81<s> <0x41>\xc3\n" + "😀 unseen\u2028".encode()
SPLITS = ("train", "valid", "test")
SUB_WORDS = [
    {"kind": "char"},
    {"kind": "bpe", "vocab_size": 320},
    {"kind": "unigram", "vocab_size": 285},
]
BYTES = TokenizerConfig(kind="byte")


def corpus_of(folder, text, **splits):
    (folder / "text").mkdir(parents=True)
    for split in SPLITS:
        (folder / "text" / f"{split}.txt").write_bytes(splits.get(split, text))
    config = TextDataConfig(name="mine", dir=str(folder / "text"), licence="own")
    return TextCorpus(config, folder / "cache")


def prepared(folder, text, **options):
    return prepare_tokens(corpus_of(folder, text), TokenizerConfig(**{"kind": "byte", **options}))


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


@pytest.mark.parametrize(
    ("documents", "options"),
    [*((kind, {"kind": "byte"}) for kind in DOCUMENTS), *(("line", words) for words in SUB_WORDS)],
    ids=str,
)
def test_documents_start_at_lines(tmp_path, monkeypatch, documents, options):
    monkeypatch.setattr(token_stream, "BATCH_BYTES", 9)
    expected = [document.encode() for document in DOCUMENTS[documents]]
    corpus = corpus_of(tmp_path, b"".join(expected), train=(TEXT * 5).encode())
    changed = replace(corpus, config=replace(corpus.config, documents=documents))
    assert changed.identity("valid") != corpus.identity("valid")
    data = prepare_tokens(changed, TokenizerConfig(**options))
    stream, spell = data.stream("valid"), lossless(data.tokenizer).decode
    parts = np.split(np.asarray(stream.ids), stream.document_starts[1:])
    assert [spell(part.tolist()) for part in parts] == expected


@pytest.mark.parametrize("line", [b" = A = \r\n", b"= B =\r\n", b" = C = \r"])
def test_headings_may_have_windows_line_ends(tmp_path, line):
    config = TextDataConfig(name="mine", licence="own", documents="heading")
    assert TextCorpus(config, tmp_path).starts_document(b"\r\n", line)


def test_several_processes_encode_the_same(tmp_path, monkeypatch):
    monkeypatch.setattr(token_stream, "BATCH_BYTES", 100)
    lines = b"".join(b"Der Hund sieht das %d. Haus.\n" % i for i in range(60))
    corpus = corpus_of(tmp_path, lines)
    documents = replace(corpus, config=replace(corpus.config, documents="line"))
    options = TokenizerConfig(kind="bpe", vocab_size=290)
    one, *others = (
        prepare_tokens(replace(documents, cache_dir=tmp_path / str(n)), options, n_workers=n)
        for n in (1, 2)
    )
    for data in others:
        stream, expected = data.stream("train"), one.stream("train")
        assert np.array_equal(stream.ids, expected.ids)
        assert np.array_equal(stream.document_starts, expected.document_starts)
        assert len(stream.document_starts) == 60


def test_line_that_loses_text_is_named_by_other_processes(tmp_path, monkeypatch):
    monkeypatch.setattr(token_stream, "BATCH_BYTES", 100)
    train_tokenizer(iter([TEXT] * 9), TokenizerConfig(kind="char", vocab_size=99)).save(
        tmp_path / "tokenizer.model"
    )
    given = TokenizerConfig(kind="given", folder=str(tmp_path))
    corpus = corpus_of(tmp_path, b"\n" * 1000 + b"Hund\n" + b"\n" * 200)
    with pytest.raises(DataError, match=r"train\.txt, line 1001: "):
        prepare_tokens(corpus, given, n_workers=2)


def test_parts_of_long_lines_are_no_documents(tmp_path, monkeypatch):
    monkeypatch.setattr(plain_text, "MAX_CHUNK", 4)
    corpus = corpus_of(tmp_path, b"a long line\nb\n")
    documents = replace(corpus, config=replace(corpus.config, documents="line"))
    assert prepare_tokens(documents, BYTES).stream("valid").document_starts.tolist() == [0, 12]
    assert prepare_tokens(corpus, BYTES).stream("valid").document_starts.tolist() == [0]


@pytest.mark.parametrize("options", SUB_WORDS)
def test_tokens_spell_every_byte(tmp_path, options):
    text = (TEXT * 5).encode()
    corpus = corpus_of(tmp_path, text, valid=ODD)
    data = prepare_tokens(corpus, TokenizerConfig(**options))
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


def test_packed_files_are_read_and_fingerprint_depends_on_content(tmp_path):
    first = prepared(tmp_path / "a", TEXT.encode())
    folder = Path(str(first.corpus.config.dir))
    path = folder / "valid.txt"
    with gzip.open(folder / "valid.txt.gz", "wb") as stream:
        stream.write(path.read_bytes())
    path.unlink()
    packed = prepare_tokens(first.corpus, BYTES)
    assert np.array_equal(packed.stream("valid").ids, first.stream("valid").ids)
    (folder / "test.txt").write_text("anders\n", encoding="utf-8")
    replaced = prepare_tokens(first.corpus, BYTES)  # a run can be scored on it
    assert spelled(replaced, "test") == b"anders\n"
    assert replaced.fingerprint == packed.fingerprint
    (folder / "train.txt").write_text("anders\n", encoding="utf-8")
    changed = prepare_tokens(first.corpus, BYTES)
    assert changed.fingerprint != packed.fingerprint
    damaged = (folder / "valid.txt.gz").read_bytes()[:-12]
    (folder / "valid.txt.gz").write_bytes(damaged)
    with pytest.raises(DataError, match=r"valid\.txt\.gz is truncated or damaged"):
        prepare_tokens(first.corpus, BYTES)


def write_plain(path, text):
    path.write_bytes(text)


def write_gz(path, text):
    path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(text))


def write_zip(path, text):
    with zipfile.ZipFile(path.with_name(f"{path.name}.zip"), "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(path.name, text)


def named(tmp_path, name, *overrides):
    """The corpus of `data=name`."""
    with composer() as compose:
        config = typed(compose([f"data={name}", *overrides]))
    return TextCorpus(config.data, tmp_path / "cache")


@pytest.mark.parametrize("write", [write_plain, write_gz, write_zip])
@pytest.mark.parametrize("name", ["enwik8", "text8"])
def test_published_file_is_split_by_bytes(tmp_path, monkeypatch, write, name):
    text = np.random.default_rng(1).integers(0, 256, 2000).astype(np.uint8).tobytes()
    (tmp_path / name).mkdir()
    write(tmp_path / name / name, text)
    monkeypatch.setenv("HEADWISE_DATA", str(tmp_path))
    data = prepare_tokens(named(tmp_path, name), BYTES)
    assert [len(spelled(data, split)) for split in SPLITS] == [1800, 100, 100]
    assert b"".join(spelled(data, split) for split in SPLITS) == text
    assert len(set(data.corpus.hashes())) == 2


@pytest.mark.parametrize("name", slow_but(["wikitext2", "wikitext103"], "wikitext2"))
def test_wikitext_is_read_from_files_and_downloads(tmp_path, monkeypatch, name):
    monkeypatch.delenv("HEADWISE_DATA", raising=False)
    texts = {split: f" \n = {split} = \n \n Text <unk> @-@ \n".encode() for split in SPLITS}
    for file in ("wiki.{}.raw", "{}.txt.gz"):
        folder = tmp_path / file[-3:]
        folder.mkdir()
        for split, text in texts.items():
            packed = gzip.compress(text) if file.endswith("gz") else text
            (folder / file.format(split)).write_bytes(packed)
        data = prepare_tokens(named(tmp_path, name, f"data.dir={folder}"), BYTES)
        assert {split: spelled(data, split) for split in SPLITS} == texts
    corpus = named(tmp_path, name)
    (entry,) = corpus.config.downloads
    with zipfile.ZipFile(tmp_path / entry["file"], "w") as archive:
        for split, text in texts.items():
            archive.writestr(f"{name}-raw/wiki.{split}.raw", text)
    with serve_folder(tmp_path) as address:
        entry["url"] = f"{address}/{entry['file']}"
        with pytest.raises(DataError, match="not the published file"):
            prepare_tokens(corpus, BYTES)
        entry["sha256"] = file_digest(tmp_path / entry["file"])
        data = prepare_tokens(corpus, BYTES)
    assert {split: spelled(data, split) for split in SPLITS} == texts


def test_files_and_shares_of_the_user(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a").write_bytes(b"one\n")
    (tmp_path / "b.gz").write_bytes(gzip.compress(b"two\n"))
    files = f"data.files={{train: a, valid: [missing, b], test: {tmp_path}/a}}"
    data = prepare_tokens(named(tmp_path, "text", files), BYTES)
    assert [spelled(data, split) for split in SPLITS] == [b"one\n", b"two\n", b"one\n"]
    (tmp_path / "all.txt").write_bytes(bytes(range(101)))
    shares = "data.file=all.txt", "data.split=[0.7,0.3]", "data.test=[]"
    data = prepare_tokens(named(tmp_path, "text", *shares), BYTES)
    with pytest.raises(ConfigError, match=r"must be one of train, valid; got 'more'"):
        data.corpus.path("more")
    assert [spelled(data, split) for split in SPLITS[:2]] == [
        bytes(range(70)),
        bytes(range(70, 101)),
    ]


@pytest.mark.parametrize("files", [None, "{train: FOLDER/train, valid: FOLDER/valid.txt}"])
def test_split_may_be_a_folder_of_books(tmp_path, files):
    """Its files in the order of their names, each from a line of its own."""
    (tmp_path / "train" / "late").mkdir(parents=True)
    books = {"b 2.txt": b"two", "a 1.txt": b"one\r\n", "late/c.txt.gz": gzip.compress(b"three")}
    for name, content in books.items():
        (tmp_path / "train" / name).write_bytes(content)
    (tmp_path / "valid.txt").write_bytes(b"valid")
    where = f"data.dir={tmp_path}" if files is None else f"data.files={files}"
    corpus = named(tmp_path, "text", where.replace("FOLDER", str(tmp_path)))
    assert b"".join(corpus.chunks("train")) == b"one\r\ntwo\nthree\n"
    assert b"".join(corpus.chunks("valid")) == b"valid"
    before = corpus.identity("train")
    (tmp_path / "train" / "b 2.txt").rename(tmp_path / "train" / "z 2.txt")
    assert b"".join(corpus.chunks("train")) == b"one\r\nthree\ntwo\n"
    assert corpus.identity("train") != before


def test_several_files_of_a_list_are_refused(tmp_path):
    for name in "ab":
        (tmp_path / f"{name}.txt").write_text(name)
    corpus = named(tmp_path, "text", f"data.files={{train: [{tmp_path}/a.txt, {tmp_path}/b.txt]}}")
    with pytest.raises(DataError, match="are alternatives: name one in data"):
        corpus.files("train")


def test_text_is_a_column_of_tables(tmp_path):
    (tmp_path / "train.tsv").write_text("label\ttext\nyes\tgood  film\nno\tbad\n")
    (tmp_path / "valid.jsonl").write_text('{"label": "no", "text": "two\\nlines"}\n')
    (tmp_path / "test.csv").write_text('text,label\n"a, b",no\n')
    config = TextDataConfig(
        name="mine", dir=str(tmp_path), licence="own", column="text", documents="line"
    )
    corpus = text_corpus(config, tmp_path / "cache")
    data = prepare_tokens(corpus, BYTES)
    assert [spelled(data, split) for split in SPLITS] == [
        b"good  film\nbad\n",
        b"two lines\n",
        b"a, b\n",
    ]
    assert data.stream("train").document_starts.tolist() == [0, 11]
    other = text_corpus(replace(config, column="words"), tmp_path / "cache")
    with pytest.raises(DataError, match=r"no columns 'words'; got label, text\. Set data\.column"):
        prepare_tokens(other, BYTES)
    with pytest.raises(DataError, match=r"extra\.parquet, extra\.jsonl.* not found in"):
        list(corpus.chunks("extra"))


def test_missing_and_empty_text_is_refused(tmp_path, monkeypatch):
    monkeypatch.delenv("HEADWISE_DATA", raising=False)
    with pytest.raises(DataError, match="is empty"):
        prepared(tmp_path / "b", b"")
    config = TextDataConfig(name="mine", licence="own")
    with pytest.raises(DataError, match=r"set data\.dir=FOLDER"):
        TextCorpus(config, tmp_path).path("train")
    missing = replace(config, dir=str(tmp_path))
    (tmp_path / "part.txt.gz").touch()
    message = r"train\.txt \(plain, \.gz or \.zip\) not found in .*, nor a folder "
    message += r"train\. Splits there: part; name one "
    with pytest.raises(DataError, match=message + r"with data\.train=SPLIT$"):
        TextCorpus(missing, tmp_path).path("train")
    with pytest.raises(DataError, match=r"set data\.file=train\.txt data\.split=\[0.9,0.05,0.05\]"):
        TextCorpus(missing, tmp_path).path("valid")
    with pytest.raises(DataError, match=r"is missing: put enwik8\.zip into .* or enwik8"):
        named(tmp_path, "enwik8", f"data.dir={tmp_path}").path("train")


MEMORY = """
import resource, sys
from pathlib import Path
from headwise.config.data import TextDataConfig
from headwise.config.schema import TokenizerConfig
from headwise.tasks.stream.text import TextCorpus, text_corpus
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


def test_a_download_that_is_no_archive_is_the_file_itself(tmp_path):
    path = tmp_path / "downloads" / "mine" / "all.txt"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"some text\n")
    downloads = [{"file": path.name, "url": "https://…", "sha256": file_digest(path)}]
    config = TextDataConfig(name="mine", licence="own", file="all.txt", split=[0.5, 0.5], test=[])
    corpus = TextCorpus(replace(config, downloads=downloads), tmp_path)
    assert b"".join(corpus.chunks("train")) + b"".join(corpus.chunks("valid")) == b"some text\n"


def test_training_is_on_the_bits_that_are_reported():
    with composer() as compose:
        for data, smoothing in (("builtin_text", 0), ("builtin", 0.1)):
            assert compose([f"data={data}"]).loss.label_smoothing == smoothing
