"""Contract of every task and of every synthetic sequence, found by yaml, before data is read."""

import re
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest

from headwise.config.instantiate import instantiate
from headwise.config.register import group_choices, group_node, typed
from headwise.errors import ConfigError
from headwise.tasks.check import checked_task, resolve
from headwise.tasks.sequence.batches import Layout, evaluation_row
from headwise.tasks.sequence.rows import Rows
from headwise.tasks.task import Part, Task, TrainedRun, task_of

SMALL = ("model=tiny", "model.d_model=16", "model.n_heads=2", "model.d_ff=16", "tokenizer=byte")
FEW = {"builtin": "data.max_train_pairs=300", "builtin_text": "data.n_train=300"}  # of 30,000

NODES = {name: group_node("data", name) for name in group_choices("data")}
SEQUENCES = [name for name, node in NODES.items() if "rows" in node]
BUILT_IN = [name for name in NODES if name.startswith("builtin")]
CASES = [  # data and a task that it names; None: the one that it selects
    *((data, task) for data in BUILT_IN for task in NODES[data].get("tasks", [None])),
    *((data, None) for data in SEQUENCES),
]


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(
            case,
            marks=pytest.mark.slow if case[0] in set(SEQUENCES) - {"copy"} else (),
            id="-".join(filter(None, case)),
        )
        for case in CASES
    ],
)
def task(request, make):
    data, name = request.param
    selected = [f"task={name}"] if name else []
    few = [FEW[data]] if data in FEW else []
    return checked_task(typed(make([f"data={data}", *selected, *few, *SMALL])))


def test_every_task_has_built_in_data(make):
    fast = [(data, name) for data, name in CASES if data in (*BUILT_IN, "copy")]
    tasks = {name or task_of(typed(make([f"data={data}"]))).name for data, name in fast}
    assert tasks == set(group_choices("task"))


def test_the_first_metric_is_monitored_and_all_are_validated(task):
    names = [metric.name for metric in task.metrics()]
    assert len(set(names)) == len(names)
    assert "loss" in names
    resolve(task)
    assert task.config.trainer.monitor == names[0] == task.metric.name
    assert [metric.name for metric in task.quick().metrics()] == names


def test_the_model_has_the_sites_and_reads_the_columns(task):
    model = task.model(task.sizes())
    assert model.sites == task.sites()
    assert {name for site in model.sites for name in (site.queries, site.keys)} <= set(
        model.columns
    )


def test_other_settings_leave_the_task_itself_unchanged(task):
    trainer = replace(task.config.trainer, max_tokens=7)
    for other in (task.changed(trainer=trainer), task.quick()):
        assert type(other) is type(task)
        assert {**vars(other), "config": None} == {**vars(task), "config": None}
    assert task.changed(trainer=trainer).config.trainer.max_tokens == 7
    assert task.config.trainer.max_tokens != 7


def test_a_command_of_the_task_belongs_to_a_run_of_its_own(task):
    assert issubclass(task.run, TrainedRun)
    owners = [(task.run, task.command), (task, f"{task.command}s")]
    assert any(hasattr(*one) for one in owners) == bool(task.command)


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


PAIRS, TEXT = (f"data={name} {words}" for name, words in FEW.items())
MASKED = f"{TEXT} task=masked_lm"


ENCODER_DECODER = "task.layout=encoder_decoder model.share_embeddings=none"


def test_queries_of_the_encoder_are_shown_for_short_targets(make):
    task = checked_task(typed(make([*SMALL, "data=recall", *ENCODER_DECODER.split()])))
    (row,) = task.shown(None, Part("200")).first(1)
    encoder, *_ = task.sites()
    n_source, n_target = (column.ids_BN.shape[1] for column in row.batch.columns.values())
    assert n_target < 64 < n_source
    assert len(row.axes(encoder).queries) >= 64


def test_one_table_for_two_vocabularies_is_refused(make):
    layout = ENCODER_DECODER.split()[0]
    with pytest.raises(ConfigError, match=r"^model\.share_embeddings must be") as error:
        checked_task(typed(make([*SMALL, "data=copy", layout])))
    assert "tokenizer" not in str(error.value)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("data=copy", "data=sort", []),
        ("data=copy", "data=copy data.rows.symbols=8", []),
        ("data=copy", f"data=copy {ENCODER_DECODER}", ["content", "items"]),
        (PAIRS, f"{PAIRS} tokenizer=char", ["content", "items"]),
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


def test_paths_of_a_run_are_logged_before_its_data_is_opened(make, tmp_path, caplog):
    task = checked_task(typed(make(["data=builtin_text", f"paths.cache={tmp_path}"])))
    task.open = Mock(side_effect=InterruptedError)
    with caplog.at_level("INFO"), pytest.raises(InterruptedError):
        task.reopened(None)
    assert str(tmp_path) in caplog.text


# -- rows of synthetic sequences --------------------------------------------------------------

LENGTHS = 20, 64, 257
every_sequence = pytest.mark.parametrize("name", SEQUENCES)


def rows_of(name):
    return instantiate(NODES[name]["rows"], "rows", Rows)


@every_sequence
def test_a_row_is_a_function_of_seed_number_and_length(name):
    def arrays(rows, *numbers):
        row = evaluation_row(rows, *numbers)
        return [array.tolist() for array in vars(row).values()]

    rows = rows_of(name)
    first = arrays(rows, 64, 3, 1)
    assert first != arrays(rows, 64, 4, 1) != arrays(rows, 64, 4, 2)
    assert first == arrays(rows, 64, 3, 1) == arrays(rows_of(name), 64, 3, 1)


@every_sequence
def test_arrays_of_a_row_fit(name):
    rows = rows_of(name)
    for length in LENGTHS:
        row = evaluation_row(rows, length, 0)
        n, n_targets = len(row.source_N), len(row.target_T)
        assert abs(n - length) <= 1
        assert len(row.scored_T) == len(row.relevant_T) == n_targets
        assert row.scored_T.dtype == np.bool_
        assert row.scored_T.any()
        ids = np.concatenate([row.source_N, row.target_T])
        assert ids.dtype == row.relevant_T.dtype == np.int64
        assert 0 <= ids.min() <= ids.max() < rows.n_ids
        assert -1 <= row.relevant_T.min() <= row.relevant_T.max() < n
        if rows.in_place:  # nothing is relevant that is not read yet
            assert n_targets == n
            assert (row.relevant_T <= np.arange(n)).all()


@every_sequence
def test_scored_positions_predict_the_targets(name):
    layout = Layout(rows_of(name), ("tokens",))
    rows = [evaluation_row(layout.rows, 20, number) for number in range(3)]
    batch = layout.batch(rows, [0, 1, 2])
    ids = batch.columns["tokens"].ids_BN
    for index, target in zip(batch.scored_R.tolist(), batch.targets_R.tolist(), strict=True):
        row, position = divmod(index, ids.shape[1])
        if not layout.rows.in_place and position + 1 < ids.shape[1]:
            assert ids[row, position + 1] == target  # read at the next step
    assert len(batch.targets_R) == sum(int(row.scored_T.sum()) for row in rows)
    assert int(ids.max()) == layout.rows.n_ids  # the mark
