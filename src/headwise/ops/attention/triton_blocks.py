"""Lists of blocks for the Triton kernels and, of sparse patterns, the order of positions.

The kernels compute blocks of scores, a fixed number of queries by a fixed number of keys. Positions
are put into slots, in an order per head in which the visible pairs are in few blocks: keys for
every query first, a column as neighbours. Lists say which blocks have a visible pair, and whether
they have others. The kernels read positions and labels of the slots in a block, and decide for each
pair.

Axes: B batch, H heads, N positions, T blocks.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from headwise.ops.attention.pattern_rule import COLUMN, NO_WINDOW, Rule, per_head
from headwise.ops.triton.device import on_device

EVERY_QUERY = -1  # label of keys for every query
# Positions that are neighbours in the order, as (rows, columns) of a matrix with rows of `stride`,
# for heads that see columns. A block of 64 has few columns and, with a window too, few rows.
COLUMN_CELL, MERGED_CELL = (64, 1), (4, 16)


class PatternTiles(NamedTuple):
    """A pattern as the kernels read it.

    Attributes:
        places: see `places`.
        windows: int32, (H,).
        lists: int16, (B or 1, H, T, 1 + T), see `block_lists`.
    """

    places: Tensor
    windows: Tensor
    lists: Tensor


def block_lists(live: Tensor, by_keys: bool) -> Tensor:
    """Return for every line of blocks the number of marked ones and their entries.

    The number is not above 32,767; entries are those of `triton_visible.listed_block`.
    """
    from headwise.ops.attention import triton_backward

    n_batch, n_heads, n_query_blocks, n_key_blocks = live.shape
    n_lines, n_items, stride_line, stride_item = n_query_blocks, n_key_blocks, n_key_blocks, 1
    if by_keys:
        n_lines, n_items, stride_line, stride_item = n_key_blocks, n_query_blocks, 1, n_key_blocks
    lists = live.new_empty(n_batch, n_heads, n_lines, 1 + n_items, dtype=torch.int16)
    with on_device(live):
        triton_backward.live_lists[(n_batch * n_heads * n_lines,)](
            live, lists, stride_line, stride_item, n_lines, n_items, CHUNK=128, num_warps=1
        )
    return lists


def mask_lists(
    lengths_B: Tensor | None, keys_BK: Tensor | None, segments_BN: Tensor | None, n_queries: int,
    n_keys: int, causal: bool, query_offset: int, block: int,
) -> Tensor | None:  # fmt: skip
    """Return the lists of square blocks with a visible pair, int16 (B, 1, T, 1 + T) of K and Q.

    None with neither a mask of keys nor documents: the kernels read the limits of padding and of
    causality themselves.
    """
    some = keys_BK if segments_BN is None else segments_BN
    if some is None:
        return None
    n_lines, n_items = -(-n_queries // block), -(-n_keys // block)
    any_visible = all_visible = some.new_ones(len(some), 1, n_lines, n_items, dtype=torch.bool)
    if keys_BK is not None:
        any_key, all_keys = _key_blocks(keys_BK[:, None], block)
        any_visible, all_visible = any_visible & any_key, all_visible & all_keys
    if segments_BN is not None:
        documents = segments_BN[:, None]
        overlap, are_equal = _document_blocks(documents, documents, block)
        any_visible, all_visible = any_visible & overlap, all_visible & are_equal
    first_k = torch.arange(n_items, device=some.device) * block
    if causal:
        last_q = torch.arange(1, 1 + n_lines, device=some.device)[:, None] * block - 1
        any_visible = any_visible & (first_k <= last_q + query_offset)
    if lengths_B is not None:
        any_visible = any_visible & (first_k < lengths_B.view(-1, 1, 1, 1))
    return block_lists(_as_marks(any_visible, all_visible), by_keys=False)


def pattern_tiles(
    rule: Rule, n: int, causal: bool, lengths_B: Tensor, block: int,
    segments_BN: Tensor | None = None, keys_BN: Tensor | None = None,
) -> PatternTiles:  # fmt: skip
    """Return the arguments of the kernels for `n` positions, for square blocks of this size."""
    windows_H = per_head(rule.windows, torch.int32, lengths_B.device).expand(len(rule.windows))
    of_slots = places(rule, n, len(lengths_B), lengths_B.device)
    marks = _marks(of_slots, windows_H, causal, lengths_B, block, segments_BN, keys_BN)
    return PatternTiles(of_slots, windows_H.contiguous(), block_lists(marks, by_keys=False))


def places(rule: Rule, n: int, n_batch: int, device: torch.device) -> Tensor:
    """Return int32 (n_batch, H, 4, N): by slot, positions and labels of queries, and of keys."""
    positions = torch.arange(n, device=device)
    labels_HN = rule.labels_of(positions).expand(len(rule.labels), -1)
    order_HN = _order(rule, positions)
    key_order_HN, key_labels_BHN = order_HN, labels_HN[None]
    if rule.every_BHN is not None:
        is_other_HN = ~rule.every_BHN.any(0).expand_as(labels_HN)
        first = is_other_HN.gather(1, order_HN).int().argsort(dim=1, stable=True)
        key_order_HN = order_HN.gather(1, first)
        key_labels_BHN = key_labels_BHN.masked_fill(rule.every_BHN, EVERY_QUERY)
    key_labels_BHN = key_labels_BHN.expand(n_batch, -1, -1)
    key_order_BHN = key_order_HN.expand_as(key_labels_BHN)
    parts = (
        order_HN, labels_HN.gather(1, order_HN),
        key_order_BHN, key_labels_BHN.gather(2, key_order_BHN),
    )  # fmt: skip
    return torch.stack([part.expand_as(key_labels_BHN).int() for part in parts], 2)


def _order(rule: Rule, positions: Tensor) -> Tensor:
    """Return the positions by slot, (H, N)."""
    rows, columns = positions // rule.stride, positions % rule.stride
    cells = [
        (1, rule.stride) if label != COLUMN else COLUMN_CELL if window == NO_WINDOW else MERGED_CELL
        for label, window in zip(rule.labels, rule.windows, strict=True)
    ]
    height, width = (
        per_head(sizes, torch.int64, positions.device)[:, None]
        for sizes in zip(*cells, strict=True)
    )
    in_row = (rule.stride + width - 1) // width
    cell_HN = rows // height * in_row + columns // width
    order_HN = ((cell_HN * height + rows % height) * width + columns % width).argsort(1)
    return order_HN.expand(len(rule.labels), -1)


def _marks(
    places: Tensor, windows_H: Tensor, causal: bool, lengths_B: Tensor, block: int,
    segments_BN: Tensor | None, keys_BN: Tensor | None,
) -> Tensor:  # fmt: skip
    """Return uint8 (B or 1, H, T, T): 0 no visible pair, 1 all are visible, 2 neither is known.

    From the range of positions, of labels and of documents in each block.
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
    if segments_BN is not None:
        shape = (max(len(segments_BN), len(places)), places.shape[1], -1)
        of_queries, of_keys = (
            segments_BN[:, None].expand(shape).gather(2, slots[:, :, 0].expand(shape).long())
            for slots in (queries, keys)
        )
        overlap, are_equal = _document_blocks(of_queries, of_keys, block)
        any_visible, all_visible = any_visible & overlap, all_visible & are_equal
    if keys_BN is not None:
        shape = (max(len(keys_BN), len(places)), places.shape[1], -1)
        of_slots = keys_BN[:, None].expand(shape).gather(2, keys[:, :, 0].expand(shape).long())
        any_key, all_keys = _key_blocks(of_slots, block)
        any_visible, all_visible = any_visible & any_key, all_visible & all_keys
    return _as_marks(any_visible, all_visible)


