"""An endless iterator of training batches, for the examples of any task."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from headwise.data.batch import Batch
from headwise.errors import RunError

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
