"""Tiles of scores in the fused α-entmax attention kernels: places, loads, dropout.

Axes: M queries and N keys of a tile, E head width.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from headwise.ops.attention.triton_visible import is_visible

# Arguments are grouped in NamedTuples: those of a launch are in `triton_launch`, its compile-time
# constants `const` in `headwise.ops.triton.constants`. A group or tensor that is None is absent: no
# code is generated for it.
#
# Before a loop, no variable that the loop sets is a copy of another one: if the loop copies it
# again (`last = shift`), Triton sees no change, and the copy keeps its first value (except in the
# interpreter; `tests/unit/test_ops_triton.py`).
#
# Integers without specialisation: lengths change with every batch, and decoding starts with a
# prefix of length 1. (In a tuple they would be specialised.)
SIZES = ("n_heads", "n_queries", "n_keys", "query_offset")


class Place(NamedTuple):
    """What a program computes: a block of queries or keys of a sentence and a head."""

    block: Any
    bh: Any  # number of the sentence and head, batch · H + head
    batch: Any
    head: Any


class Matrix(NamedTuple):
    """The matrix (N, E) of a sentence and a head."""

    base: Any
    stride: Any  # of its rows
    n_rows: Any


class Bias(NamedTuple):
    """A bias by distance, for some queries."""

    slope: Any  # on unscaled scores
    n_prefix: Any
    positions: Any  # of the queries, broadcastable to the tile


@triton.jit
def program_place(n_heads, n_blocks, IS_REVERSED: tl.constexpr):
    """Return the `Place` of a program; reversed: last block first."""
    program = tl.program_id(0)
    block, bh = program % n_blocks, (program // n_blocks).to(tl.int64)
    if IS_REVERSED:
        block = n_blocks - 1 - block
    return Place(block, bh, bh // n_heads, bh % n_heads)


@triton.jit
def matrix(states, at, n_rows, GROUP: tl.constexpr = 1):
    """Return the matrix of a place in `triton_launch.States` with a head per GROUP heads."""
    base = states.tensor + at.batch * states.per_batch + at.head // GROUP * states.per_head
    return Matrix(base, states.per_row, n_rows)


@triton.jit
def joined_heads(tensor, at, n_heads, n_rows, const):
    """Return the matrix of a place in a contiguous tensor (B, N, H, E)."""
    base = tensor + (at.batch * n_rows * n_heads + at.head) * const.WIDTH
    return Matrix(base, n_heads * const.WIDTH, n_rows)


@triton.jit
def tile_of(matrix, rows, const):
    """Return pointers to a tile (len(rows), PADDED) of a matrix, and which are inside it."""
    columns = tl.arange(0, const.PADDED)
    inside = (rows < matrix.n_rows)[:, None]
    if const.PADDED != const.WIDTH:
        inside = inside & (columns < const.WIDTH)[None, :]
    first = matrix.base + rows.to(tl.int64) * matrix.stride  # may be beyond 2^31
    return first[:, None] + columns[None, :], inside


@triton.jit
def load_rows(matrix, rows, const):
    """Load a tile (len(rows), PADDED) of a matrix, zeros after the last row and WIDTH."""
    pointers, inside = tile_of(matrix, rows, const)
    tile = tl.load(pointers, mask=inside, other=0.0)
    if const.INTERPRET:  # the interpreter computes bfloat16 wrongly
        tile = tile.to(tl.float32)
    return tile


@triton.jit
def store_rows(matrix, rows, tile, const):
    """Store a tile to the rows of a matrix, in its dtype."""
    pointers, inside = tile_of(matrix, rows, const)
    tl.store(pointers, tile.to(pointers.dtype.element_ty), mask=inside)


@triton.jit
def load_bias(distances, head, positions, scale):
    """Return the `Bias` of queries at some positions."""
    slope, n_prefix = scale, 0
    if distances is not None:
        slope, n_prefix = tl.load(distances.slopes + head) / scale, distances.n_prefix
    return Bias(slope, n_prefix, positions)


@triton.jit
def subtract_bias(scores, keys, bias, const):
    """Return unscaled scores minus slope · |i - j|; keys and `bias` positions broadcast."""
    if const.BIASED:
        is_apart = (bias.positions >= bias.n_prefix) & (keys >= bias.n_prefix)
        distance = tl.abs(bias.positions - keys).to(tl.float32)
        scores -= tl.where(is_apart, distance * bias.slope, 0.0)
    return scores


@triton.jit
def masked_dot(query_ME, key_NE, keys, sight, is_edge, bias, const):
    """Return unscaled scores (M, N), -inf for keys that are not visible to the query.

    Args:
        query_ME, key_NE: of the tile.
        keys: `Keys` of the tile.
        sight: `Sight` of the queries.
        is_edge: whether any pair of the tile is not visible; otherwise the comparison is skipped.
        bias: `Bias`.
        const: constants.
    """
    scores_MN = tl.dot(query_ME, tl.trans(key_NE), input_precision=const.PRECISION)
    scores_MN = subtract_bias(scores_MN, keys.positions_N[None, :], bias, const)
    if is_edge:
        visible_MN = is_visible(keys, sight, bias.positions, 0, const)
        scores_MN = tl.where(visible_MN, scores_MN, float("-inf"))
    return scores_MN


@triton.jit
def random_words(draws, bh, rows, n_rows, n_blocks):
    """Return two random words per query for `keep_mask`; unused without dropout."""
    first, second = rows, rows
    if draws is not None:
        n_all_rows = (tl.num_programs(0) // n_blocks).to(tl.int64) * n_rows
        pointers = draws.row_keys + bh * n_rows + rows
        first = tl.load(pointers, mask=rows < n_rows, other=0)
        second = tl.load(pointers + n_all_rows, mask=rows < n_rows, other=0)
    return first.to(tl.uint32, bitcast=True), second.to(tl.uint32, bitcast=True)


@triton.jit
def keep_mask(first, second, keys, draws):
    """Return whether dropout keeps each weight, by a hash of the query's words and the key.

    The hash has two rounds of multiply and shift; a counter-based generator would need ten. The
    words are drawn from torch's generator.
    """
    word = first + keys.to(tl.uint32) * 0x9E3779B1
    word = (word ^ (word >> 16)) * 0x21F0AAAD
    word = (word ^ (word >> 15) ^ second) * 0x735A2D97
    word = word ^ (word >> 15)
    return word.to(tl.int32, bitcast=True) >= draws.drop_below


@triton.jit
def apply_dropout(values, keep, draws):
    """Return the kept values, scaled, and 0 for the others."""
    return tl.where(keep, values * draws.keep_scale, 0.0)
