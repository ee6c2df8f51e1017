"""Contract of every synthetic sequence: each yaml in `conf/data/` that names a class of rows."""

import numpy as np
import pytest

from headwise.config.folders import group_choices, group_node
from headwise.config.instantiate import instantiate
from headwise.tasks.sequence.batches import Layout, evaluation_row
from headwise.tasks.sequence.rows import Rows

NODES = {name: group_node("data", name) for name in group_choices("data")}
LENGTHS = 20, 64, 257
every_task = pytest.mark.parametrize("name", [name for name in NODES if "rows" in NODES[name]])


def rows_of(name):
    rows = instantiate(NODES[name]["rows"], "rows", Rows)
    return rows


@every_task
def test_a_row_is_a_function_of_seed_number_and_length(name):
    def arrays(rows, *numbers):
        row = evaluation_row(rows, *numbers)
        return [array.tolist() for array in vars(row).values()]

    rows = rows_of(name)
    first = arrays(rows, 64, 3, 1)
    assert first != arrays(rows, 64, 4, 1) != arrays(rows, 64, 4, 2)
    assert first == arrays(rows, 64, 3, 1) == arrays(rows_of(name), 64, 3, 1)


@every_task
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


@every_task
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
