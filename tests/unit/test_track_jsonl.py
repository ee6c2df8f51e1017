"""Logs of a run: a resumed run neither loses nor repeats records."""

import json
import math
from contextlib import closing

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headwise.errors import RunError
from headwise.track.jsonl import JsonlWriter, encode_record, read_jsonl

texts = st.text(st.characters(codec="utf-8"), max_size=20)
names = st.text(st.characters(codec="utf-8", exclude_characters="/"), max_size=20).filter(
    lambda name: name != "update"  # a number; Hypothesis also draws the words of our code
)
records = st.lists(st.dictionaries(names, st.one_of(texts, st.integers(), st.none())), max_size=8)


@settings(max_examples=60, deadline=None)
@given(records=records, n_kept=st.integers(0, 8), torn=st.binary(max_size=9), data=st.data())
def test_rewound_log_equals_an_uninterrupted_log(tmp_path_factory, records, n_kept, torn, data):
    n_kept = min(n_kept, len(records))
    folder = tmp_path_factory.mktemp("jsonl")
    uninterrupted, resumed = folder / "uninterrupted.jsonl", folder / "resumed.jsonl"
    with closing(JsonlWriter(uninterrupted)) as writer:
        for record in records:
            writer.write(record)
    n_written = data.draw(st.integers(n_kept, len(records)))  # after the checkpoint, then lost
    with closing(JsonlWriter(resumed)) as writer:
        for record in records[:n_written]:
            writer.write(record)
    with open(resumed, "ab") as tail:
        tail.write(torn.replace(b"\n", b""))  # the process was killed in the middle of a line
    with closing(JsonlWriter(resumed)) as writer:
        assert writer.n_lines == n_written
        writer.rewind(n_kept)
        assert writer.n_lines == n_kept
        for record in records[n_kept:]:
            writer.write(record)
    assert resumed.read_bytes() == uninterrupted.read_bytes()
    assert read_jsonl(resumed) == records


def test_incomplete_last_line_is_ignored_and_removed_on_opening(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"update": 1}\n{"upd')
    assert read_jsonl(path) == [{"update": 1}]
    JsonlWriter(path).write({"update": 2})
    assert read_jsonl(path) == [{"update": 1}, {"update": 2}]


def test_fewer_lines_than_the_checkpoint_has_are_rejected(tmp_path):
    writer = JsonlWriter(tmp_path / "metrics.jsonl")
    writer.write({"update": 1})
    with pytest.raises(RunError, match=r"1 complete lines.* after 2"):
        writer.rewind(2)
    assert writer.n_lines == 1
    assert len(read_jsonl(writer.path)) == 1


def test_nonfinite_values_are_listed_and_omitted():
    record = {
        "update": np.int64(3),
        "train/loss": math.nan,
        "train/norm": torch.tensor(1.5),
        "alpha": {"cross": [[1.25, math.inf], torch.tensor([1.0, 2.0])]},
    }
    line = encode_record(record)
    assert b"NaN" not in line
    assert b"Infinity" not in line
    assert json.loads(line) == {
        "update": 3,
        "train/norm": 1.5,
        "alpha": {"cross": [[1.25, None], [1.0, 2.0]]},
        "nonfinite": ["train/loss", "alpha.cross.1.2"],
    }
    with pytest.raises(TypeError, match="not JSON serializable"):
        encode_record({"callback": object()})


def test_full_disk_loses_no_record(tmp_path, monkeypatch):
    writer = JsonlWriter(tmp_path / "metrics.jsonl")
    writer.write({"update": 1})

    class FullDisk:
        def __init__(self, file):
            self.file = file

        def __getattr__(self, name):
            return getattr(self.file, name)

        def write(self, line):
            return self.file.write(line[:4])

    working = writer._file
    monkeypatch.setattr(writer, "_file", FullDisk(working))
    with pytest.raises(RunError, match=r"metrics\.jsonl: no space left"):
        writer.write({"update": 2})
    monkeypatch.setattr(writer, "_file", working)
    writer.write({"update": 3})
    assert [record["update"] for record in read_jsonl(writer.path)] == [1, 3]


def test_error_of_an_invalid_record_names_the_line(tmp_path):
    with pytest.raises(RunError, match=r"missing\.jsonl"):
        read_jsonl(tmp_path / "missing.jsonl")
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"update": 1}\nnot json\n')
    with pytest.raises(RunError, match="line 2"):
        read_jsonl(path)
    for text, message in (
        ("[1]", "JSON object"),
        ("[" * 100_000, "not JSON"),
        ('{"update": "2"}', "update"),
        ('{"train/loss": []}', "train/loss has a value of a wrong type"),
        ('{"alpha": {"cross": [1.5]}}', "alpha has a value of a wrong type"),
    ):
        path.write_text(f"{text}\n")
        with pytest.raises(RunError, match=message):
            read_jsonl(path)
