"""Peak memory of updates."""

from __future__ import annotations

import pytest
import torch

from headwise.train.memory import FIRST_MEASURED, MEASURE_EVERY, PeakMemory, glibc

CPU = torch.device("cpu")
FLOATS = 2_000_000
SLACK = 400_000  # bytes
needs_mallinfo2 = pytest.mark.skipif(
    not hasattr(glibc(), "mallinfo2"), reason="glibc 2.33 or later"
)


def update(memory: PeakMemory, number: int, n_floats: int) -> torch.Tensor:
    """Run an update that frees `n_floats`, and return memory that it leaves allocated."""
    memory.begin(number)
    remaining = torch.ones(5 * FLOATS)  # like modules that the first update imports
    temporary = torch.ones(n_floats)
    memory.measure()
    del temporary
    memory.end()
    return remaining


@needs_mallinfo2
def test_peak_is_the_largest_amount_that_an_update_frees() -> None:
    memory = PeakMemory(CPU)
    remaining = [update(memory, 1, 9 * FLOATS)]
    assert memory.bytes is None  # the first update is not measured
    remaining.append(update(memory, FIRST_MEASURED, 3 * FLOATS))
    assert abs(memory.bytes - 3 * FLOATS * 4) < SLACK
    largest = memory.bytes
    remaining.append(torch.ones(9 * FLOATS))  # like a first validation
    remaining.append(update(memory, FIRST_MEASURED + 1, 9 * FLOATS))
    remaining.append(update(memory, FIRST_MEASURED + MEASURE_EVERY, 2 * FLOATS))
    assert memory.bytes == largest
    remaining.append(update(memory, FIRST_MEASURED + 2 * MEASURE_EVERY, 4 * FLOATS))
    assert abs(memory.bytes - 4 * FLOATS * 4) < SLACK


@needs_mallinfo2
def test_state_of_the_optimizer_is_added() -> None:
    weight = torch.nn.Parameter(torch.zeros(FLOATS))
    optimizer = torch.optim.Adam([weight])
    weight.grad = torch.ones_like(weight)
    optimizer.step()
    with_moments, without = PeakMemory(CPU, optimizer), PeakMemory(CPU)
    for memory in (with_moments, without):
        update(memory, FIRST_MEASURED, FLOATS)
    assert abs(with_moments.bytes - without.bytes - 2 * FLOATS * 4) < SLACK


def test_no_peak_without_mallinfo2(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headwise.train.memory.glibc", lambda: None)
    memory = PeakMemory(CPU)
    update(memory, FIRST_MEASURED, FLOATS)
    assert memory.bytes is None
