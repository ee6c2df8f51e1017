"""Files of lines, of segments and of tables, downloads, and hashes of files."""

import gzip
import hashlib
import io
import os
import time

import pandas
import pyarrow
import pyarrow.parquet
import pytest

from corpus_writers import (
    encode_lines,
    iwslt_xml,
    open_named_corpus,
    serve_folder,
    table_pairs,
    translations,
    wmt_sgm,
    write_parquet,
    write_table,
)
from headwise.data.sources import digest
from headwise.data.sources.digest import FileHashes
from headwise.data.sources.download import download, verify
from headwise.data.sources.lines import aligned_segments, file_pairs, read_segments, unescape
from headwise.data.sources.tables import find_table
from headwise.errors import DataError

# Lines


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("eins\u2028zwei\u0085drei\rvier\x0bfünf\x0csechs\nja\n", None),  # only \n ends a line
        ("\ufeffeins\r\nzwei\r\n", ["eins", "zwei"]),
        ("eins\nzwei", ["eins", "zwei"]),
    ],
)
def test_lines_are_pairs(tmp_path, source, expected):
    (tmp_path / "a.de").write_bytes(source.encode())
    (tmp_path / "a.en").write_bytes(b"one\ntwo\n")
    pairs = list(file_pairs(tmp_path / "a.de", tmp_path / "a.en"))
    assert pairs == list(zip(expected or source[:-1].split("\n"), ["one", "two"], strict=True))


def test_streams_without_reading_ahead(tmp_path):
    (tmp_path / "a.de").write_bytes(b"eins\n" * 10 + b"\xff\n")
    (tmp_path / "a.en").write_bytes(b"one\n" * 11)
    pairs = file_pairs(tmp_path / "a.de", tmp_path / "a.en")
    assert [next(pairs) for _ in range(10)] == [("eins", "one")] * 10
    with pytest.raises(DataError, match="line 11"):
        next(pairs)


# Segments


def read(data):
    return read_segments(io.BytesIO(data), "side")


def align(source, target):
    return list(aligned_segments(read(source), read(target), "src", "ref"))


def test_segments_and_their_entities():
    lines = ["Tom & Jerry <sind> da", "AT&T &c", 'sie sagt "x"']
    assert [s.text for s in read(iwslt_xml(lines, "de"))] == lines
    loose = b"<doc docid=1>\n<hl><seg id=1>one\ntwo</seg></hl>\n<SEG ID='2'> three </SEG></doc>\n"
    assert [(s.number, s.text) for s in read(loose)] == [("1", "one two"), ("2", "three")]
    # only complete entities
    text = unescape("R&D &not; &#39;a&#x27; &amp;lt; &copy &unknownthing;")
    assert text == "R&D ¬ 'a' &lt; &copy &unknownthing;"


def test_sides_align_by_document_not_by_order():
    source, target = [f"s{i}" for i in range(5)], [f"t{i}" for i in range(5)]
    pairs = align(wmt_sgm(source), wmt_sgm(target, reverse=True))
    assert pairs == list(zip(source, target, strict=True))
    reversed_source = wmt_sgm(source, reverse=True)
    in_order = [segment.text for segment in read(reversed_source)]
    assert in_order != source
    pairs = align(reversed_source, wmt_sgm(target))
    assert pairs == [(text, text.replace("s", "t")) for text in in_order]


def documents(texts, tag):
    """One document per letter, each with one segment."""
    return "".join(f'<doc {tag}><seg id="1">{text}</seg></doc>\n' for text in texts).encode()


@pytest.mark.parametrize(
    ("source", "target"),
    [
        (documents("abc", ""), documents("xyz", "")),
        (documents("abc", 'docid="7"'), documents("xyz", 'docid="7"')),
        (iwslt_xml("abc", "de", "7"), iwslt_xml("xyz", "en", "99")),
    ],
)
def test_documents_without_names_of_both_sides_align_by_order(source, target):
    assert align(source, target) == [("a", "x"), ("b", "y"), ("c", "z")]


# Tables

PAIRS = [('er sagt "ja"', "he says yes"), ("gut", "good"), ("Ja, schön", "nice, a")]
ROWS = translations(("de", "en"), PAIRS)
ENDINGS = ["tsv", "tsv.gz", "csv", "csv.gz", "jsonl", "jsonl.gz", "parquet"]


@pytest.mark.parametrize("ending", ENDINGS)
def test_formats_have_the_same_rows(tmp_path, ending):
    """Of pairs, of labelled texts and pairs, and of the lines of a text."""
    header = ("de", "en", "label", "text", "second")
    cells = [(de, en, en, de, en) for de, en in PAIRS]
    for split in ("train", "valid", "test"):
        write_table(tmp_path / f"{split}.{ending}", header, cells)
    paths = find_table(tmp_path, "train")
    assert list(table_pairs(paths, "de", "en")) == PAIRS
    assert list(table_pairs(paths, "en", "de")) == [(en, de) for de, en in PAIRS]
    single, pairs = (
        open_named_corpus(tmp_path, "labelled", dir=str(tmp_path), pair=pair)
        for pair in (None, "second")
    )
    assert list(single.rows("train")) == [((de,), en) for de, en in PAIRS]
    assert list(pairs.rows("test")) == [((de, en), en) for de, en in PAIRS]
    assert single.path("test") == tmp_path / f"test.{ending}"
    assert single.identity("train") != pairs.identity("train")
    text = open_named_corpus(tmp_path, "text", dir=str(tmp_path), column="text", documents="line")
    assert list(text.chunks("valid")) == [f"{de}\n".encode() for de, _ in PAIRS]


