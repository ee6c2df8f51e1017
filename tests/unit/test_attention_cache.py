"""The cache of keys and values equals concatenation and selection of whole tensors."""

import random

import pytest
import torch

from headwise.attention.cache import INITIAL_CAPACITY, KeyValueCache


class OnDevice(torch.Tensor):
    """Rows that say that they are on a GPU, whose values nothing may read."""

    device = torch.device("cuda", 0)

    def nonzero(self):
        raise AssertionError("the host waits for the device")


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("is_on_cpu", [True, False])
def test_steps_equal_concatenation(seed, is_on_cpu):
    numbers = random.Random(seed)
    torch.manual_seed(seed)
    cache = KeyValueCache(static=False)
    n_rows, expected = 4, [torch.zeros(4, 2, 0, 3), torch.zeros(4, 2, 0, 3)]
    for _ in range(3 * INITIAL_CAPACITY):
        n_new = numbers.choice([1, 1, 1, 1, 1, 3, 3 * INITIAL_CAPACITY])
        new = [torch.randn(n_rows, 2, n_new, 3) for _ in range(2)]
        expected = [torch.cat(pair, dim=2) for pair in zip(expected, new, strict=True)]
        actual = cache.update(new[0], new[1])
        assert all(map(torch.equal, actual, expected))
        n_rows = numbers.choice([n_rows, n_rows, max(n_rows - 2, 1), n_rows + 3])
        rows = torch.tensor([numbers.randrange(len(expected[0])) for _ in range(n_rows)])
        cache.reorder(rows if is_on_cpu else rows.as_subclass(OnDevice))
        expected = [states[rows] for states in expected]
        assert all(map(torch.equal, cache.content(), expected))
    assert cache.length == expected[0].shape[2]


@pytest.mark.parametrize("rows", [[0, 3, 2], [0, 3, 2, 3]])
def test_unchanged_rows_are_not_copied(rows):
    cache = KeyValueCache(static=False)
    key, _ = cache.update(torch.randn(4, 2, 1, 3), torch.randn(4, 2, 1, 3))
    cache.reorder(torch.tensor(rows))
    assert cache.content()[0].data_ptr() == key.data_ptr()
    longer, _ = cache.update(*torch.randn(2, len(rows), 2, 1, 3))
    assert longer.data_ptr() == key.data_ptr()  # a step writes only its position


def test_static_rows_are_dropped_without_a_copy():
    cache = KeyValueCache(static=True)
    (before,) = cache.update(torch.randn(4, 2, 5, 3))
    expected = before[[0, 3]]
    cache.reorder(torch.tensor([0, 3]))
    (after,) = cache.content()
    assert torch.equal(after, expected)
    assert after.data_ptr() == before.data_ptr()


def test_reordering_reads_nothing_from_an_accelerator():
    cache = KeyValueCache(static=False)
    with torch.device("meta"):  # meta tensors have no values
        cache.update(torch.empty(4, 2, 1, 3), torch.empty(4, 2, 1, 3))
        for n_rows in (4, 3, 6):
            cache.reorder(torch.empty(n_rows, dtype=torch.long))
            assert cache.content()[0].shape == (n_rows, 2, 1, 3)
