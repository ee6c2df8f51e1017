"""Batches of synthetic rows, all of one length, as functions of seed, epoch and number."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from headwise.config.data import SequenceConfig
from headwise.data.batch import Batch, Column
from headwise.tasks.sequence.rows import Ints, Row, Rows

TRAIN, EVALUATION = 0, 1  # first number of seeds


@dataclass(frozen=True)
class Layout:
    """From rows to columns of a batch.

    The mark, an id of its own, is between a source and its target, and before a row whose targets
    are in place: without a beginning, relative positions cannot tell the first places apart.

    Attributes:
        rows: of the task.
        columns: one, or source and target.
    """

    rows: Rows
    columns: tuple[str, ...]

    @property
    def sizes(self) -> dict[str, int]:
        """Sizes of the vocabularies: the ids and the mark."""
        return dict.fromkeys(self.columns, self.rows.n_ids + 1)

    def first_target(self, row: Row) -> int:
        """Return the position, in the last column, that predicts the first target."""
        after_source = len(self.columns) == 1 and not self.rows.in_place
        return len(row.source_N) if after_source else int(self.rows.in_place)

    def first_source(self) -> int:
        """Return the position of the first place of the source in the column of keys."""
        return int(self.rows.in_place)

    def ids(self, row: Row) -> list[Ints]:
        """Return the ids of each column."""
        mark = [self.rows.n_ids]
        if self.rows.in_place:
            return [np.concatenate([mark, row.source_N])]
        target_T = np.concatenate([mark, row.target_T[:-1]])
        if len(self.columns) == 2:
            return [row.source_N, target_T]
        return [np.concatenate([row.source_N, target_T])]

    def batch(self, rows: Sequence[Row], numbers: Sequence[int]) -> Batch:
        """Return the batch of rows of one length."""
        if not rows:
            none = torch.zeros(0, dtype=torch.long)
            columns = dict.fromkeys(self.columns, Column(none.view(0, 1), none))
            return Batch(columns, none, none, [], 0)
        sides = [np.stack(side) for side in zip(*map(self.ids, rows), strict=True)]
        scored_BT = np.stack([row.scored_T for row in rows])
        row_R, place_R = scored_BT.nonzero()
        first, n_positions = self.first_target(rows[0]), sides[-1].shape[1]
        targets_R = np.stack([row.target_T for row in rows])[scored_BT]
        columns = {
            name: Column(torch.from_numpy(side), torch.full((len(rows),), side.shape[1]))
            for name, side in zip(self.columns, sides, strict=True)
        }
        scored_R = torch.from_numpy(row_R * n_positions + first + place_R)
        return Batch(columns, scored_R, torch.from_numpy(targets_R), [*numbers], len(targets_R))


class TrainingRows:
    """New rows in every epoch (`headwise.data.loader.Examples`); each batch has one length.

    Args:
        layout: of the rows.
        data: lengths and their curriculum, in batches.
        n_rows: of a batch, over all ranks together.
        seed: of the run.
    """

    def __init__(self, layout: Layout, data: SequenceConfig, n_rows: int, seed: int) -> None:
        self.layout, self.data, self.n_rows, self.seed = layout, data, n_rows, seed
        self.row = lru_cache(4 * n_rows)(self._row)  # a batch is counted, then collated

    def plan(self, epoch: int) -> list[Ints]:
        """See `Examples.plan`."""
        return [*np.arange(self.data.epoch_batches * self.n_rows).reshape(-1, self.n_rows)]

    def length(self, epoch: int, batch: int) -> int:
        """Return the length of the sources of a batch, from 0."""
        number = (epoch - 1) * self.data.epoch_batches + batch
        low, high, first = self.data.min_length, self.data.max_length, self.data.first_length
        if number < self.data.curriculum:
            high = first + (high - first) * number // self.data.curriculum
        draws = np.random.default_rng([TRAIN, self.seed, number])
        return int(draws.integers(min(low, high), high + 1))

    def _row(self, epoch: int, number: int) -> Row:
        draws = np.random.default_rng([TRAIN, self.seed, epoch, number])
        return self.layout.rows.row(draws, self.length(epoch, number // self.n_rows))

    def n_targets(self, epoch: int, rows: Any) -> int:
        return sum(int(self.row(epoch, row).scored_T.sum()) for row in rows.tolist())

    def collate(self, epoch: int, rows: Any) -> Batch:
        numbers = rows.tolist()
        return self.layout.batch([self.row(epoch, number) for number in numbers], numbers)

    def identity(self) -> dict[str, int]:
        return {"seed": self.seed, "budget": self.n_rows}


def evaluation_row(rows: Rows, length: int, number: int, seed: int = 0) -> Row:
    """Return a row for evaluation, the same for every run."""
    return rows.row(np.random.default_rng([EVALUATION, seed, length, number]), length)