def write_jsonl(path):
    lines = ["", *(f'{{"translation": {{"en": "{e}", "de": "{d}"}}}}' for d, e in PAIRS[1:]), ""]
    path.with_suffix(".jsonl").write_bytes(encode_lines(lines))  # empty lines are no records


def write_maps(path):
    kind = pyarrow.map_(pyarrow.string(), pyarrow.string())
    column = pyarrow.array([[("de", de), ("en", en)] for de, en in PAIRS[1:]], kind)
    pyarrow.parquet.write_table(pyarrow.table({"translation": column}), path)


def write_structs(path):
    write_parquet(path, ROWS[1:])


@pytest.mark.parametrize("write", [write_jsonl, write_maps, write_structs])
def test_columns_of_translations_are_read(tmp_path, write):
    write(tmp_path / "train.parquet")
    assert list(table_pairs(find_table(tmp_path, "train"), "de", "en")) == PAIRS[1:]


def test_only_cells_that_are_quoted_for_their_quotes_are_unquoted(tmp_path):
    texts = ['sagt "x"', '"Ja."', '"', 'lone "', 'a "" b', '"a" und "b"', "plain"]
    pandas.DataFrame({"de": texts, "en": texts}).to_csv(tmp_path / "a.tsv", sep="\t", index=False)
    literal = ['a "b"', '"Ja."', '"a" oder "b"', '"a', 'b ""', '"a "" b', '"a "b"" c"', '""', '"""']
    data = encode_lines(["en\tnote\tde", *(f"{text}\tx\t{text}" for text in literal)])
    (tmp_path / "b.tsv.gz").write_bytes(gzip.compress(data))
    for name, expected in (("a.tsv", texts), ("b.tsv.gz", literal)):
        assert [de for de, _ in table_pairs([tmp_path / name], "de", "en")] == expected


@pytest.mark.parametrize("ending", ["tsv", "csv", "jsonl"])
def test_row_may_be_a_book(tmp_path, ending):
    book = "ä" * 600_000
    write_table(tmp_path / f"a.{ending}", ("de", "en"), [(book, "b")])
    assert list(table_pairs([tmp_path / f"a.{ending}"], "de", "en")) == [(book, "b")]


def test_line_ends_inside_a_cell_become_spaces(tmp_path):
    write_parquet(tmp_path / "a.parquet", [{"de": "eins\nzwei", "en": "one\r\ntwo"}])
    assert list(table_pairs([tmp_path / "a.parquet"], "de", "en")) == [("eins zwei", "one two")]


FORMS = "train-{}", "train-{}-0123456789abcdef", "train/train-{}"
LAYOUTS = [f"{form.format('{:05d}-of-00003')}.parquet" for form in FORMS]


@pytest.mark.parametrize("layout", [*LAYOUTS, "train/{:04d}.parquet"])
def test_shards_are_read_in_order_and_none_may_be_missing(tmp_path, layout):
    for number, row in enumerate(ROWS):
        write_parquet(tmp_path / layout.format(number), [row])
    (tmp_path / layout).with_name("._0000.parquet").write_bytes(b"hidden, of another system")
    assert list(table_pairs(find_table(tmp_path, "train"), "de", "en")) == PAIRS
    assert find_table(tmp_path, "t*n") == []  # a name is not a glob pattern
    for missing in range(3) if "of" in layout else ():
        (tmp_path / layout.format(missing)).rename(tmp_path / "elsewhere")
        with pytest.raises(DataError, match=f"expected 3, missing numbers: {missing}$"):
            find_table(tmp_path, "train")
        (tmp_path / "elsewhere").rename(tmp_path / layout.format(missing))


def test_shards_of_a_longer_name_are_another_table(tmp_path):
    for name in ("train", "train-noisy", "train-2-of-3"):
        for number in range(2):
            write_parquet(tmp_path / f"{name}-{number:05d}-of-00002.parquet", ROWS[number:][:1])
    for name in ("train", "train-noisy", "train-2-of-3"):
        assert list(table_pairs(find_table(tmp_path, name), "de", "en")) == PAIRS[:2], name


RELEASES = ["00000-of-00002", "00001-of-00002"]


@pytest.mark.parametrize(
    ("names", "split", "message"),
    [
        (["data/a1-00000-of-00001", "data/a2-00000-of-00001"], "data", r"several tables.*/data "),
        (["data/train", "data/test"], "data", r"has several tables.*set data\.dir=.*/data "),
        *(
            (
                [f"x-{name}" for name in (*RELEASES, second)],
                "x",
                "has 3 .*expected 2, miss.*none",
            )
            for second in ("00001-of-00003", "0-of-00002")
        ),
    ],
)
def test_tables_of_a_folder_or_of_two_releases_are_not_joined(tmp_path, names, split, message):
    for name in names:
        write_parquet(tmp_path / f"{name}.parquet", ROWS)
    with pytest.raises(DataError, match=message):
        find_table(tmp_path, split)


