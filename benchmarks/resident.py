"""The resident memory that a call adds to this process (Linux only)."""

from __future__ import annotations

from collections.abc import Callable

import torch

from headwise.train.memory import peak_memory, resident_bytes


def added_bytes(call: Callable[[], object]) -> int | None:
    """Return the peak increase of the resident set during a call; None if not available."""
    before, peak_bytes = resident_bytes("VmRSS"), peak_memory(torch.device("cpu"))
    call()
    peak = peak_bytes()
    return None if before is None or peak is None else peak - before
