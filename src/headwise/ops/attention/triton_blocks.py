"""Sparse patterns for the Triton kernels: the order of positions, and lists of blocks.

The kernels compute blocks of scores, a fixed number of queries by a fixed number of keys. Positions
are put into slots, in an order per head in which the visible pairs are in few blocks: summary cells
first, a column as neighbours. Lists say which blocks have a visible pair, and whether they have
others. The kernels read positions and labels of the slots in a block, and decide for each pair.

Axes: B batch, H heads, N positions, T blocks.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional


class PatternTiles(NamedTuple):
    """A pattern as the kernels read it.

    Attributes:
        places: see `Rule.places`.
        windows: int32, (H,).
        lists: int16, (B or 1, H, T, 1 + T), see `block_lists`.
    """

    places: Tensor
    windows: Tensor
    lists: Tensor


def _marks(
    places: Tensor, windows_H: Tensor, causal: bool, lengths_B: Tensor, block: int
) -> Tensor:
    """Return uint8 (B or 1, H, T, T): 0 no visible pair, 1 all are visible, 2 neither is known.

    From the range of positions and of labels in each block.
    """
    queries, keys = places[:, :, :2], places[:, :, 2:]
    (first_q, label_q), (last_q, last_label_q) = _ranges(queries, block, -1)
    (first_k, label_k), (last_k, last_label_k) = _ranges(keys, block, -2)
    window, length = windows_H[:, None, None], lengths_B.view(-1, 1, 1, 1)
    any_visible = torch.maximum(first_k - last_q, first_q - last_k).clamp_(min=0) <= window
    any_visible |= (label_k <= last_label_q) & (label_q <= last_label_k) | (label_k < 0)
    any_visible &= first_k < length
    all_visible = torch.maximum(last_k - first_q, last_q - first_k) <= window
    is_one_label = (label_q == last_label_q) & (label_k == last_label_k) & (label_q == label_k)
    all_visible |= is_one_label | (last_label_k < 0)
    all_visible &= last_k < length
    if causal:
        any_visible &= first_k <= last_q
        all_visible &= last_k <= first_q
    return any_visible.to(torch.uint8) << (any_visible & ~all_visible).to(torch.uint8)


def _ranges(places: Tensor, block: int, axis: int) -> list[tuple[Tensor, Tensor]]:
    """Return smallest and largest (positions, labels) of each block, with a further axis of 1.

    Slots after the last count as position N, so that no key in them is visible.
    """
    n_positions = places.shape[-1]
    padded = functional.pad(places, (0, -n_positions % block), value=n_positions)
    blocks = padded.view(*places.shape[:-1], -1, block)
    low, high = (bounds.unsqueeze(axis) for bounds in blocks.aminmax(dim=-1))
    return [(low[:, :, 0], low[:, :, 1]), (high[:, :, 0], high[:, :, 1])]
