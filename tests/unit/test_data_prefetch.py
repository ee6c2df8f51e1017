"""Batches made in the background equal those of the loader."""

import threading
import time

import pytest
import torch

from headwise.data.batch import Batch
from headwise.data.loader import BatchLoader
from headwise.data.prefetch import Prefetched
from headwise.errors import HeadwiseError
from headwise.tasks.translation.batches import TrainingPairs
from headwise.tasks.translation.store import EncodedSplit

ROWS = [[4 + i % 7] * (1 + i % 9) for i in range(90)]
PAIRS = TrainingPairs(EncodedSplit.from_lists(ROWS, ROWS[::-1]), 60, seed=3)


class Broken(BatchLoader):
    """Fails at its fourth batch."""

    def __next__(self):
        if self.state()["batch"] == 3:
            raise HeadwiseError("the disk is gone")
        return super().__next__()


def plain():
    return BatchLoader(PAIRS)


def same(one, other):
    return one.rows == other.rows and torch.equal(one.targets_R, other.targets_R)


def test_batches_and_states_equal_those_of_the_loader():
    loader = plain()
    with Prefetched(plain(), depth=3) as batches:
        assert batches.state() == loader.state()
        for _ in range(3 * loader.n_batches):
            assert same(next(batches), next(loader))
            assert batches.state() == loader.state()
    assert loader.state()["epoch"] == 3


def test_state_excludes_prefetched_batches():
    with Prefetched(plain(), depth=5) as first:
        for _ in range(4):
            next(first)
        state = first.state()
        expected = [next(first) for _ in range(6)]
        first.restore(state)  # in the middle of an epoch
        assert all(same(next(first), batch) for batch in expected)
    with Prefetched(plain()) as second:
        second.restore(state)
        assert second.state() == state
        assert all(same(next(second), batch) for batch in expected)


def test_errors_of_the_loader_are_raised_in_order():
    with Prefetched(Broken(PAIRS)) as batches:
        assert all(same(next(batches), batch) for batch, _ in zip(plain(), range(3), strict=False))
        for _ in range(2):  # repeated calls raise again, as the loader does
            with pytest.raises(HeadwiseError, match="the disk is gone"):
                next(batches)
        assert batches.state()["batch"] == 3


def test_thread_starts_lazily_and_ends_on_close():
    before = threading.active_count()
    batches = Prefetched(plain(), depth=2)
    assert threading.active_count() == before
    first = next(batches)
    assert threading.active_count() == before + 1
    batches.close()
    batches.close()
    assert threading.active_count() == before
    assert same(first, next(plain()))
    later = next(batches)  # restarted at its position
    loader = plain()
    next(loader)
    assert same(later, next(loader))
    batches.close()


def test_exit_after_an_error_does_not_wait_for_the_thread():
    started, may_end = threading.Event(), threading.Event()

    class Slow(BatchLoader):
        def __next__(self):
            if self.state()["batch"] == 2:
                started.set()
                assert may_end.wait(60)
            return super().__next__()

    batches = Prefetched(Slow(PAIRS))
    try:
        next(batches)
        assert started.wait(60)
        batches.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
        assert batches._thread.is_alive()  # still running
    finally:
        may_end.set()
        batches.close()


def test_thread_blocked_on_a_full_queue_ends_after_an_error():
    batches = Prefetched(plain(), depth=1)
    next(batches)
    thread = batches._thread
    deadline = time.monotonic() + 10
    while not batches._made.full() and time.monotonic() < deadline:
        time.sleep(0.01)
    batches.__exit__(HeadwiseError, HeadwiseError(), None)
    thread.join(10)
    assert not thread.is_alive()


def test_batches_are_pinned_for_the_training_gpu(monkeypatch):
    calls = []

    def record(argument):
        calls.append((threading.current_thread().name, argument))

    monkeypatch.setattr("torch.cuda.set_device", record)
    monkeypatch.setattr(Batch, "pinned", lambda self: record("pin") or self)
    second = torch.device("cuda", 1)
    with Prefetched(plain(), depth=1, gpu=second) as batches:
        next(batches)
    (maker, gpu), *pins = calls
    assert (gpu, maker != threading.current_thread().name) == (second, True)
    assert set(pins) == {(maker, "pin")}
