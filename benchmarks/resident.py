"""The resident memory that a call adds to this process (Linux only)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

_STATUS, _RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def added_bytes(call: Callable[[], object]) -> int | None:
    """Return the peak increase of the resident set during a call; None if not available."""
    if not _RESET.exists():
        return None
    before = _bytes("VmRSS")
    _RESET.write_text("5")  # resets the peak
    call()
    return _bytes("VmHWM") - before


def _bytes(field: str) -> int:
    line = next(line for line in _STATUS.read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) * 1024
