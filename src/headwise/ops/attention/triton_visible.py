"""Which pairs of queries and keys are visible, for the fused α-entmax attention kernels.

By padding, causality and a pattern (`headwise.ops.attention.triton_blocks`), which also says where
the positions of a block are, and lists the blocks.

Axes: M queries and N keys of a tile.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

ALL_FULL = tl.constexpr(1 << 30)  # more than any number of keys


class Keys(NamedTuple):
    """Keys of a block."""

    positions_N: Any
    labels_N: Any  # of a pattern; else the positions


class Sight(NamedTuple):
    """Which keys some queries see, see `is_visible`."""

    limit_M: Any  # keys before it
    labels_M: Any  # of a pattern
    window: Any  # of a pattern


class Blocks(NamedTuple):
    """Blocks of keys: some entries of `listed_block`, or all blocks if the list is None."""

    entries: Any
    number: Any


@triton.jit
def n_allowed_keys(lengths, batch, n_keys):
    """Return the number of keys before padding."""
    if lengths is not None:
        return tl.minimum(tl.load(lengths + batch).to(tl.int32), n_keys)
    return n_keys


@triton.jit
def places_of(pattern, bh, slots, n_positions, ARE_KEYS: tl.constexpr):
    """Return the positions in some slots, and their labels; without a pattern, the slots."""
    positions, labels = slots, slots
    if pattern is not None:
        table = pattern.places + (bh % pattern.n_places) * 4 * n_positions
        if ARE_KEYS:
            table += 2 * n_positions
        inside = slots < n_positions
        positions = tl.load(table + slots, mask=inside, other=n_positions)
        labels = tl.load(table + n_positions + slots, mask=inside, other=0)
    return positions, labels


@triton.jit
def window_of(pattern, head):
    """Return the window of a head, 0 without a pattern."""
    window = 0
    if pattern is not None:
        window = tl.load(pattern.windows + head)
    return window


@triton.jit
def listed_blocks(lists, line, n_items):
    """Return the listed `Blocks` of a line of at most `n_items`; their number is stored first."""
    block_list = lists + line * (1 + n_items)
    return Blocks(block_list + 1, tl.load(block_list).to(tl.int32))


@triton.jit
def listed_block(entries, item, full, BLOCK: tl.constexpr):
    """Return an entry of a list, its block, and whether the block has pairs that are not visible.

    The entry is the block if the list says that all pairs are visible, or nothing about it, and ~
    block if some are not. Without a list, it is the item.
    """
    entry = item
    if entries is not None:
        entry = tl.load(entries + item).to(tl.int32)
    block = tl.maximum(entry, ~entry)
    return entry, block, (entry < 0) | ((block + 1) * BLOCK > full)


@triton.jit
def visible(rows_M, first, allowed, query_offset, const):
    """Return the numbers of keys visible to each query (M,), to all queries, and to any query.

    With a pattern, the second is `ALL_FULL`, as its lists say which blocks are visible to all.
    """
    limit_M = rows_M * 0 + allowed
    full, reach = allowed, allowed
    if const.CAUSAL:
        limit_M = tl.minimum(limit_M, rows_M + query_offset + 1)
        full = tl.minimum(full, first + query_offset + 1)
        reach = tl.minimum(reach, first + const.BLOCK_M + query_offset)
    if const.PATTERN:
        full = ALL_FULL + 0
    return limit_M, full, reach


@triton.jit
def is_visible(keys, sight, positions, QUERY_AXIS: tl.constexpr, const):
    """Return which pairs of a tile are visible.

    These are keys before the limit of the query; with a pattern of its label, of a negative label,
    or at most a window away.

    Args:
        keys, sight: `Keys` and `Sight` of the tile.
        positions: of the queries, broadcastable to the tile.
        QUERY_AXIS: axis of the queries in the tile.
        const: constants.
    """
    keys_N = tl.expand_dims(keys.positions_N, QUERY_AXIS)
    visible = keys_N < tl.expand_dims(sight.limit_M, 1 - QUERY_AXIS)
    if const.PATTERN:
        labels_N = tl.expand_dims(keys.labels_N, QUERY_AXIS)
        is_labelled = labels_N == tl.expand_dims(sight.labels_M, 1 - QUERY_AXIS)
        is_near = tl.abs(positions - keys_N) <= sight.window
        visible = visible & (is_near | is_labelled | (labels_N < 0))
    return visible
