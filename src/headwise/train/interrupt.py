"""Signals that ask a run to save and leave: Ctrl-C, SIGTERM, and SIGUSR1 of a scheduler."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)


class Interrupted(Exception):
    """A run left on request, after saving."""

    def __init__(self, message: str, signal_number: int) -> None:
        super().__init__(message)
        self.exit_code = 128 + signal_number


class StopRequest:
    """The signal that came, if one did."""

    def __init__(self) -> None:
        self.signal_number: int | None = None

    def __bool__(self) -> bool:
        return self.signal_number is not None

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Remember the first; a second Ctrl-C leaves at once, without saving."""
        if self.signal_number is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.signal_number = self.signal_number or number


@contextmanager
def stop_request() -> Iterator[StopRequest]:
    """Catch the signals within the block; outside of the main thread nothing is caught."""
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    previous = {number: signal.signal(number, request.handle) for number in SIGNALS}
    try:
        yield request
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
