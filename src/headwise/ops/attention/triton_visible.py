"""Which pairs of queries and keys are visible, for the fused α-entmax attention kernels.

By padding, a mask of keys, causality, documents and a pattern
(`headwise.ops.attention.triton_blocks`), which also says where the positions of a block are. Lists
say which blocks have a visible pair.

Axes: M queries and N keys of a tile.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

ALL_FULL = tl.constexpr(1 << 30)  # more than any number of keys


class Keys(NamedTuple):
    """Keys of a block."""

    positions_N: Any  # the number of keys, for a key that no query sees
    labels_N: Any  # of a pattern; else the positions
    segments_N: Any  # documents; else the positions


class Sight(NamedTuple):
    """Which keys some queries see, see `is_visible`."""

    limit_M: Any  # keys before it
    labels_M: Any  # of a pattern
    segments_M: Any  # documents
    window: Any  # of a pattern


class Blocks(NamedTuple):
    """Blocks of keys: some entries of `listed_block`, or all blocks if the list is None."""

    entries: Any
    number: Any


@triton.jit
def n_allowed_keys(masks, batch, n_keys):
    """Return the number of keys before padding."""
    if masks.lengths is not None:
        return tl.minimum(tl.load(masks.lengths + batch).to(tl.int32), n_keys)
    return n_keys


@triton.jit
def segments_of(masks, batch, positions, n_positions):
    """Return the documents of some positions; without documents, the positions."""
    segments = positions
    if masks.segments is not None:
        pointers = masks.segments + batch * n_positions + positions
        segments = tl.load(pointers, mask=positions < n_positions, other=-1)
    return segments


@triton.jit
def load_keys(pattern, masks, at, slots_N, n_keys):
    """Return the `Keys` in some slots. A key that is masked counts as one after the last."""
    positions_N, labels_N = places_of(pattern, at.bh, slots_N, n_keys, True)
    segments_N = segments_of(masks, at.batch, positions_N, n_keys)
    if masks.keys is not None:
        pointers_N = masks.keys + at.batch * n_keys + positions_N
        allowed_N = tl.load(pointers_N, mask=positions_N < n_keys, other=0)
        positions_N = tl.where(allowed_N != 0, positions_N, n_keys)
    return Keys(positions_N, labels_N, segments_N)


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

    With a pattern, the second is `ALL_FULL`, as its lists say which blocks are visible to all, and
    0 with a mask that no list has.
    """
    limit_M = rows_M * 0 + allowed
    full, reach = allowed, allowed
    if const.CAUSAL:
        limit_M = tl.minimum(limit_M, rows_M + query_offset + 1)
        full = tl.minimum(full, first + query_offset + 1)
        reach = tl.minimum(reach, first + const.BLOCK_M + query_offset)
    if const.PATTERN:
        full = ALL_FULL + 0
    if const.UNLISTED:
        full = 0
    return limit_M, full, reach


@triton.jit
def is_visible(keys, sight, positions, QUERY_AXIS: tl.constexpr, const):
    """Return which pairs of a tile are visible.

    These are keys before the limit of the query and of its document; with a pattern of its label,
    of a negative label, or at most a window away.

    Args:
        keys, sight: `Keys` and `Sight` of the tile.
        positions: of the queries, broadcastable to the tile.
        QUERY_AXIS: axis of the queries in the tile.
        const: constants.
    """
    keys_N = tl.expand_dims(keys.positions_N, QUERY_AXIS)
    visible = keys_N < tl.expand_dims(sight.limit_M, 1 - QUERY_AXIS)
    if const.SEGMENTS:
        segments_N = tl.expand_dims(keys.segments_N, QUERY_AXIS)
        visible = visible & (segments_N == tl.expand_dims(sight.segments_M, 1 - QUERY_AXIS))
    if const.PATTERN:
        labels_N = tl.expand_dims(keys.labels_N, QUERY_AXIS)
        is_labelled = labels_N == tl.expand_dims(sight.labels_M, 1 - QUERY_AXIS)
        is_near = tl.abs(positions - keys_N) <= sight.window
        visible = visible & (is_near | is_labelled | (labels_N < 0))
    return visible
