"""Seconds that a process spends outside of training."""

from __future__ import annotations

import time


class Clock:
    """Seconds of the phases of a run, one after the other.

    Args:
        started: of the first phase, by `time.perf_counter`; None: now.
    """

    def __init__(self, started: float | None = None) -> None:
        self.seconds: dict[str, float] = {}
        self._since = time.perf_counter() if started is None else started

    def end(self, phase: str, training: float = 0.0) -> None:
        """End a phase, which had so many seconds of training; the next one starts."""
        now = time.perf_counter()
        self.seconds[phase] = round(now - self._since - training, 3)
        self._since = now
