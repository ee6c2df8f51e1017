"""TensorBoard shows what the records of a run hold, also after a resume."""

import sys

import numpy as np
import pytest

from headwise.errors import ConfigError
from headwise.runs.folder import RunFolder
from headwise.runs.log import RunLog
from headwise.track.base import head_metrics
from headwise.track.jsonl import read_jsonl
from headwise.track.tensorboard_tracker import TensorBoardTracker


def process(run, n_lines, updates=()):
    """Log updates as a process that resumes with `n_lines` and is then killed."""
    tracker = TensorBoardTracker(tags=["of an experiment"])
    tracker.start(run, None, {"seed": 1})
    records = RunLog(RunFolder(run), tracker)
    records.rewind(n_lines - 1, n_lines, n_lines)
    for update in updates:
        records.log(update, {"train/loss": 1 / (1 + update), "train/lr": float("nan")})
        alpha = {"cross": [[1 + 1 / (1 + update), None], [1.5, 2.0]]}
        records.log_heads(update, {"alpha": alpha})
    records.close()
    return tracker


def test_tags_are_those_of_the_records_once_each(tmp_path):
    from PIL import Image
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    process(tmp_path, 0, range(4))  # killed before a checkpoint
    process(tmp_path, 0, range(7))  # killed after that of update 4
    process(tmp_path, 5, range(5, 10))
    tracker = process(tmp_path, 10)  # killed after the last update
    Image.new("RGBA", (8, 8)).save(tmp_path / "alpha.png")
    tracker.log_image("figures/alpha", tmp_path / "alpha.png")
    tracker.log_table("hypotheses/test", ["source", "hypothesis"], [["ein Hund", "a|dog"]])
    tracker.summary({"test/bleu": 33.0})
    tracker.finish("finished")

    events = EventAccumulator(str(tmp_path / "tensorboard"), {"scalars": 0, "histograms": 0})
    tags = events.Reload().Tags()
    expected = {"summary/test/bleu": {9: 33.0}}
    for record in (r for n in ("metrics", "heads") for r in read_jsonl(tmp_path / f"{n}.jsonl")):
        for tag, value in {**record, **head_metrics({"alpha": record.pop("alpha", {})})}.items():
            if "/" in tag:
                expected.setdefault(tag, {})[record["update"]] = float(np.float32(value))
    logged = {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in tags["scalars"]}
    del logged["train/lr"]  # nan, which the record omits
    assert logged == {tag: list(values.items()) for tag, values in expected.items()}
    histograms = events.Histograms("alpha/cross/histogram")
    assert [(e.step, e.histogram_value.num) for e in histograms] == [(u, 3) for u in range(10)]
    assert tags["images"] == ["figures/alpha"]
    assert tags["tensors"] == ["config/text_summary", "hypotheses/test/text_summary"]


def test_folder_that_cannot_be_written_does_not_end_the_run(tmp_path, caplog):
    (tmp_path / "tensorboard").write_text("a file")
    process(tmp_path, 0, range(2)).finish("finished")
    assert caplog.text.count("TensorBoard logging stopped") == 1


def test_missing_package_is_an_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(ConfigError, match=r"headwise\[tensorboard\]"):
        TensorBoardTracker().check()
