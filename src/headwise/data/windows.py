"""Windows of one stream of tokens, on which a density model is trained and scored.

A window scores `window` tokens, each given the previous ones of the window and the token before
the window. A start token precedes the first token of a split and of each of its documents, so that
it is scored too.

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
from headwise.data.token_stream import COLUMN, TokenStream
from headwise.errors import DataError

Ints = npt.NDArray[np.integer[Any]]


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
    lengths_B = np.minimum(len(stream.ids) - starts, window).astype(np.int64)
    width = int(lengths_B.max(initial=0))
    positions_BN = starts[:, None] + np.arange(width)
    is_real_BN = np.arange(width) < lengths_B[:, None]
    targets_BN, before_BN = np.zeros((2, *positions_BN.shape), np.int64)
    targets_BN[is_real_BN] = stream.ids[positions_BN[is_real_BN]]
    before_BN[is_real_BN] = stream.before(positions_BN[is_real_BN], start_id)
    skipped_B = np.where(starts > 0, min_context, 0)
    is_scored_BN = is_real_BN & (np.arange(width) >= skipped_B[:, None])
    tensor = torch.from_numpy
    scored_R, targets_R = np.flatnonzero(is_scored_BN), targets_BN[is_scored_BN]
    segments_BN = stream.segments(positions_BN)
    segments = None if segments_BN is None else tensor(segments_BN)
    columns = {COLUMN: Column(tensor(before_BN), tensor(lengths_B), segments_BN=segments)}
    return Batch(columns, tensor(scored_R), tensor(targets_R), rows.tolist(), len(targets_R))


def windows_per_batch(max_tokens: int, window: int) -> int:
    """Number of windows in a batch of a rank."""
    return max(1, max_tokens // window)


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
        """See `Examples.plan`."""
        first, generator = self._first(epoch)
        order = generator.permutation((len(self.stream.ids) - first) // self.window)
        n_rows = windows_per_batch(self.max_tokens, self.window) * self.world_size
        return [order[start : start + n_rows] for start in range(0, len(order), n_rows)]

    def n_targets(self, epoch: int, rows: Ints) -> int:
        """See `Examples.n_targets`."""
        return len(rows) * self.window

    def collate(self, epoch: int, rows: Ints) -> Batch:
        """See `Examples.collate`."""
        starts = self._first(epoch)[0] + rows * self.window
        return window_batch(self.stream, self.start_id, starts, self.window, rows)

    def identity(self) -> dict[str, int]:
        """See `Examples.identity`."""
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
        rows = np.arange(first, first + len(starts_B))
        return window_batch(
            self.stream, self.start_id, starts_B, self.window, rows, self.min_context
        )
