"""Rows of every synthetic task, computed again by hand, and their batches."""

import pytest

from headwise.config.data import SequenceConfig
from headwise.config.folders import group_node
from headwise.config.instantiate import instantiate
from headwise.tasks.sequence.batches import Layout, TrainingRows, evaluation_row
from headwise.tasks.sequence.rows import Rows

TASKS = "copy", "flip_flop", "local_count", "nback", "parity", "recall", "reverse", "sort"
# First rows, so that another machine or version of numpy that draws others is noticed.
COPY = [4, 7, 2, 19, 12, 22, 4, 11]
RECALL = [5, 36, 10, 44, 27, 34, 30, 35, 31, 46, 15, 40, 3, 41, 6, 44]
every_task = pytest.mark.parametrize("name", TASKS)


def rows_of(name, **changes):
    rows = instantiate({**group_node("data", name)["rows"], **changes}, "rows", Rows)
    return rows


def layout_of(name, *columns):
    return Layout(rows_of(name), columns or ("tokens",))


def by_hand(name, row):
    """The scored targets of a row from its source alone."""
    source = row.source_N.tolist()
    n = len(source)
    if name in ("copy", "reverse", "sort"):
        ordered = {"copy": source, "reverse": source[::-1], "sort": sorted(source)}
        return ordered[name]
    if name == "nback":
        return source[: n - 2]
    if name == "parity":
        return [sum(source[: i + 1]) % 2 for i in range(n)]
    if name == "local_count":
        counts = []
        for i in range(n):
            is_same = i > 0 and source[i] == source[i - 1]
            counts.append(counts[-1] + 1 if is_same else 16)
        return counts
    if name == "flip_flop":
        bit, read = -1, []
        for command, given in zip(source[::2], source[1::2], strict=True):
            bit = given if command == 2 else bit
            if command == 4:
                assert given == bit
                read.append(bit)
        return read
    assert name == "recall"
    asked = row.target_T.tolist()[1::3]
    assert len(set(asked)) == 8
    assert all(source.count(key) == 1 for key in asked)
    return [source[source.index(key) + 1] for key in asked]


@every_task
@pytest.mark.parametrize("length", [8, 33, 64, 257])
def test_targets_by_hand(name, length):
    for number in range(20):
        row = evaluation_row(rows_of(name), length, number, 0)
        assert row.target_T[row.scored_T].tolist() == by_hand(name, row)
        assert len(row.source_N) - length in ((0, -1) if name == "flip_flop" else (0, 8))
        known = row.scored_T & (row.relevant_T >= 0)
        if name not in ("sort", "parity", "local_count"):
            assert (known == row.scored_T).all()
        # the relevant place has what is predicted
        assert (row.source_N[row.relevant_T[known]] == row.target_T[known]).all()
        assert max(row.source_N.max(), row.target_T.max()) < rows_of(name).n_ids


def test_rows_are_the_same_everywhere():
    assert evaluation_row(rows_of("copy"), 8, 0, 0).source_N.tolist() == COPY
    assert evaluation_row(rows_of("recall"), 16, 3, 0).source_N.tolist() == RECALL


def test_distractors_grow_with_the_length_and_ids_do_not():
    for length in (64, 1024):
        row = evaluation_row(rows_of("recall"), length, 0, 0)
        assert (row.source_N != rows_of("recall").space).sum() == length // 2
        assert len(set(row.source_N.tolist())) <= 32 + 16 + 1


def test_two_columns_have_source_and_target():
    layout = layout_of("copy", "source", "target")
    row = evaluation_row(layout.rows, 5, 0, 0)
    batch = layout.batch([row], [0])
    assert batch.columns["source"].ids_BN[0].tolist() == row.source_N.tolist()
    assert batch.columns["target"].ids_BN[0].tolist() == [32, *row.target_T[:-1].tolist()]
    assert batch.scored_R.tolist() == list(range(5))


def training(n_rows=6, seed=1, **changes):
    data = SequenceConfig(name="copy", epoch_batches=4, **changes)
    return TrainingRows(layout_of("copy"), data, n_rows, seed)


def test_a_row_does_not_depend_on_the_batch():
    whole, numbers = training(), training().plan(2)[3]
    together = whole.collate(2, numbers).columns["tokens"].ids_BN
    shares = [training().collate(2, numbers[rank::2]).columns["tokens"].ids_BN for rank in (0, 1)]
    assert together[0::2].equal(shares[0])
    assert together[1::2].equal(shares[1])
    assert whole.n_targets(2, numbers) == len(whole.collate(2, numbers).targets_R)
    assert len(training().collate(2, numbers[:0])) == 0
    other = training(seed=2).collate(2, numbers).columns["tokens"].ids_BN
    assert other.shape != together.shape or not other.equal(together)


def test_lengths_grow_over_the_curriculum():
    rows = training(curriculum=100)
    lengths = [rows.length(1 + n // 4, n % 4) for n in range(400)]
    assert max(lengths[:10]) <= 8 + 56 // 10
    assert max(lengths) == 64
    assert min(lengths[100:]) >= 32
    assert all(length <= 8 + 56 * n // 100 for n, length in enumerate(lengths[:100]))
