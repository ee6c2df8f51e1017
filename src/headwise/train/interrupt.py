"""Signals that stop a run: Ctrl-C, SIGTERM, hangup, a scheduler's signal.

Within `stop_request` a signal raises `Interrupted` at once: files are written atomically, so that
all that was saved is intact. Within `StopRequest.deferred`, in the training loop, it is recorded:
the loop saves after its update.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from headwise.errors import Interrupted
from headwise.files import CLOSED, discard

SAVING = (
    "stopping after this update (and its validation, if due), then saving. Ctrl-C (again) "
    "exits immediately, without saving."
)
STOPPED = "stopped by {}; saved checkpoints are intact. Give the same command again to resume."
SIGNALS = (
    signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP, signal.SIGQUIT,
)  # fmt: skip

Handlers = dict[signal.Signals, Callable[[int, FrameType | None], Any] | int | None]


class StopRequest:
    """The first received signal, if any.

    Args:
        message: printed to stderr when a deferred signal arrives; empty prints nothing.
        is_deferred: record signals instead of raising `Interrupted`.
    """

    def __init__(self, message: str = "", is_deferred: bool = False) -> None:
        self.signal_number: int | None = None
        self._message = message
        self._is_deferred = is_deferred

    def __bool__(self) -> bool:
        return self.signal_number is not None

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Record or raise the first signal; a further Ctrl-C raises KeyboardInterrupt."""
        if self.signal_number is not None:
            if number == signal.SIGINT:
                raise KeyboardInterrupt
            return
        self.signal_number = number
        if not self._is_deferred:
            self.check()
        elif self._message:
            _print(f"\n{signal.Signals(number).name}: {self._message}\n")

    def check(self) -> None:
        """Raise `Interrupted` if there was a signal."""
        if self.signal_number is not None:
            name = signal.Signals(self.signal_number).name
            raise Interrupted(STOPPED.format(name), self.signal_number)

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Record signals within the block, which checks for them; raise them after it."""
        self._is_deferred = True
        try:
            yield
        finally:
            self._is_deferred = False
        self.check()

    def install(self) -> Handlers:
        """Handle the signals; return the previous handlers."""
        return {
            number: signal.signal(number, self.handle)
            for number in SIGNALS
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN  # nohup
        }

    def raised(self) -> list[signal.Signals]:
        """The signals that would raise an exception now."""
        numbers = SIGNALS if not self._is_deferred else (signal.SIGINT,) if self else ()
        return [number for number in numbers if signal.getsignal(number) == self.handle]

    def take(self, handlers: Handlers) -> None:
        """Handle a signal that a former StopRequest among `handlers` has recorded."""
        for handler in handlers.values():
            former = getattr(handler, "__self__", None)
            if isinstance(former, StopRequest) and former.signal_number is not None:
                number, former.signal_number = former.signal_number, None
                self.handle(number, None)


def _print(message: str) -> None:
    try:  # unbuffered: the signal may interrupt a write to a buffered stream
        os.write(2, message.encode())
    except OSError as error:  # a lost message must not prevent saving
        if error.errno in CLOSED:  # Ctrl-C ends a `| tee` as well
            discard(2)


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """End the process at a signal that would raise, within a block that waits for other ranks.

    It waits in C++, where Python calls no handler.
    """
    request = getattr(signal.getsignal(signal.SIGTERM), "__self__", None)
    if not isinstance(request, StopRequest) or not _is_main_thread():
        yield
        return
    former = {number: signal.signal(number, signal.SIG_DFL) for number in request.raised()}
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


def _is_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


@contextmanager
def stop_request(message: str = SAVING, is_deferred: bool = False) -> Iterator[StopRequest]:
    """Handle the signals within the block, if it runs in the main thread.

    Args:
        message: see `StopRequest`.
        is_deferred: record signals instead of raising `Interrupted`.
    """
    request = StopRequest(message, is_deferred)
    if not _is_main_thread():
        yield request
        return
    previous = request.install()
    try:
        request.take(previous)
        yield request
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
