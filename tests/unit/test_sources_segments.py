import io

import pytest

from corpus_writers import iwslt_xml, wmt_sgm
from headwise.data.sources.segments import aligned_segments, read_segments, unescape
from headwise.errors import DataError


def _read(data):
    return read_segments(io.BytesIO(data), "side")


def _align(source, target):
    return list(aligned_segments(_read(source), _read(target), "src", "ref"))


def test_iwslt_xml_and_entities():
    lines = ["Tom & Jerry <sind> da", "AT&T &c", 'sie sagt "x"']
    assert [s.text for s in _read(iwslt_xml(lines, "de"))] == lines


def test_only_complete_entities_are_unescaped():
    assert unescape("R&D &not; &#39;a&#x27; &amp;lt; &copy &unknownthing;") == (
        "R&D ¬ 'a' &lt; &copy &unknownthing;"
    )


def test_sides_align_by_document_not_by_order():
    source, target = [f"s{i}" for i in range(5)], [f"t{i}" for i in range(5)]
    pairs = _align(wmt_sgm(source), wmt_sgm(target, reverse=True))
    assert pairs == list(zip(source, target, strict=True))
    reversed_source = wmt_sgm(source, reverse=True)
    in_order = [segment.text for segment in _read(reversed_source)]
    assert in_order != source
    assert _align(reversed_source, wmt_sgm(target)) == [
        (text, text.replace("s", "t")) for text in in_order
    ]


def test_documents_named_differently_align_by_order():
    pairs = _align(iwslt_xml(["a", "b"], "de", "7"), iwslt_xml(["x", "y"], "en", "99"))
    assert pairs == [("a", "x"), ("b", "y")]


def _documents(texts, tag):
    """Write one document per letter, each with one segment."""
    return "".join(f'<doc {tag}><seg id="1">{text}</seg></doc>\n' for text in texts).encode()


@pytest.mark.parametrize("tag", ["", 'docid="7"'])
def test_documents_without_distinct_names_align_by_order(tag):
    pairs = _align(_documents("abc", tag), _documents("xyz", tag))
    assert pairs == [("a", "x"), ("b", "y"), ("c", "z")]


@pytest.mark.parametrize("tag", ["", 'docid="7"'])
@pytest.mark.parametrize(("source", "target"), [("ab", "x"), ("a", "xy")])
def test_repeated_document_on_one_side_is_misaligned(source, target, tag):
    with pytest.raises(DataError, match=r"misaligned.*document 1, segment '1'"):
        _align(_documents(source, tag), _documents(target, tag))


def test_segments_over_several_lines_and_loose_quoting():
    data = b"<doc docid=1>\n<hl><seg id=1>one\ntwo</seg></hl>\n<SEG ID='2'> three </SEG></doc>\n"
    assert [(s.number, s.text) for s in _read(data)] == [("1", "one two"), ("2", "three")]


@pytest.mark.parametrize("longer", [0, 1])
def test_missing_segment_is_named(longer):
    sides = [wmt_sgm(["a", "b", "c"]), wmt_sgm(["x", "y", "z", "w"])]
    if longer == 0:
        sides.reverse()
    with pytest.raises(DataError, match=r"misaligned.*document 'paper\.2', segment '2'"):
        _align(*sides)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"just text\n", "has no <seg>"),
        (b"", "has no <seg>"),
        (b'<doc docid="1"><seg id="1">a</seg><seg id="1">b</seg></doc>', "occurs twice"),
        (b'<doc docid="1">\n<seg id="1">\xff</seg></doc>', "line 2: not UTF-8"),
    ],
)
def test_invalid_files_are_refused(data, message):
    with pytest.raises(DataError, match=message):
        _read(data)
