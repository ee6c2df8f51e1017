"""Statistics of heads after a run: logs, tracker, figures and tables."""

import numpy as np
import pandas as pd
import pytest
from omegaconf import OmegaConf

from headwise.analysis.collect import filled
from headwise.commands.outcome import alpha_table, draw, score_lines, shown_score, summary
from headwise.commands.training_run import Clock
from headwise.config.register import composed, typed
from headwise.runs.folder import RunFolder
from headwise.runs.log import RunLog
from headwise.runs.record import Record
from headwise.runs.results import Results
from headwise.studies.figures import drawn_from_records
from headwise.tasks.classification.metrics import confusion_figures
from headwise.tasks.task import task_of
from headwise.track.base import Tracker

CORPUS = "data=files", "data.source=de", "data.target=en"
STATISTICS = {
    "density": {"cross": [[0.5, None], [0.25, 0.75]]},
    "diversity": {"cross": [[0.4], []], "encoder_self": [[], [0.125]]},
}


class HeldImages(Tracker):
    def __init__(self):
        self.images = []

    def log_image(self, name, path):
        assert path.is_file()
        self.images.append(name)


def test_exact_searches_are_shown_as_percentages():
    assert shown_score({"exact": 0.5, "support": 4.0}).split()[:2] == ["50.00", "%"]


def test_scores_of_other_programs_in_old_runs_are_left_out():
    old = {"comet": {"score": 0.8, "command": "comet-score"}, "x": {"warning": "exit code 1"}}
    (line,) = score_lines("test", {"bleu": {"score": 1.5, "signature": "tok:13a"}, **old})
    assert "tok:13a" in line


@pytest.mark.parametrize("score", [{}, {"n_bytes": 9}, {"low": 1.0, "high": 2.0}])
def test_scores_are_shown_with_their_scope(score):
    shown = shown_score({"score": 1.5, "signature": "tok:13a", "scope": "beam 5", **score})
    assert "beam 5, " in shown
    assert shown.endswith("tok:13a")


@pytest.mark.parametrize("task", ["density", "masked_lm"])
@pytest.mark.parametrize(("windows", "scope"), [(0, ""), (128, "128 windows")])
def test_metrics_of_some_windows_say_so(task, windows, scope):
    config = typed(composed("data=text", f"task={task}", f"decode.max_windows={windows}"))
    assert {metric.scope for metric in task_of(config).metrics()} == {scope}


def test_loss_of_a_classifier_is_per_example():
    config = typed(composed("data=labelled", "data.dir=x"))
    metrics = {metric.name: metric for metric in task_of(config).metrics()}
    assert metrics["loss"].label == "loss per example"
    assert metrics["nll"].signature == "per example"


@pytest.mark.parametrize(
    ("overrides", "splits", "has_hint", "command"),
    [
        (["data=tinyshakespeare"], ["valid"], False, "sample"),  # has no other split
        (["data=text", "data.dir=x"], ["valid", "test"], False, "sample"),
        (["data=text", "data.dir=x", "data.test=[]"], ["valid"], True, "sample"),
        (CORPUS, ["valid", "test_a"], False, "translate"),  # data.test is empty, and means test*
        (CORPUS, ["valid"], True, "translate"),
    ],
)
def test_summary_names_the_next_command_and_what_is_not_scored(
    tmp_path, overrides, splits, has_hint, command
):
    OmegaConf.save(composed(*overrides), tmp_path / "config.yaml", resolve=True)
    results = Results({name: {} for name in splits}, updates=1, tokens=1, wall_seconds=1.0)
    lines = summary(RunFolder(tmp_path), results, task_of(composed(*overrides)).command)
    assert f"headwise {command} run={tmp_path}" in lines
    hint = f"not scored  a test set: headwise evaluate run={tmp_path} 'data.test=[NAME]'"
    assert (hint in lines.splitlines()) == has_hint
    assert has_hint or "not scored" not in lines


def test_summary_has_the_seconds_outside_training(tmp_path, monkeypatch):
    times = iter([10.0, 14.0, 20.0])
    monkeypatch.setattr("time.perf_counter", lambda: next(times))
    clock = Clock(started=1.0)
    clock.end("start")
    clock.end("validations", training=3.0)
    clock.end("evaluation")
    assert clock.seconds == {"start": 9.0, "validations": 1.0, "evaluation": 6.0}
    OmegaConf.save(composed(*CORPUS), tmp_path / "config.yaml", resolve=True)
    results = Results({"valid": {}}, wall_seconds=3.0, other_seconds=clock.seconds)
    shown = summary(RunFolder(tmp_path), results).splitlines()
    assert "16 s outside training: start 9, validations 1, evaluation 6" in shown


