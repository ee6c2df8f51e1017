"""Signals that ask a run to save and leave: Ctrl-C, SIGTERM, a terminal's end, a scheduler's."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from headwise.files import GONE, discard

TOLD = (
    "\n{}: stopping after this update, and its validation where one is due; everything is saved "
    "then. Ctrl-C (once more) leaves at once, without saving.\n"
)
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP, signal.SIGQUIT)


class StopRequest:
    """The signal that came, if one did.

    Args:
        tells: say on stderr that it came; of several ranks one does.
    """

    def __init__(self, tells: bool = True) -> None:
        self.signal_number: int | None = None
        self._tells = tells

    def __bool__(self) -> bool:
        return self.signal_number is not None

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Remember the first, and say so; a second Ctrl-C leaves at once, without saving."""
        if self.signal_number is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        if self.signal_number is None and self._tells:
            _tell(signal.Signals(number))
        self.signal_number = self.signal_number or number


def _tell(number: signal.Signals) -> None:
    try:  # no buffered stream: the signal may have come within one
        os.write(2, TOLD.format(number.name).encode())
    except OSError as error:  # saving matters more than saying so
        if error.errno in GONE:  # Ctrl-C ends a `| tee` as well
            discard(2)


@contextmanager
def stop_request(tells: bool = True) -> Iterator[StopRequest]:
    """Catch the signals within the block; outside of the main thread nothing is caught."""
    request = StopRequest(tells)
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
