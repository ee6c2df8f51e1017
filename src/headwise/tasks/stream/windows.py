"""Windows of one stream of tokens, on which a model is trained and scored.

A window of a density model scores `window` tokens, each given the previous ones of the window and
the token before the window. A start token precedes the first token of a split and of each of its
documents, so that it is scored too. Windows of a masked language model are in
`headwise.tasks.stream.masked_lm`.

Axes: B windows, N tokens of a window, R scored tokens of a batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from headwise.data.batch import Batch, Column
from headwise.data.loader import windows_per_batch
from headwise.data.tokenizer import COLUMN
from headwise.errors import DataError
from headwise.tasks.stream.stream import TokenStream

Ints = npt.NDArray[np.integer[Any]]
Longs = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


def window_batch(
    stream: TokenStream,
    start_id: int,
    starts: Ints,
    window: int,
    rows: Ints,
    min_context: int = 0,
) -> Batch:
    """The batch of the windows at `starts`.

    Args:
        stream: the tokens of a split.
        start_id: id of the token before a document.
        starts: position of the first predicted token of each window.
        window: predicted tokens; fewer in a window at the end of the split.
        rows: numbers of the windows.
        min_context: number of the first tokens of a window that are not scored; the first window
            of the split scores all.
    """
    positions_BN, ids_BN, is_real_BN = window_ids(stream, starts, window)
    before_BN = np.zeros_like(ids_BN)
    before_BN[is_real_BN] = stream.before(positions_BN[is_real_BN], start_id)
    skipped_B = np.where(starts > 0, min_context, 0)
    is_scored_BN = is_real_BN & (np.arange(ids_BN.shape[1]) >= skipped_B[:, None])
    column = window_column(stream, before_BN, positions_BN, is_real_BN)
    return scored_batch(column, is_scored_BN, ids_BN, rows)


def window_ids(stream: TokenStream, starts: Ints, window: int) -> tuple[Longs, Longs, Bools]:
    """Positions and ids of the windows at `starts`, and which are in the split: (B, N) each."""
    lengths_B = np.minimum(len(stream.ids) - starts, window).astype(np.int64)
    width = int(lengths_B.max(initial=0))
    positions_BN = starts[:, None].astype(np.int64) + np.arange(width)
    is_real_BN = np.arange(width) < lengths_B[:, None]
    ids_BN = np.zeros(positions_BN.shape, np.int64)
    ids_BN[is_real_BN] = stream.ids[positions_BN[is_real_BN]]
    return positions_BN, ids_BN, is_real_BN


def window_column(
    stream: TokenStream, inputs_BN: Ints, positions_BN: Longs, is_real_BN: Bools
) -> Column:
    """The column of a model that reads `inputs_BN` at these positions."""
    segments_BN = stream.segments(positions_BN)
    segments = None if segments_BN is None else torch.from_numpy(segments_BN)
    lengths_B = torch.from_numpy(is_real_BN.sum(1))
    return Column(torch.from_numpy(inputs_BN), lengths_B, segments_BN=segments)


def scored_batch(column: Column, is_scored_BN: Bools, ids_BN: Ints, rows: Ints) -> Batch:
    """The batch that predicts the scored ones of `ids_BN`."""
    scored_R, targets_R = np.flatnonzero(is_scored_BN), ids_BN[is_scored_BN]
    targets = torch.from_numpy(targets_R)
    return Batch(
        {COLUMN: column}, torch.from_numpy(scored_R), targets, rows.tolist(), len(targets_R)
    )


@dataclass
class TrainingWindows:
    """Windows drawn by seed and epoch (`headwise.data.loader.Examples`).

    An epoch has consecutive windows from a random position below `window` on, in random order; it
    skips the tokens left at both ends.

    Args:
        stream: the tokens of the training split.
        start_id: id of the token before a document.
        window: scored tokens of a window.
        max_tokens: see `windows_per_batch`.
        seed: with the epoch, determines the windows and their order.
        world_size: number of ranks.
        aligned: whether the first window starts at position 0 in every epoch.

    Raises:
        DataError: the split is shorter than a window, or is one document and has a document mask.
    """

    stream: TokenStream
    start_id: int
    window: int
    max_tokens: int
    seed: int
    world_size: int = 1
    aligned: bool = False

    def __post_init__(self) -> None:
        if len(self.stream.ids) < self.window:
            raise DataError(
                f"the training split has {len(self.stream.ids)} tokens, fewer than data.window="
                f"{self.window}"
            )
        if self.stream.document_mask and len(self.stream.document_starts) == 1:
            raise DataError(
                "data.document_mask=true, but the training split is one document (data.documents)"
            )

    def _first(self, epoch: int) -> tuple[int, np.random.Generator]:
        generator = np.random.default_rng([self.seed, epoch])
        last = 0 if self.aligned else min(self.window - 1, len(self.stream.ids) - self.window)
        return int(generator.integers(last + 1)), generator

    def plan(self, epoch: int) -> list[Ints]:
        first, generator = self._first(epoch)
        order = generator.permutation((len(self.stream.ids) - first) // self.window)
        n_rows = windows_per_batch(self.max_tokens, self.window) * self.world_size
        return [order[start : start + n_rows] for start in range(0, len(order), n_rows)]

    def n_targets(self, epoch: int, rows: Ints) -> int:
        return len(rows) * self.window

    def collate(self, epoch: int, rows: Ints) -> Batch:
        starts = self.starts(epoch, rows)
        return window_batch(self.stream, self.start_id, starts, self.window, rows)

    def starts(self, epoch: int, rows: Ints) -> Ints:
        """Position of the first scored token of each of these rows."""
        return self._first(epoch)[0] + rows * self.window

    def identity(self) -> dict[str, int]:
        budget = self.max_tokens * self.world_size
        return {"seed": self.seed, "budget": budget, "window": self.window}


@dataclass(frozen=True)
class EvaluationWindows(Sequence[Batch]):
    """Batches of windows that score each token of a split once, created when read.

    With `min_context` above 0 the windows overlap: every scored token follows at least that many
    tokens of its window, except in the first window (Child et al. 2019, Table 3).

    Args:
        stream: the tokens of a split.
        start_id: id of the token before a document.
        window: predicted tokens of a window.
        max_tokens: see `windows_per_batch`.
        min_context: tokens of a window that the previous window scores, below `window`.
        max_windows: score only so many windows, evenly spaced; 0: all.
    """

    stream: TokenStream
    start_id: int
    window: int
    max_tokens: int
    min_context: int = 0
    max_windows: int = 0

    @cached_property
    def starts(self) -> Ints:
        """Position of the first predicted token of each window."""
        n_tokens, step = len(self.stream.ids), self.window - self.min_context
        n_windows = max(min(n_tokens, 1), -(-(n_tokens - self.min_context) // step))
        n_rows = min(n_windows, self.max_windows or n_windows)
        return np.arange(n_rows) * n_windows // max(n_rows, 1) * step

    @property
    def scored(self) -> list[tuple[int, int]]:
        """Positions [first, end) of the tokens that each window scores."""
        firsts_W = self.starts + np.where(self.starts > 0, self.min_context, 0)
        ends_W = np.minimum(self.starts + self.window, len(self.stream.ids))
        return list(zip(firsts_W.tolist(), ends_W.tolist(), strict=True))

    @property
    def _n_rows(self) -> int:
        return windows_per_batch(self.max_tokens, self.window)

    def __len__(self) -> int:
        return -(-len(self.starts) // self._n_rows)

    def __getitem__(self, index: Any) -> Any:
        """One batch; slices are not defined."""
        if not 0 <= index < len(self):
            raise IndexError(index)
        first, end = index * self._n_rows, (index + 1) * self._n_rows
        starts_B = self.starts[first:end]
        return self.batch(starts_B, np.arange(first, first + len(starts_B)))

    def batch(self, starts_B: Ints, rows: Ints) -> Batch:
        """The batch of the windows at these positions."""
        context = self.min_context
        return window_batch(self.stream, self.start_id, starts_B, self.window, rows, context)
