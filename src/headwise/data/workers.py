"""Helper processes: spawned, ignoring Ctrl-C, and ended with their parent.

They are spawned, not forked, because threads of torch may run in the parent. Their imports should
be light: each process imports again.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import Connection
from typing import Any, TypeVar

from headwise.errors import HeadwiseError

SPAWN = multiprocessing.get_context("spawn")

Item = TypeVar("Item")
Result = TypeVar("Result")


def n_cores() -> int:
    """Number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def follow_parent() -> None:
    """Ignore Ctrl-C, which the parent handles, and exit when the parent ends.

    Without this, workers of a killed parent would never end.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def wait() -> None:
        multiprocessing.connection.wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def in_order(
    make: Callable[[], Callable[[Item], Result]], items: Iterable[Item], n_workers: int
) -> Iterator[tuple[Item, Result]]:
    """Yield items with their results, in order, with at most a few of them in memory.

    Args:
        make: returns the function of an item; called once in each process.
        items: of any number.
        n_workers: number of processes; 1: this one.

    Raises:
        HeadwiseError: a process was killed.
    """
    if n_workers <= 1:
        function = make()
        yield from ((item, function(item)) for item in items)
        return
    pool = ProcessPoolExecutor(n_workers, SPAWN, _start_worker, (make,))
    # Executor.map would queue all results, even if the consumer is slow.
    window: deque[tuple[Item, Future[Result]]] = deque()
    try:
        for item in items:
            window.append((item, pool.submit(_result, item)))
            if len(window) > 4 * n_workers:
                first, future = window.popleft()
                yield first, future.result()
        for item, future in window:
            yield item, future.result()
    except BrokenProcessPool as error:
        raise HeadwiseError(
            f"one of {n_workers} encoding processes was killed, perhaps out of memory; "
            "free some memory, or train with a smaller trainer.n_workers"
        ) from error
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


_function: Callable[[Any], Any]  # of this worker process


def _start_worker(make: Callable[[], Callable[[Any], Any]]) -> None:
    global _function
    follow_parent()
    _function = make()


def _result(item: Any) -> Any:
    return _function(item)


def run_in_process(what: str, function: Callable[..., Result], *arguments: Any) -> Result:
    """`function(*arguments)` in a separate process, so that all of its memory is freed.

    Its `HeadwiseError`s are raised here. Ctrl-C also ends native code.

    Raises:
        HeadwiseError: the process ended without a result; the message starts with `what`.
    """
    receiver, sender = SPAWN.Pipe(duplex=False)
    process = SPAWN.Process(target=_send_result, args=(sender, function, arguments), daemon=True)
    process.start()
    sender.close()  # else `recv` would not end with the process
    try:
        result = receiver.recv()
    except EOFError as error:
        process.join()
        raise HeadwiseError(
            f"{what}: the process ended with code {process.exitcode}; if it ran out of memory, "
            "lower tokenizer.max_training_sentences"
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
