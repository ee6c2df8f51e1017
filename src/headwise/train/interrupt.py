"""Signals that stop a run after saving: Ctrl-C, SIGTERM, hangup, a scheduler's signal."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from headwise.files import CLOSED, discard

MESSAGE = (
    "\n{}: stopping after this update (and its validation, if due), then saving. Ctrl-C (again) "
    "exits immediately, without saving.\n"
)
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP, signal.SIGQUIT)


class StopRequest:
    """The first received signal, if any.

    Args:
        prints: print a message to stderr; true on one rank.
    """

    def __init__(self, prints: bool = True) -> None:
        self.signal_number: int | None = None
        self._prints = prints

    def __bool__(self) -> bool:
        return self.signal_number is not None

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Record and report the first signal; a further Ctrl-C raises KeyboardInterrupt."""
        if self.signal_number is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        if self.signal_number is None and self._prints:
            _print(signal.Signals(number))
        self.signal_number = self.signal_number or number


def _print(number: signal.Signals) -> None:
    try:  # unbuffered: the signal may interrupt a write to a buffered stream
        os.write(2, MESSAGE.format(number.name).encode())
    except OSError as error:  # a lost message must not prevent saving
        if error.errno in CLOSED:  # Ctrl-C ends a `| tee` as well
            discard(2)


@contextmanager
def stop_request(prints: bool = True) -> Iterator[StopRequest]:
    """Handle the signals within the block, if it runs in the main thread."""
    request = StopRequest(prints)
    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    previous = {
        number: signal.signal(number, request.handle)
        for number in SIGNALS
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN  # nohup
    }
    try:
        yield request
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
