"""A sparse pattern as one rule, from which masks, block layouts and lists of blocks follow.

Axes: B batch, H heads, N positions, Q queries.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
from torch import Tensor

from headwise.compilation import constant_in_graphs, may_keep_tensors

NO_WINDOW = -1
POSITION, BLOCK, COLUMN = "position", "block", "column"  # which positions have one label


@dataclass(frozen=True)
class Rule:
    """Which keys a query may attend to, besides causality and padding.

    These are keys at most a window away, keys of the query's label, and keys for every query.
    Positions are arranged in rows of `stride`, the blocks.

    Attributes:
        stride: number of positions of a block.
        windows: per head, the largest distance; `NO_WINDOW`: none is near.
        labels: per head, what has one label: `POSITION` (itself alone), `BLOCK` or `COLUMN` (all
            positions equal modulo `stride`).
        every_BHN: keys for every query, bool (B or 1, H or 1, N); None: there are none.
        n_every: their largest number in a block.
        every_blocks: number of blocks, from the first on, that have such keys; None: all.
    """

    stride: int
    windows: tuple[int, ...]
    labels: tuple[str, ...]
    every_BHN: Tensor | None = None
    n_every: int = 0
    every_blocks: int | None = None

    def allows(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Return bool (B or 1, H or 1, ...) for positions (...) that broadcast.

        Keys outside of the sequence count as its first or last key.
        """
        n_axes = max(queries.dim(), keys.dim())
        queries, keys = (x[(None,) * (n_axes - x.dim())] for x in (queries, keys))
        allowed = self.related(queries, keys)[None]
        if self.every_BHN is not None:
            allowed = allowed | self.every_BHN[..., keys.clamp(0, self.every_BHN.shape[-1] - 1)]
        return allowed

    def related(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Return which pairs share a label or are near, (H or 1, ...), for as many axes each."""
        related = self.labels_of(queries) == self.labels_of(keys)
        if any(window != NO_WINDOW for window in self.windows):
            windows_H = per_head(self.windows, torch.int32, keys.device)
            related = related | ((queries - keys).abs() <= windows_H.view(-1, *(1,) * keys.dim()))
        return related

    def labels_of(self, positions: Tensor) -> Tensor:
        """Return the labels of positions (...), at least 0: int64, (H or 1, ...)."""
        of_kind = {POSITION: positions}
        if BLOCK in self.labels:
            of_kind[BLOCK] = torch.div(positions, self.stride, rounding_mode="floor")
        if COLUMN in self.labels:
            of_kind[COLUMN] = positions % self.stride
        if len(set(self.labels)) == 1:
            return of_kind[self.labels[0]][None]
        return torch.stack([of_kind[kind] for kind in self.labels])

    def dense(self, queries_Q: Tensor, n_keys: int) -> Tensor:
        """Return which of the first `n_keys` the queries may attend to, (B or 1, H or 1, Q, K)."""
        return self.allows(queries_Q[:, None], torch.arange(n_keys, device=queries_Q.device))


@constant_in_graphs
def per_head(values_H: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return one constant per head, or one if they are equal, as a tensor on a device.

    Copied to a device once.
    """
    on_device = _on_device if may_keep_tensors() else _on_device.__wrapped__
    return on_device(values_H[:1] if len(set(values_H)) == 1 else values_H, dtype, device)


@functools.lru_cache(maxsize=256)  # (False, True) == (0, 1): the type distinguishes them
def _on_device(values_H: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    with torch.inference_mode(False):  # it may be saved for a backward pass later
        return torch.tensor(values_H, dtype=dtype, device=device)
