import gzip
import json

import pandas
import pyarrow
import pyarrow.parquet
import pytest

from corpus_writers import encode_lines, translations, write_parquet
from headwise.data.sources.tables import find_table, table_pairs
from headwise.errors import DataError

PAIRS = [('er sagt "ja"', "he says yes"), ("gut", "good"), ("schön", "nice")]


def _rows(flat):
    if flat:
        return [{"en": en, "de": de, "id": i} for i, (de, en) in enumerate(PAIRS)]
    return list(translations(("de", "en"), PAIRS))


@pytest.mark.parametrize("flat", [True, False])
@pytest.mark.parametrize("ending", ["parquet", "jsonl", "jsonl.gz"])
def test_columns_are_read_by_language(tmp_path, ending, flat):
    path = tmp_path / f"train.{ending}"
    if ending == "parquet":
        write_parquet(path, _rows(flat))
    else:
        data = encode_lines(["", *map(json.dumps, _rows(flat)), ""])  # empty lines are no records
        path.write_bytes(gzip.compress(data) if ending.endswith("gz") else data)
    paths = find_table(tmp_path, "train")
    assert list(table_pairs(paths, "de", "en")) == PAIRS
    assert list(table_pairs(paths, "en", "de")) == [(en, de) for de, en in PAIRS]


def test_only_cells_that_are_quoted_for_their_quotes_are_unquoted(tmp_path):
    texts = ['sagt "x"', '"Ja."', '"', 'lone "', 'a "" b', '"a" und "b"', "plain"]
    pandas.DataFrame({"de": texts, "en": texts}).to_csv(tmp_path / "a.tsv", sep="\t", index=False)
    literal = ['a "b"', '"Ja."', '"a" oder "b"', '"a', 'b ""', '"a "" b', '"a "b"" c"', '""', '"""']
    data = encode_lines(["en\tnote\tde", *(f"{text}\tx\t{text}" for text in literal)])
    (tmp_path / "b.tsv.gz").write_bytes(gzip.compress(data))
    for name, expected in (("a.tsv", texts), ("b.tsv.gz", literal)):
        assert [de for de, _ in table_pairs([tmp_path / name], "de", "en")] == expected


@pytest.mark.parametrize(
    ("ending", "before", "after"),
    [
        ("jsonl", '{"en": "b", "de": "', '"}'),
        ("tsv", "de\ten\n", "\tb\n\n"),
        ("csv", "de,en\n", ",b\n"),
    ],
)
def test_row_may_be_a_book(tmp_path, ending, before, after):
    book, path = "ä" * 600_000, tmp_path / f"a.{ending}"
    path.write_text(f"{before}{book}{after}", encoding="utf-8")
    assert list(table_pairs([path], "de", "en")) == [(book, "b")]


def test_maps_of_parquet_are_read(tmp_path):
    kind = pyarrow.map_(pyarrow.string(), pyarrow.string())
    column = pyarrow.array([[("de", de), ("en", en)] for de, en in PAIRS], kind)
    pyarrow.parquet.write_table(pyarrow.table({"translation": column}), tmp_path / "a.parquet")
    assert list(table_pairs([tmp_path / "a.parquet"], "de", "en")) == PAIRS


FORMS = "train-{}", "train-{}-0123456789abcdef", "train/train-{}"
LAYOUTS = [f"{form.format('{:05d}-of-00003')}.parquet" for form in FORMS]


@pytest.mark.parametrize("layout", [*LAYOUTS, "train/{:04d}.parquet"])
def test_shards_are_read_in_order(tmp_path, layout):
    for number, row in enumerate(_rows(flat=False)):
        write_parquet(tmp_path / layout.format(number), [row])
    (tmp_path / layout).with_name("._0000.parquet").write_bytes(b"hidden, of another system")
    assert list(table_pairs(find_table(tmp_path, "train"), "de", "en")) == PAIRS


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("missing", range(3))
def test_missing_shard_is_named(tmp_path, missing, layout):
    for number in {0, 1, 2} - {missing}:
        write_parquet(tmp_path / layout.format(number), _rows(flat=False))
    with pytest.raises(DataError, match=f"expected 3, missing numbers: {missing}$"):
        find_table(tmp_path, "train")
    assert find_table(tmp_path, "t*n") == []  # a name is not a glob pattern


