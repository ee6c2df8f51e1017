"""Lengths of batches rounded up, for few shapes of compiled graphs."""

from __future__ import annotations

import numpy as np
import pytest

from headwise.data.batching import BatchLoader, Buckets
from headwise.data.store import EncodedSplit
from headwise.errors import RunError


def test_a_bucket_is_a_multiple_or_the_longest() -> None:
    buckets = Buckets(8, 21)
    assert buckets(np.array([1, 8, 9, 17, 21], np.int32)).tolist() == [8, 8, 16, 21, 21]
    assert Buckets(1, 21)(np.array([1, 20], np.int32)).tolist() == [1, 20]


def test_shapes_are_few_budgets_hold_and_every_pair_is_there() -> None:
    generator = np.random.default_rng(1)
    rows = [[4] * int(n) for n in generator.integers(1, 42, 400)]
    split = EncodedSplit.from_lists(rows, rows[::-1])
    loader = BatchLoader(split, 256, seed=1, length_multiple=8)
    batches = [next(loader) for _ in range(loader.n_batches)]
    assert sorted(row for batch in batches for row in batch.indices) == list(range(400))
    longest = max(map(len, rows)) + 1
    for batch in batches:
        for ids in (batch.source_BS, batch.target_in_BT, batch.target_out_BT):
            assert ids.shape[1] % 8 == 0 or ids.shape[1] == longest
        assert len(batch) * max(batch.source_BS.shape[1], batch.target_in_BT.shape[1]) <= 256
        assert batch.target_out_BT.count_nonzero() == batch.n_tokens
    assert len({batch.source_BS.shape[1] for batch in batches}) <= 7


@pytest.mark.parametrize(("longest_source", "longest_target"), [(19, 43), (43, 19)])
def test_each_side_has_buckets_of_its_own(longest_source: int, longest_target: int) -> None:
    generator = np.random.default_rng(2)
    sides = [
        [[4] * int(n) for n in [*generator.integers(1, longest, 200), longest]]
        for longest in (longest_source, longest_target)
    ]
    loader = BatchLoader(EncodedSplit.from_lists(*sides), 512, seed=1, length_multiple=8)
    for batch in (next(loader) for _ in range(loader.n_batches)):
        for ids, longest, lengths in (
            (batch.source_BS, longest_source, batch.source_lengths_B),
            (batch.target_in_BT, longest_target, batch.target_lengths_B),
            (batch.target_out_BT, longest_target, batch.target_lengths_B),
        ):
            assert ids.shape[1] == min(-(-int(lengths.max()) // 8) * 8, longest + 1)


def test_a_position_among_other_buckets_is_refused() -> None:
    split = EncodedSplit.from_lists([[4]] * 9, [[5]] * 9)
    position = BatchLoader(split, 256, seed=1).state()
    with pytest.raises(RunError, match="length_multiple"):
        BatchLoader(split, 256, seed=1, length_multiple=8).restore(position)
    BatchLoader(split, 256, seed=1).restore(position)