def _key_blocks(keys: Tensor, block: int) -> tuple[Tensor, Tensor]:
    """Return whether any and all keys (B, H or 1, N) of each block are there, (B, H or 1, 1, T)."""
    padded = functional.pad(keys, (0, -keys.shape[-1] % block))
    blocks = padded.view(*keys.shape[:2], 1, -1, block)
    return blocks.any(-1), blocks.all(-1)


def _as_marks(any_visible: Tensor, all_visible: Tensor) -> Tensor:
    return any_visible.to(torch.uint8) << (any_visible & ~all_visible).to(torch.uint8)


def _document_blocks(of_queries: Tensor, of_keys: Tensor, block: int) -> tuple[Tensor, Tensor]:
    """Return whether blocks may have a pair of one document, and have one document alone.

    Args:
        of_queries, of_keys: document in each slot, (B, H or 1, N).
        block: size.

    Returns:
        Two masks (B, H or 1, T, T).
    """
    (low_q, high_q), (low_k, high_k) = (
        [bounds.unsqueeze(axis) for bounds in _bounds(documents, block)]
        for documents, axis in ((of_queries, -1), (of_keys, -2))
    )
    overlap = (low_k <= high_q) & (low_q <= high_k)
    return overlap, (low_q == high_q) & (low_k == high_k) & (low_q == low_k)


def _bounds(values: Tensor, block: int) -> tuple[Tensor, Tensor]:
    """Return smallest and largest value (..., T) of each block; slots after the last have N."""
    n_positions = values.shape[-1]
    padded = functional.pad(values, (0, -n_positions % block), value=n_positions)
    low, high = padded.view(*values.shape[:-1], -1, block).aminmax(dim=-1)
    return low, high


def _ranges(places: Tensor, block: int, axis: int) -> list[tuple[Tensor, Tensor]]:
    """Return smallest and largest (positions, labels) of each block, with a further axis of 1.

    Slots after the last count as position N, so that no key in them is visible.
    """
    low, high = (bounds.unsqueeze(axis) for bounds in _bounds(places, block))
    return [(low[:, :, 0], low[:, :, 1]), (high[:, :, 0], high[:, :, 1])]
