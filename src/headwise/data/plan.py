"""The pairs of each batch, as a pure function of lengths, budget, seed and epoch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

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
