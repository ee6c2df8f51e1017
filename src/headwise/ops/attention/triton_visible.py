"""Which pairs of queries and keys are visible, for the fused α-entmax attention kernels.

By padding, causality and a pattern (`headwise.ops.attention.triton_blocks`), which also says where
the positions of a block are, and lists the blocks.

Axes: M queries and N keys of a tile.
"""

from __future__ import annotations

import triton
import triton.language as tl

ALL_FULL = tl.constexpr(1 << 30)  # more than any number of keys


@triton.jit
def n_allowed_keys(lengths, batch, n_keys):
    """Return the number of keys before padding."""
    if lengths is not None:
        return tl.minimum(tl.load(lengths + batch).to(tl.int32), n_keys)
    return n_keys


@triton.jit
def places_of(pattern, row, slots, n_positions, ARE_KEYS: tl.constexpr):
    """Return the positions in some slots, and their labels; without a pattern, the slots."""
    positions, labels = slots, slots
    if pattern is not None:
        table = pattern[0] + (row % pattern[1]) * 4 * n_positions
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
        window = tl.load(pattern[2] + head)
    return window


@triton.jit
def listed_blocks(lists, line, n_items):
    """Return the list of a line of at most `n_items` blocks, and its length, stored before it."""
    block_list = lists + line * (1 + n_items)
    return block_list + 1, tl.load(block_list).to(tl.int32)


@triton.jit
def listed_block(block_list, item, full, BLOCK: tl.constexpr):
    """Return an entry of a list, its block, and whether the block has pairs that are not visible.

    The entry is the block if the list says that all pairs are visible, or nothing about it, and ~
    block if some are not. Without a list, it is the item.
    """
    entry = item
    if block_list is not None:
        entry = tl.load(block_list + item).to(tl.int32)
    block = tl.maximum(entry, ~entry)
    return entry, block, (entry < 0) | ((block + 1) * BLOCK > full)


@triton.jit
def visible(rows_M, first, allowed, query_offset, cut):
    """Return the numbers of keys visible to each query (M,), to all queries, and to any query.

    With a pattern, the second is `ALL_FULL`, as its lists say which blocks are visible to all.
    """
    limit_M = rows_M * 0 + allowed
    full, reach = allowed, allowed
    if cut.CAUSAL:
        limit_M = tl.minimum(limit_M, rows_M + query_offset + 1)
        full = tl.minimum(full, first + query_offset + 1)
        reach = tl.minimum(reach, first + cut.BLOCK_M + query_offset)
    if cut.PATTERN:
        full = ALL_FULL + 0
    return limit_M, full, reach


@triton.jit
def is_visible(keys, key_labels, limits, labels, positions, window, cut):
    """Return which pairs are visible; all but the window broadcast to the tile.

    With a pattern these are keys before the limit of the query, of its label, of a negative label,
    or at most a window away.
    """
    visible = keys < limits
    if cut.PATTERN:
        is_near = tl.abs(positions - keys) <= window
        visible = visible & (is_near | (key_labels == labels) | (key_labels < 0))
    return visible
