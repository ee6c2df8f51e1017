"""Contract of every task, on the built-in and synthetic data that name it, before data is read."""

import re
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest

from command_line import composer
from headwise.config.folders import group_choices, group_node
from headwise.config.register import typed
from headwise.tasks.check import checked_task, resolve
from headwise.tasks.evaluate import main_metric
from headwise.tasks.task import Part, Task, TrainedRun, task_of

SMALL = ("model=tiny", "model.d_model=16", "model.n_heads=2", "model.d_ff=16", "tokenizer=byte")


def cases():
    """Built-in data with each task that they name, or with the one that they select."""
    with composer() as make:
        for data in group_choices("data"):
            if not (data.startswith("builtin") or "rows" in group_node("data", data)):
                continue
            config = typed(make([f"data={data}"]))
            tasks = getattr(config.data, "tasks", None) or [task_of(config).name]
            yield from ((data, task) for task in tasks)


CASES = list(cases())


FAST = {(data, task) for data, task in CASES if task != "sequence"} | {("copy", "sequence")}


@pytest.fixture(
    params=[
        pytest.param(c, marks=() if c in FAST else pytest.mark.slow, id="-".join(c)) for c in CASES
    ]
)
def task(request):
    data, name = request.param
    with composer() as make:
        task = checked_task(typed(make([f"data={data}", f"task={name}", *SMALL])))
    assert task.name == name
    return task


def test_every_task_has_built_in_data():
    assert {name for _, name in CASES} == set(group_choices("task"))


def test_the_first_metric_is_monitored_and_all_are_validated(task):
    names = [metric.name for metric in task.metrics()]
    assert len(set(names)) == len(names)
    assert "loss" in names
    assert resolve(task)["trainer"]["monitor"] == names[0] == main_metric(task).name
    assert [metric.name for metric in task.quick().metrics()] == names


def test_the_model_has_the_sites_and_reads_the_columns(task):
    model = task.model(task.sizes())
    assert model.sites == task.sites()
    assert {name for site in model.sites for name in (site.queries, site.keys)} <= set(
        model.columns
    )


def test_other_settings_leave_the_task_itself_unchanged(task):
    trainer = replace(task.config.trainer, max_tokens=7)
    for other in (task.changed(trainer=trainer), task.quick(), task.plain()):
        assert type(other) is type(task)
        assert {**vars(other), "config": None} == {**vars(task), "config": None}
    assert task.changed(trainer=trainer).config.trainer.max_tokens == 7
    assert task.config.trainer.max_tokens != 7


def test_a_command_of_the_task_belongs_to_a_run_of_its_own(task):
    assert issubclass(task.run, TrainedRun)
    has_method = hasattr(task.run, task.command) or hasattr(task, f"{task.command}s")
    assert has_method or not task.command


def prepared(task):
    return task.prepare(task.open(Path(task.config.paths.cache)))


def test_the_hashes_of_a_split_are_independent_of_the_batches(task):
    """Also those of a task that does not define them."""
    data = prepared(task)
    split = task.config.data.valid
    smaller = task.changed(trainer=replace(task.config.trainer, max_tokens=300))
    sizes = {len(one.batches(data, Part(split))) for one in (task, smaller)}
    assert len(sizes) == 2
    for contents in (type(task).contents, Task.contents):
        before, after = (contents(one, data, split) for one in (task, smaller))
        assert before == after
        assert all(re.fullmatch("[0-9a-f]{16}", digest) for digest in before)


TEXT, MASKED = "data=builtin_text", "data=builtin_text task=masked_lm"


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("data=copy", "data=sort", []),
        ("data=copy", "data=copy data.rows.symbols=8", []),
        ("data=copy", "data=copy task.layout=encoder_decoder", ["content", "items"]),
        ("data=builtin", "data=builtin tokenizer=char", ["content", "items"]),
        (TEXT, f"{TEXT} data.seed=2", []),
        (TEXT, f"{TEXT} decode.min_context=8", ["content"]),
        (TEXT, f"{TEXT} decode.window=32", ["content"]),
        (TEXT, f"{TEXT} decode.max_windows=3", ["content"]),
        (TEXT, f"{TEXT} tokenizer=char", ["content"]),
        (TEXT, MASKED, ["content"]),
        (MASKED, f"{MASKED} task.mlm_probability=0.3", ["content"]),
        ("data=builtin_labelled", "data=builtin_labelled tokenizer=char", ["content", "items"]),
    ],
)
def test_hashes_differ_where_content_or_items_do(one, other, same, make):
    tasks = [checked_task(typed(make([*SMALL, *words.split()]))) for words in (one, other)]
    hashes = [task.contents(prepared(task), task.config.data.valid) for task in tasks]
    names = zip(("content", "items"), *hashes, strict=True)
    assert [name for name, a, b in names if a == b] == same


def test_paths_of_a_run_are_logged_before_its_data_is_opened(make, monkeypatch):
    task = checked_task(typed(make(["data=builtin_text"])))
    monkeypatch.setattr("headwise.tasks.task.log_paths", Mock(side_effect=InterruptedError))
    with pytest.raises(InterruptedError):
        task.reopened(None)