@pytest.mark.parametrize("first", [1.5, None])
def test_missing_alphas_are_filled_with_mean_alphas(first):
    mean = {"cross": [[None, 1.25], [1.75, 1.125]], "encoder_self": [[1.0625]]}
    learned = {} if first is None else {"cross": [[first, None], []]}
    expected = {"cross": [[first, 1.25], [1.75, 1.125]], "encoder_self": [[1.0625]]}
    assert filled(learned, mean) == expected


def test_figures_of_recorded_statistics(tmp_path, monkeypatch, caplog):
    tracker, folder = HeldImages(), RunFolder(tmp_path)
    OmegaConf.save(composed(*CORPUS), tmp_path / "config.yaml", resolve=True)
    records = RunLog(folder, Tracker())
    records.log(1, {"train/loss": 2.0})
    records.log_heads(1, {**STATISTICS, "p of/ours": {"cross": [[0.5, None]]}})
    records.log_heads(2, {"key_distance": {"cross": [[0.5, 0.25]]}})
    records.close()
    draw(folder, tracker)
    names = ["diversity", "heads-p-of-ours", "curves"]
    assert tracker.images == [f"figures/{name}" for name in names]
    file_names = sorted(path.name for path in folder.figures.iterdir())
    assert file_names == sorted(f"{name}.{kind}" for name in names for kind in ("png", "svg"))
    monkeypatch.setattr("headwise.plots.training.trajectories", None)  # a figure that fails
    tracker.images.clear()
    draw(folder, tracker)
    assert tracker.images == ["figures/curves"]
    assert "the figure diversity is left out (TypeError: " in caplog.text


def test_figures_number_pruned_heads(tmp_path):
    """Only heads with a number are drawn: a layer of two numbers and three values has no line."""
    settings = composed(*CORPUS, "model.heads={cross:[[2,5],[1]]}")
    OmegaConf.save(settings, tmp_path / "config.yaml", resolve=True)
    values = {"cross": [[1.25, 1.5], [1.0, 2.0, 1.5]]}
    RunLog(RunFolder(tmp_path)).log_heads(1, {"alpha": values})
    axes, *_ = drawn_from_records(Record(tmp_path))["alpha"].axes
    of_values = [line for line in axes.lines if len(line.get_ydata()) == 1]
    assert [line.get_ydata()[0] for line in of_values] == [1.25, 1.5]


def test_table_has_a_row_per_layer_and_a_column_per_head():
    table = alpha_table({"encoder_self": [[2.0, 1.5]], "cross": [[1.25, 1.75], [1.0, None]]})
    rows = [line.split() for line in table.splitlines()]
    assert rows == [
        ["site", "layer", "head1", "head2", "mean"],
        ["encoder_self", "1", "2.000", "1.500", "1.750"],
        ["cross", "1", "1.250", "1.750", "1.500"],
        ["cross", "2", "1.000", "-", "1.000"],
    ]
    assert len({len(line) for line in table.splitlines()}) == 1  # columns are aligned
    pruned = alpha_table({"cross": [[1.25, 1.75], [], [1.0, 2.0]]}, {"cross": [[2, 5], [], [1, 5]]})
    assert [line.split() for line in pruned.splitlines()] == [
        ["site", "layer", "head1", "head2", "head5", "mean"],
        ["cross", "1", "-", "1.250", "1.750", "1.500"],
        ["cross", "3", "1.000", "-", "2.000", "1.500"],
    ]


def test_names_of_classes_stay_text(tmp_path):
    labels = ["NA", "None", "null", "nan", "1.0", "true"]
    counts = pd.DataFrame(np.eye(6, dtype=int), labels, labels).to_csv(index_label="label")
    (tmp_path / "predictions").mkdir()
    (tmp_path / "predictions" / "test.confusion.csv").write_text(counts)
    axes, *_ = confusion_figures(Record(tmp_path), "")["confusion-test"].axes
    for shown in (axes.get_xticklabels(), axes.get_yticklabels()):
        assert [label.get_text() for label in shown] == labels
    assert (axes.collections[0].get_array() == np.eye(6)).all()