def test_shards_of_a_longer_name_are_another_table(tmp_path):
    rows = _rows(flat=False)
    for name in ("train", "train-noisy", "train-2-of-3"):
        for number in range(2):
            write_parquet(tmp_path / f"{name}-{number:05d}-of-00002.parquet", rows[number:][:1])
    for name in ("train", "train-noisy", "train-2-of-3"):
        assert list(table_pairs(find_table(tmp_path, name), "de", "en")) == PAIRS[:2], name


@pytest.mark.parametrize("names", ["a1-00000-of-00001 a2-00000-of-00001", "train test"])
def test_tables_of_a_folder_are_not_joined(tmp_path, names):
    for name in names.split():
        write_parquet(tmp_path / "data" / f"{name}.parquet", _rows(flat=False))
    with pytest.raises(DataError, match=r"has several tables.*set data\.dir=.*/data "):
        find_table(tmp_path, "data")


def test_shards_of_two_releases_are_refused(tmp_path):
    for stem, second in ("train", "00001-of-00003"), ("test", "0-of-00002"):
        for name in ("00000-of-00002", "00001-of-00002", second):
            write_parquet(tmp_path / f"{stem}-{name}.parquet", _rows(flat=False))
        with pytest.raises(DataError, match=r"has 3 Parquet shards.*expected 2, missing.*none"):
            find_table(tmp_path, stem)


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("a.tsv", b"de\tfr\nx\ty\n", "no columns 'en'; got de, fr"),
        ("a.tsv", b"gut\tgood\n", "first line of a .tsv .*must be de⇥en"),
        ("a.tsv", b"de\ten\nx\n", r"line 2: 1 cells, the header has 2"),
        ("a.tsv", b"de\ten\n", "is empty"),
        ("a.jsonl", b'{"de": "x"}\n', r"line 1: no text for language 'en'; got de"),
        ("a.jsonl", b'{"de": "x", "en": null}\n', "no text for language 'en'"),
        ("a.jsonl", b'{"de": "x", "en": "y"}\n{"de": \n', "line 2: not JSON"),
        ("a.jsonl", b"[1]\n", "line 1: not a JSON object"),
        ("a.jsonl", b'{"de": "\xff", "en": "y"}\n', "line 1: not UTF-8"),
        ("a.jsonl", b"[" * 100_000 + b"\n", "line 1: not JSON"),
        ("a.jsonl", rb'{"de": "\ud800", "en": "y"}' + b"\n", "line 1: half of a surrogate pair"),
        ("a.jsonl", rb'{"de": "\u0000", "en": "y"}' + b"\n", "line 1: a NUL character"),
        ("a.parquet", b"PAR1 but not really", "truncated, not Parquet"),
        ("a.parquet", b"", "truncated, not Parquet"),
    ],
)
def test_invalid_tables_are_refused(tmp_path, name, data, message):
    path = tmp_path / name
    path.write_bytes(data)
    with pytest.raises(DataError, match=message) as caught:
        list(table_pairs([path], "de", "en"))
    assert name in str(caught.value)


def test_parquet_with_two_columns_of_a_name_or_no_utf8_is_refused(tmp_path):
    path = tmp_path / "a.parquet"
    good, bad = (pyarrow.array([text]).cast("string", safe=False) for text in (b"x", b"\xff"))
    for columns, message in ({"de": good, "en": bad}, "not UTF-8"), ([good] * 3, "2 columns 'en'"):
        names = None if isinstance(columns, dict) else ["de", "en", "en"]
        pyarrow.parquet.write_table(pyarrow.table(columns, names=names), path)
        with pytest.raises(DataError, match=message):
            list(table_pairs([path], "de", "en"))


def test_line_ends_inside_a_cell_become_spaces(tmp_path):
    write_parquet(tmp_path / "a.parquet", [{"de": "eins\nzwei", "en": "one\r\ntwo"}])
    assert list(table_pairs([tmp_path / "a.parquet"], "de", "en")) == [("eins zwei", "one two")]
