"""Helper processes: spawned, quiet about Ctrl-C, and gone when their parent is.

They are spawned and not forked, because threads of torch may be alive in the parent. What they
import should be light: each imports it anew.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, TypeVar

from headwise.errors import HeadwiseError

SPAWN = multiprocessing.get_context("spawn")

Result = TypeVar("Result")


def n_cores() -> int:
    """Cores this process may use; on a shared machine that is fewer than there are."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def follow_parent() -> None:
    """Leave Ctrl-C, which reaches the whole group, to the parent, and end when it ends.

    A parent killed outright cannot end its workers; without this they would stay for ever.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def wait() -> None:
        multiprocessing.connection.wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def run_apart(what: str, function: Callable[..., Result], *arguments: Any) -> Result:
    """`function(*arguments)` in a process of its own, so that its memory is given back whole.

    Its `HeadwiseError`s are raised here. Native code that does not heed Ctrl-C ends at once.

    Raises:
        HeadwiseError: the process ended without a result; `what` says what it did.
    """
    receiver, sender = SPAWN.Pipe(duplex=False)
    process = SPAWN.Process(target=_send_result, args=(sender, function, arguments), daemon=True)
    process.start()
    sender.close()  # else the end of the process would not be the end of the pipe
    try:
        result = receiver.recv()
    except EOFError as error:
        process.join()
        raise HeadwiseError(
            f"{what}: the process ended with code {process.exitcode}; if it was killed for want "
            "of memory, lower tokenizer.max_training_sentences"
        ) from error
    finally:
        process.terminate()
        process.join()
        receiver.close()
    if isinstance(result, HeadwiseError):
        raise result
    value: Result = result
    return value


def _send_result(
    sender: Connection, function: Callable[..., Any], arguments: tuple[Any, ...]
) -> None:
    follow_parent()
    try:
        result = function(*arguments)
    except HeadwiseError as error:
        result = error
    sender.send(result)
    sender.close()
