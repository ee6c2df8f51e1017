"""Batches made in a background thread, during the previous update."""

from __future__ import annotations

import queue
import threading
from contextlib import suppress
from types import TracebackType

import torch

from headwise.data.batch import Batch
from headwise.data.loader import BatchLoader

DEPTH = 4  # batches made ahead

# A batch and the position of the loader after it, or an error of the loader.
_Made = tuple[Batch, dict[str, int]] | BaseException


class Prefetched:
    """A `BatchLoader` whose batches are made ahead by a thread, in the same order.

    `state` is the position after the last batch returned, without those made ahead, so that a run
    resumes exactly. Errors of the loader are raised in place of its batch. The thread also starts
    new epochs, with their encoding under BPE-dropout.

    The thread starts with the first batch and ends with `close`, which waits for an encoding in
    progress. After an error or an interruption nothing waits for the thread: it ends with the
    process, after the current shards of the workers.

    Args:
        loader: must not be used elsewhere.
        depth: batches made ahead, at least 1.
        gpu: put tensors in pinned memory for this GPU; None: leave them.
    """

    def __init__(
        self, loader: BatchLoader, depth: int = DEPTH, gpu: torch.device | None = None
    ) -> None:
        self._loader = loader
        self._depth = depth
        self._gpu = gpu
        self._position = loader.state()
        self._made: queue.Queue[_Made] = queue.Queue(depth)
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def __iter__(self) -> Prefetched:
        return self

    def __next__(self) -> Batch:
        """The next batch of the loader."""
        if self._thread is None:
            self._begin()
        made = self._made.get()
        if isinstance(made, BaseException):
            self._end()
            self._loader.restore(self._position)
            raise made
        batch, self._position = made
        return batch

    def state(self) -> dict[str, int]:
        """The position of the loader after the last batch returned."""
        return dict(self._position)

    def restore(self, state: dict[str, int]) -> None:
        """Restore the loader; batches made ahead are discarded."""
        self._end()
        self._loader.restore(state)
        self._position = self._loader.state()

    def close(self) -> None:
        """End the thread; a next batch would start a new one."""
        self._end()
        self._loader.restore(self._position)

    def __enter__(self) -> Prefetched:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()
        else:  # do not wait: encoding may take minutes, and schedulers kill after seconds
            self._request_stop()

    def _begin(self) -> None:
        self._made, self._stop = queue.Queue(self._depth), threading.Event()
        arguments = (self._made, self._stop)
        self._thread = threading.Thread(target=self._make, args=arguments, daemon=True)
        self._thread.start()

    def _end(self) -> None:
        if self._thread is None:
            return
        self._request_stop()
        self._thread.join()
        self._thread = None

    def _request_stop(self) -> None:
        """Stop the thread, also if the queue is full; it puts at most one more batch or error."""
        self._stop.set()
        with suppress(queue.Empty):
            while True:
                self._made.get_nowait()

    def _make(self, made: queue.Queue[_Made], stop: threading.Event) -> None:
        try:
            if self._gpu is not None:  # the default in a new thread is GPU 0
                torch.cuda.set_device(self._gpu)
            while not stop.is_set():
                batch = next(self._loader)
                made.put((batch.pinned() if self._gpu else batch, self._loader.state()))
        except BaseException as error:  # noqa: BLE001 - raised by __next__
            made.put(error)