# Downloads

BODY = b"an archive, let us say" * 1000
SHA256 = hashlib.sha256(BODY).hexdigest()


@pytest.fixture
def site(tmp_path):
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "served.tgz").write_bytes(BODY)
    with serve_folder(tmp_path / "site") as address:
        yield address


@pytest.mark.parametrize("algorithm", ["md5", "sha1", "sha256"])
def test_published_checksum_is_compared(tmp_path, site, algorithm):
    checksum = hashlib.new(algorithm, BODY).hexdigest()
    entry = {"url": f"{site}/served.tgz", "file": "sub/a.tgz", algorithm: checksum.upper()}
    path = download([entry], tmp_path / "got")
    assert path == tmp_path / "got" / "sub" / "a.tgz"
    assert path.read_bytes() == BODY
    verify(path, entry, FileHashes(tmp_path))
    path.write_bytes(BODY + b"more")
    with pytest.raises(DataError, match=rf"is not the published file: {algorithm} .* Delete it"):
        verify(path, entry, FileHashes(tmp_path))
    entry[algorithm] = "0" * len(checksum)
    with pytest.raises(DataError, match=rf"(?i)not the published file: .*{algorithm}:00"):
        download([entry], tmp_path / "other")
    assert not [path for path in (tmp_path / "other").rglob("*") if path.is_file()]


def test_without_a_published_checksum_the_first_download_is_recorded(tmp_path, site, caplog):
    path = download([{"url": f"{site}/served.tgz", "file": "a.tgz"}], tmp_path / "got")
    assert "no published checksum" in caplog.text
    assert (tmp_path / "got" / "a.tgz.sha256").read_text() == f"{SHA256}  a.tgz\n"
    verify(path, None, FileHashes(tmp_path))
    path.write_bytes(b"another")
    with pytest.raises(DataError, match=r"is not the file recorded in .*a\.tgz\.sha256: sha256"):
        verify(path, None, FileHashes(tmp_path))


def test_second_address_is_used_when_the_first_fails(tmp_path, site):
    names = {"nowhere.tgz": "a.tgz", "served.tgz": "b.tgz"}
    entries = [{"url": f"{site}/{there}", "file": here} for there, here in names.items()]
    assert download(entries, tmp_path / "got").name == "b.tgz"
    with pytest.raises(DataError, match=r"nowhere\.tgz: 404"):
        download(entries[:1], tmp_path / "other")
    closed = [{"url": "http://127.0.0.1:9/x.tgz", "file": "x.tgz"}]
    with pytest.raises(DataError, match=r"x\.tgz: .*refused"):
        download(closed, tmp_path / "other")
    assert list((tmp_path / "other").iterdir()) == []


# Hashes


def test_hashes_are_cached_until_a_file_changes(tmp_path, monkeypatch):
    """Many are written at once, and read again without the files."""
    paths, hashed, file_digest = [tmp_path / f"{i}.txt" for i in range(5)], [], hashlib.file_digest

    def count(stream, algorithm):
        hashed.append(algorithm)
        return file_digest(stream, algorithm)

    monkeypatch.setattr(hashlib, "file_digest", count)
    for path in paths:
        path.write_bytes(BODY)
    time.sleep(2 * digest.TICK_NS / 1e9)
    cache = tmp_path / "cache" / "hashes.json"
    assert FileHashes(cache.parent).of(paths) == [SHA256] * 5
    written = cache.stat()
    assert FileHashes(cache.parent).of(paths) == [SHA256] * 5
    assert hashed == ["sha256"] * 5
    assert cache.stat().st_ino == written.st_ino
    paths[0].write_bytes(BODY * 2)
    assert FileHashes(cache.parent)(paths[0]) != SHA256
    assert FileHashes(cache.parent)(paths[1], "md5") == hashlib.md5(BODY).hexdigest()


def test_edit_of_the_same_size_and_time_is_seen(tmp_path):
    path, hashes = tmp_path / "text", FileHashes(tmp_path / "cache")
    path.write_bytes(b"one")
    time.sleep(2 * digest.TICK_NS / 1e9)
    status, before = path.stat(), hashes(path)
    path.write_bytes(b"two")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert hashes(path) == hashlib.sha256(b"two").hexdigest() != before
    path.write_bytes(b"six")  # at once: in the tick of the edit before
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert hashes(path) == hashlib.sha256(b"six").hexdigest()


@pytest.mark.parametrize("content", [None, "{ not json", "[]"])
def test_unwritable_or_damaged_cache_is_no_error(tmp_path, content):
    (tmp_path / "text").write_bytes(BODY)
    (tmp_path / "file").touch()  # no user can make a folder in it
    hashes = FileHashes(tmp_path / "file" / "cache" if content is None else tmp_path)
    if content is not None:
        hashes.path.write_text(content)
    assert hashes(tmp_path / "text") == SHA256
