"""Training batches of any task: the rows of each, an endless iterator, and a thread that is ahead.

The rows of a batch are a pure function of lengths, budget, seed and epoch: resuming is exact.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from headwise.data.batch import Batch
from headwise.errors import RunError

NOISE = 0.05  # of a sentence's length, added at random before sorting


@dataclass(frozen=True)
class BatchPlan:
    """The batches of one epoch: batch i is `rows[bounds[b] : bounds[b + 1]]`, b = `order[i]`."""

    rows: npt.NDArray[np.int32]
    bounds: npt.NDArray[np.int64]
    order: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.order)

    def __getitem__(self, batch: int) -> npt.NDArray[np.int32]:
        b = self.order[batch]
        return self.rows[self.bounds[b] : self.bounds[b + 1]]


def plan_epoch(
    source_lengths: npt.NDArray[np.int32],
    target_lengths: npt.NDArray[np.int32],
    budget: int,
    seed: int,
    epoch: int,
    row_multiple: int = 8,
) -> BatchPlan:
    """Batches of pairs of similar length, in random order; every pair is in exactly one.

    Pairs are sorted by the longer side and then by the target, both with noise, so that batches
    differ between epochs. A batch has as many rows as fit: rows times longest side is at most
    `budget`. More than `row_multiple` rows are rounded down to a multiple of it. Lengths include
    bos or eos; none may exceed `budget`.
    """
    generator = np.random.default_rng([seed, epoch])
    longer = np.maximum(source_lengths, target_lengths)
    rows = _sorted_rows(longer, target_lengths, generator)
    bounds = _bounds(longer[rows], budget, row_multiple)
    order = generator.permutation(len(bounds) - 1)
    return BatchPlan(rows, bounds, order)


def _sorted_rows(
    longer: npt.NDArray[np.int32],
    target_lengths: npt.NDArray[np.int32],
    generator: np.random.Generator,
) -> npt.NDArray[np.int32]:
    # One integer key per pair: noisy length of the longer side, of the target, then random bits.
    key = _noisy(longer, generator).astype(np.int64) << 32
    key |= _noisy(target_lengths, generator).astype(np.int64) << 16
    key |= generator.integers(1 << 16, size=len(key), dtype=np.uint16)
    # Stable: the order of equal keys in an unstable sort differs between processors.
    return np.argsort(key, kind="stable").astype(np.int32)


def _noisy(lengths: npt.NDArray[np.int32], generator: np.random.Generator) -> npt.NDArray[np.int32]:
    """Lengths with noise of up to one token and a share of the length, at most 65535."""
    noise = generator.random(len(lengths), np.float32) * (1 + NOISE * lengths)
    return np.minimum(lengths + noise, 65535).astype(np.int32)


def _bounds(widths: npt.NDArray[np.int32], budget: int, multiple: int) -> npt.NDArray[np.int64]:
    """Starts of the batches of sorted pairs, and the end."""
    bounds = [0]
    while bounds[-1] < len(widths):
        start = bounds[-1]
        window = widths[start : start + budget // int(widths[start])]
        # Padded tokens of the batch if it ended at each of these pairs: strictly increasing.
        padded = np.maximum.accumulate(window) * np.arange(1, len(window) + 1)
        n_rows = int(np.searchsorted(padded, budget, side="right"))
        # The last batch is not rounded down: its remainder would be a tiny batch.
        if n_rows > multiple and start + n_rows < len(widths):
            n_rows -= n_rows % multiple
        bounds.append(start + n_rows)
    return np.array(bounds, np.int64)


def longest_first(
    lengths: npt.NDArray[np.integer[Any]], max_tokens: int
) -> Iterator[npt.NDArray[np.integer[Any]]]:
    """Yield the rows of batches of at most `max_tokens` padded tokens, for evaluation and search.

    Longest first, so that out-of-memory errors come early. A longer row is a batch by itself.
    """
    order = np.argsort(-lengths, kind="stable")
    while len(order):
        n_rows = max(max_tokens // max(int(lengths[order[0]]), 1), 1)
        yield order[:n_rows]
        order = order[n_rows:]


def windows_per_batch(max_tokens: int, window: int) -> int:
    """Number of windows in a batch of a rank."""
    return max(1, max_tokens // window)


Rows = npt.NDArray[np.integer[Any]]


class Plan(Protocol):
    """The rows of each batch of an epoch; for example a list of arrays."""

    def __len__(self) -> int: ...

    def __getitem__(self, batch: int, /) -> Rows: ...


class Examples(Protocol):
    """Training data as pure functions of epoch and rows, so that resuming is exact."""

    def plan(self, epoch: int) -> Plan:
        """The rows of each batch of an epoch (from 1), over all ranks."""
        ...

    def n_targets(self, epoch: int, rows: Rows) -> int:
        """Scored positions of these rows."""
        ...

    def collate(self, epoch: int, rows: Rows) -> Batch:
        """The batch of these rows."""
        ...

    def identity(self) -> dict[str, int]:
        """Settings that the plans depend on; a run resumes only if they are unchanged."""
        ...


@dataclass
class BatchLoader:
    """Batches of `examples`, reproducible from any position.

    Each rank takes every `world_size`-th row of a batch, so that two ranks train on the same batch
    as one rank with twice the budget. With fewer ranks than the run was started with, a batch is
    returned in several pieces, so that none is larger than before.

    Args:
        examples: training data of the run.
        rank: of this process.
        world_size: number of processes.
        n_pieces: pieces of each batch; the first has the `global_targets` of the batch.
    """

    examples: Examples
    rank: int = 0
    world_size: int = 1
    n_pieces: int = 1

    def __post_init__(self) -> None:
        self._piece = 0
        if not 0 <= self.rank < self.world_size:
            raise ValueError(f"rank {self.rank} of {self.world_size} ranks")
        self._epoch, self._next_batch = 1, 0
        self._plans: dict[int, Plan] = {}

    @property
    def n_batches(self) -> int:
        """Batches of this epoch."""
        return len(self._plan())

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        """This rank's share of the next batch; it may have no rows."""
        if self._next_batch >= len(self._plan()):
            self._epoch, self._next_batch = self._epoch + 1, 0
        rows, epoch, piece = self._plan()[self._next_batch], self._epoch, self._piece
        self._piece = (piece + 1) % self.n_pieces
        self._next_batch += not self._piece
        first, step = self.rank + piece * self.world_size, self.n_pieces * self.world_size
        batch = self.examples.collate(epoch, rows[first::step])
        n_targets = 0 if piece else self.examples.n_targets(epoch, rows)
        return replace(batch, global_targets=n_targets)

    def _plan(self) -> Plan:
        if self._epoch not in self._plans:
            self._plans = {self._epoch: self.examples.plan(self._epoch)}
        return self._plans[self._epoch]

    def state(self) -> dict[str, int]:
        """The position (`batch` batches of `epoch` were returned), and settings for `restore`.

        Between two pieces it is the position before their batch.
        """
        return {"epoch": self._epoch, "batch": self._next_batch, **self.examples.identity()}

    def restore(self, state: dict[str, int]) -> None:
        """Continue from the position of a `state()` of any rank of the run.

        Raises:
            RunError: the state is of a loader with different batches.
        """
        for key, value in self.examples.identity().items():
            if state.get(key) != value:
                raise RunError(
                    f"cannot resume the data of this run: its {key} was {state.get(key)}, now "
                    f"it is {value} (budget is trainer.max_tokens times the number of processes); "
                    "restore the old value, or start a new run"
                )
        self._epoch, self._next_batch, self._piece = state["epoch"], state["batch"], 0


# -- made ahead -----------------------------------------------------------------------------------

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
