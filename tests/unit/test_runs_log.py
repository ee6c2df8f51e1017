"""Records of a run: metrics.jsonl and heads.jsonl, log.txt, results.json."""

import io
import json
import logging
import math
import warnings
from contextlib import closing, suppress
from dataclasses import fields

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headwise.errors import RunError
from headwise.runs.folder import RunFolder
from headwise.runs.log import LogFile, RunLog, text_log
from headwise.runs.record import Record
from headwise.runs.results import Results
from headwise.track.base import Tracker, head_metrics
from headwise.track.jsonl import JsonlWriter, encode_record, read_jsonl

STATISTICS = {
    "density": {"cross": [[0.5, None], [0.25, 0.75]]},
    "diversity": {"cross": [[0.4], []], "encoder_self": [[], [0.125]]},
}
HEADS = {
    "alpha": {"encoder_self": [[1.25, 1.5], [2.0, None]]},
    "density": {"cross": [[], [0.5, 0.75]]},
}

texts = st.text(st.characters(codec="utf-8"), max_size=20)
names = st.text(st.characters(codec="utf-8", exclude_characters="/"), max_size=20).filter(
    lambda name: name != "update"  # a number; Hypothesis also draws the words of our code
)
records = st.lists(st.dictionaries(names, st.one_of(texts, st.integers(), st.none())), max_size=8)


@settings(max_examples=60, deadline=None, derandomize=True)
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
    """A write of a part of a line, or of nothing."""

    class FullDisk(io.FileIO):
        is_full = False

        def write(self, line):
            return super().write(line[:4] if self.is_full else line)

    real_open = open
    with monkeypatch.context() as patch:
        of_writer = lambda path, mode, buffering: FullDisk(path, mode)  # noqa: E731
        patch.setattr("builtins.open", lambda *a, **k: (of_writer if k else real_open)(*a, **k))
        writer = JsonlWriter(tmp_path / "metrics.jsonl")
    writer.write({"update": 1})
    FullDisk.is_full = True
    with pytest.raises(RunError, match=r"metrics\.jsonl: no space left"):
        writer.write({"update": 2})
    FullDisk.is_full = False
    writer.write({"update": 3})
    assert [record["update"] for record in read_jsonl(writer.path)] == [1, 3]


BAD_RECORDS = {
    "not json": "not JSON",
    "[1]": "JSON object",
    "[" * 100_000: "not JSON",
    '{"update": "2"}': "update",
    '{"train/loss": []}': "train/loss has a value of a wrong type",
    '{"alpha": {"cross": [1.5]}}': "alpha has a value of a wrong type",
}


@pytest.mark.parametrize("line", BAD_RECORDS, ids=lambda line: line[:12])
def test_error_of_an_invalid_record_names_the_line(tmp_path, line):
    path = tmp_path / "metrics.jsonl"
    path.write_text(f'{{"update": 1}}\n{line}\n')
    with pytest.raises(
        RunError, match=rf"metrics\.jsonl, line 2: .*{BAD_RECORDS[line].removeprefix('line 2')}"
    ):
        read_jsonl(path)
    with pytest.raises(RunError, match=r"missing\.jsonl"):
        read_jsonl(tmp_path / "missing.jsonl")


class HeldScalars(Tracker):
    def __init__(self):
        self.metrics, self.heads = [], []

    def log(self, update, metrics):
        self.metrics.append((update, metrics))

    def log_heads(self, update, heads):
        self.heads.append(heads)


def test_statistics_of_layers_are_not_logged_as_heads(tmp_path):
    tracker, folder = HeldScalars(), RunFolder(tmp_path)
    records = RunLog(folder, tracker)
    records.log(2, {"train/loss": 2.0})
    records.log_heads(3, STATISTICS)
    records.log_heads(4, {"alpha": {"cross": [[1.5]]}})
    records.close()
    assert read_jsonl(folder.heads)[0] == {"update": 3, **STATISTICS}
    assert tracker.heads == [{"density": STATISTICS["density"]}, {"alpha": {"cross": [[1.5]]}}]
    prefix = "attention/diversity"
    expected = {f"{prefix}/cross/layer1": 0.4, f"{prefix}/encoder_self/layer2": 0.125}
    assert tracker.metrics == [(2, {"train/loss": 2.0}), (3, expected)]


