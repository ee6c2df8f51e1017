import gzip

import pytest

from headwise.data.sources.lines import file_pairs
from headwise.errors import DataError


def _pairs(folder, source, target):
    (folder / "a.de").write_bytes(source)
    (folder / "a.en").write_bytes(target)
    return list(file_pairs(folder / "a.de", folder / "a.en"))


def test_only_line_feeds_end_a_line(tmp_path):
    odd = "eins\u2028zwei\u0085drei\rvier\x0bfünf\x0csechs"
    pairs = _pairs(tmp_path, f"{odd}\nja\n".encode(), b"one\nyes\n")
    assert pairs == [(odd, "one"), ("ja", "yes")]


def test_windows_line_ends_and_byte_order_mark_are_removed(tmp_path):
    pairs = _pairs(tmp_path, b"\xef\xbb\xbfeins\r\nzwei\r\n", b"one\ntwo")
    assert pairs == [("eins", "one"), ("zwei", "two")]


@pytest.mark.parametrize("longer", ["source", "target"])
def test_misaligned_sides_name_both_counts(tmp_path, longer):
    sides = (b"1\n2\n3\n4\n5\n", b"1\n2\n3\n")
    first, second = sides if longer == "source" else sides[::-1]
    counts = "5 lines.* 3" if longer == "source" else "3 lines.* 5"
    with pytest.raises(DataError, match=counts):
        _pairs(tmp_path, first, second)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"eins\rzwei\r", r"a\.de ends its lines with carriage returns"),
        (b"eins\n" + b"e" * 2**21, r"a\.de, line 2: above 1048576 bytes"),
        ("eins\n".encode("utf-16-le"), r"a\.de, line 1: a NUL character"),
    ],
)
def test_text_without_one_sentence_per_line_is_refused(tmp_path, data, message):
    with pytest.raises(DataError, match=message):
        _pairs(tmp_path, data, b"one\ntwo\n")


@pytest.mark.parametrize("sides", [(b"", b"one\n"), (b"eins\n", b""), (b"", b"")])
def test_empty_file_is_refused(tmp_path, sides):
    with pytest.raises(DataError, match=r"is empty|misaligned"):
        _pairs(tmp_path, *sides)


def test_truncated_or_invalid_gzip_is_named(tmp_path):
    data = gzip.compress("".join(f"{i} {i * i}\n" for i in range(5000)).encode())
    (tmp_path / "b.de.gz").write_bytes(data[: len(data) // 2])
    (tmp_path / "b.en.gz").write_bytes(data)
    with pytest.raises(DataError, match=r"b\.de\.gz is truncated or damaged"):
        list(file_pairs(tmp_path / "b.de.gz", tmp_path / "b.en.gz"))
    (tmp_path / "b.de.gz").write_bytes(b"no gzip at all\n")
    with pytest.raises(DataError, match=r"b\.de\.gz is truncated or damaged"):
        list(file_pairs(tmp_path / "b.de.gz", tmp_path / "b.en.gz"))


def test_streams_without_reading_ahead(tmp_path):
    (tmp_path / "a.de").write_bytes(b"eins\n" * 10 + b"\xff\n")
    (tmp_path / "a.en").write_bytes(b"one\n" * 11)
    pairs = file_pairs(tmp_path / "a.de", tmp_path / "a.en")
    assert [next(pairs) for _ in range(10)] == [("eins", "one")] * 10
    with pytest.raises(DataError, match="line 11"):
        next(pairs)
