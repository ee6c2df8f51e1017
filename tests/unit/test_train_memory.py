"""Memory of updates."""

from __future__ import annotations

import pytest
import torch

from headwise.train.memory import FIRST_MEASURED, MEASURE_EVERY, PeakMemory, glibc

CPU = torch.device("cpu")
FLOATS = 2_000_000
SLACK = 400_000  # bytes
can_ask = pytest.mark.skipif(not hasattr(glibc(), "mallinfo2"), reason="glibc 2.33 or later")


def update(memory: PeakMemory, number: int, n_floats: int) -> torch.Tensor:
    """One that holds so much, then lets go of it, but leaves as much again as it found."""
    memory.begin(number)
    left = torch.ones(5 * FLOATS)  # as what an update is the first to import
    held = torch.ones(n_floats)
    memory.all_alive()
    del held
    memory.end()
    return left


@can_ask
def test_the_most_that_an_update_lets_go_of_is_kept() -> None:
    memory = PeakMemory(CPU)
    left = [update(memory, 1, 9 * FLOATS)]
    assert memory.bytes is None  # that one is not looked at
    left.append(update(memory, FIRST_MEASURED, 3 * FLOATS))
    assert abs(memory.bytes - 3 * FLOATS * 4) < SLACK
    most = memory.bytes
    left.append(torch.ones(9 * FLOATS))  # as a validation that leaves what its first call makes
    left.append(update(memory, FIRST_MEASURED + 1, 9 * FLOATS))
    left.append(update(memory, FIRST_MEASURED + MEASURE_EVERY, 2 * FLOATS))
    assert memory.bytes == most
    left.append(update(memory, FIRST_MEASURED + 2 * MEASURE_EVERY, 4 * FLOATS))
    assert abs(memory.bytes - 4 * FLOATS * 4) < SLACK


@can_ask
def test_of_several_batches_the_largest_counts() -> None:
    memory = PeakMemory(CPU)
    memory.begin(FIRST_MEASURED)
    for n_floats in (FLOATS, 3 * FLOATS, 2 * FLOATS):
        held = torch.ones(n_floats)
        memory.all_alive()
        del held
    memory.end()
    assert abs(memory.bytes - 3 * FLOATS * 4) < SLACK


@can_ask
def test_what_the_optimizer_keeps_is_added() -> None:
    weight = torch.nn.Parameter(torch.zeros(FLOATS))
    optimizer = torch.optim.Adam([weight])
    weight.grad = torch.ones_like(weight)
    optimizer.step()
    with_moments, without = PeakMemory(CPU, optimizer), PeakMemory(CPU)
    for memory in (with_moments, without):
        update(memory, FIRST_MEASURED, FLOATS)
    assert abs(with_moments.bytes - without.bytes - 2 * FLOATS * 4) < SLACK


def test_where_malloc_does_not_tell_there_is_no_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headwise.train.memory.glibc", lambda: None)
    memory = PeakMemory(CPU)
    update(memory, FIRST_MEASURED, FLOATS)
    assert memory.bytes is None