def test_heads_are_numbered_from_one_and_missing_values_omitted():
    assert head_metrics(HEADS) == {
        "alpha/encoder_self/layer1/head1": 1.25,
        "alpha/encoder_self/layer1/head2": 1.5,
        "alpha/encoder_self/layer2/head1": 2.0,
        "attention/density/cross/layer2/head1": 0.5,
        "attention/density/cross/layer2/head2": 0.75,
    }
    # after pruning heads keep their numbers; values of a wrong number of heads are omitted
    head_numbers = {"encoder_self": [[2, 5], [3, 4]], "cross": [[], [1, 2, 4]]}
    assert head_metrics(HEADS, head_numbers) == {
        "alpha/encoder_self/layer1/head2": 1.25,
        "alpha/encoder_self/layer1/head5": 1.5,
        "alpha/encoder_self/layer2/head3": 2.0,
    }


def test_log_has_warnings_from_before_its_folder_and_the_error(tmp_path):
    with warnings.catch_warnings(), suppress(RunError), text_log() as held:
        warnings.simplefilter("always")
        warnings.warn("of Python", stacklevel=1)
        held.setTarget(LogFile(tmp_path))
        logging.getLogger("headwise.x").warning("of a part")
        raise RunError("the end")
    logging.getLogger("headwise.x").warning("after the run")
    text = (tmp_path / "log.txt").read_text(encoding="utf-8")
    parts = "UserWarning: of Python", "WARNING of a part", "ERROR RunError: the end"
    places = [text.find(part) for part in parts]
    assert -1 < places[0] < places[1] < places[2]
    assert "after the run" not in text


def test_full_disk_does_not_end_the_run(tmp_path, capsys):
    (tmp_path / "log.txt").symlink_to("/dev/full")
    with text_log() as held:
        held.setTarget(LogFile(tmp_path))
        logging.getLogger("headwise").warning("a line")
    assert "Traceback" not in capsys.readouterr().err


BLEU = {"score": 30.5, "signature": "tok:13a"}


def test_written_results_are_read_back(tmp_path):
    path = tmp_path / "results.json"
    assert Record(tmp_path).results is None
    alphas = {"cross": [[1.5, None]]}
    results = Results({"test": {"bleu": BLEU}}, alphas, updates=7, git={"commit": "c"})
    results.write(path)
    assert Record(tmp_path).results == results
    content = json.loads(path.read_text())
    assert content["status"] == "finished"
    # 0.1.0 refuses an unknown field as "of another version"; it knows all others
    assert content.keys() - {field.name for field in fields(Results)} == {"format"}
    del content["format"]  # as 0.1.0 wrote it
    path.write_text(json.dumps(content))
    assert Record(tmp_path).results == results
    assert (results.score("test", "bleu"), results.signature("test", "bleu")) == (30.5, "tok:13a")
    for split, metric in (("other", "bleu"), ("test", "chrf"), (None, "bleu")):
        assert results.score(split, metric) is results.signature(split, metric) is None


def test_unfinished_and_foreign_results_are_not_read(tmp_path):
    path = tmp_path / "results.json"
    Results(status="interrupted").write(path)
    assert Record(tmp_path).results is None
    path.write_text('{"status": "finished", "bleu": 3}')
    with pytest.raises(RunError, match=r"of another version: unknown bleu"):
        _ = Record(tmp_path).results
    wrong = {"scores": [], "updates": "3", "heads": {"density": {"cross": 1}}, "status": 3}
    for key, value in wrong.items():
        path.write_text(json.dumps({"status": "finished", key: value}))
        with pytest.raises(RunError, match=f"{key} has a value of a wrong type"):
            _ = Record(tmp_path).results
    path.write_text('{"format": 3, "status": "finished", "new_field": 1}')
    with pytest.raises(RunError, match=r"has format 3, written by a newer version.* up to 2"):
        _ = Record(tmp_path).results
    folder = RunFolder(tmp_path)
    folder.checkpoints.mkdir()
    for saved in ({"update": [], "train_seconds": 1.0}, {"update": 3}):
        (folder.checkpoints / "last.json").write_text(json.dumps(saved))
        with pytest.raises(RunError, match=r"last\.json is broken"):
            Record(tmp_path).last_saved()
