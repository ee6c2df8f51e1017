"""Memory of updates."""

from __future__ import annotations

import torch

from headwise.train.memory import PeakMemory, glibc

CPU = torch.device("cpu")
FLOATS = 2_000_000


def test_the_most_that_was_held_above_the_start_is_kept() -> None:
    before = torch.ones(FLOATS)
    memory = PeakMemory(CPU)
    assert memory.bytes is None
    held = torch.ones(3 * FLOATS)
    memory.look()
    if not hasattr(glibc(), "mallinfo2"):
        assert memory.bytes is None
        return
    assert memory.bytes is not None
    assert 0 <= memory.bytes - held.nbytes < before.nbytes / 10
    most = memory.bytes
    del held
    memory.look()
    assert memory.bytes == most
    with memory.aside():  # as a validation that leaves what is made at its first call
        left = torch.ones(9 * FLOATS)
    memory.look()
    assert memory.bytes == most
    held = torch.ones(4 * FLOATS)
    memory.look()
    assert abs(memory.bytes - held.nbytes) < before.nbytes / 10
    assert left.numel() > 0
