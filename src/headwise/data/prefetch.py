"""Batches made in the background, while the update before them is computed."""

from __future__ import annotations

import queue
import threading
from contextlib import suppress
from types import TracebackType

import torch

from headwise.data.batch import Batch
from headwise.data.loader import BatchLoader

DEPTH = 4  # batches made ahead

# A batch with the loader's position after it, or what the loader raised instead.
_Made = tuple[Batch, dict[str, int]] | BaseException


class Prefetched:
    """A `BatchLoader` whose batches one thread makes ahead, in the same order.

    The position is that of the last batch handed out, whatever was made beyond it: so a resumed
    run goes on where the interrupted one was. What the loader raises is raised where its batch
    would have come. New epochs, with the encoding that BPE-dropout asks for, are begun in the
    thread too, as soon as the batches before them are made.

    The thread starts with the first batch and ends with `close`, which waits for a loader in the
    middle of an encoding. An error or an interruption does not wait; then the thread ends with the
    process, after the shards that workers have in hand.

    Args:
        loader: nothing else may use it.
        depth: batches made ahead, at least 1.
        gpu: put tensors where this GPU can fetch them while it computes; None: leave them.
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
        """As of the loader."""
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
        """The loader's after the last batch handed out."""
        return dict(self._position)

    def restore(self, state: dict[str, int]) -> None:
        """As of the loader; batches made ahead are forgotten."""
        self._end()
        self._loader.restore(state)
        self._position = self._loader.state()

    def close(self) -> None:
        """End the thread; the next batch would start another one."""
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
        else:  # an encoding may take minutes, and a scheduler that wants us gone grants seconds
            self._ask_to_stop()

    def _begin(self) -> None:
        self._made, self._stop = queue.Queue(self._depth), threading.Event()
        arguments = (self._made, self._stop)
        self._thread = threading.Thread(target=self._make, args=arguments, daemon=True)
        self._thread.start()

    def _end(self) -> None:
        if self._thread is None:
            return
        self._ask_to_stop()
        self._thread.join()
        self._thread = None

    def _ask_to_stop(self) -> None:
        """Also where it waits for a place; it puts one batch or error more at the most."""
        self._stop.set()
        with suppress(queue.Empty):
            while True:
                self._made.get_nowait()

    def _make(self, made: queue.Queue[_Made], stop: threading.Event) -> None:
        try:
            if self._gpu is not None:  # a thread else begins at the first one
                torch.cuda.set_device(self._gpu)
            while not stop.is_set():
                batch = next(self._loader)
                made.put((batch.pinned() if self._gpu else batch, self._loader.state()))
        except BaseException as error:  # noqa: BLE001 - raised again by who takes it
            made.put(error)
