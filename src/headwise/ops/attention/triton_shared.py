"""Tiles of scores in the fused α-entmax attention kernels: places, loads, dropout.

Axes: M queries and N keys of a tile, E head width.
"""

from __future__ import annotations

import triton
import triton.language as tl

from headwise.ops.attention.triton_visible import is_visible

# Arguments are grouped in tuples: tensors, strides, and compile-time constants `cut`
# (`headwise.ops.attention.triton_launch.Cut`). `draws` of dropout are (row_keys, threshold,
# keep_scale), `distances` are (slopes, prefix), `pattern` is (places, their number, windows, lists)
# of `headwise.ops.attention.triton_blocks`. A group or tensor that is None is absent: no code is
# generated for it.
#
# Before a loop, no variable that the loop sets is a copy of another one: if the loop copies it
# again (`last = shift`), Triton sees no change, and the copy keeps its first value (except in the
# interpreter; `tests/unit/test_ops_triton.py`).
#
# Integers without specialisation: lengths change with every batch, and decoding starts with a
# prefix of length 1. (In a tuple they would be specialised.)
SIZES = ("n_heads", "n_queries", "n_keys", "query_offset")


@triton.jit
def program_place(n_heads, n_blocks, IS_REVERSED: tl.constexpr):
    """Return block, row of (B, H), sentence and head of a program; reversed: last block first."""
    program = tl.program_id(0)
    block, row = program % n_blocks, (program // n_blocks).to(tl.int64)
    if IS_REVERSED:
        block = n_blocks - 1 - block
    return block, row, row // n_heads, row % n_heads


@triton.jit
def matrix(tensor, strides, batch, head, n_rows):
    """Return the matrix (base, stride, rows) of a sentence and a head in a tensor (B, H, N, E)."""
    return tensor + batch * strides[0] + head * strides[1], strides[2], n_rows


@triton.jit
def joined_heads(tensor, batch, head, n_heads, n_rows, cut):
    """Return the matrix of a contiguous tensor (B, N, H, E)."""
    return tensor + (batch * n_rows * n_heads + head) * cut.WIDTH, n_heads * cut.WIDTH, n_rows


@triton.jit
def tile_of(matrix, rows, cut):
    """Return pointers to a tile (len(rows), PADDED) of a matrix, and which are inside it."""
    base, stride, n_rows = matrix
    columns = tl.arange(0, cut.PADDED)
    inside = (rows < n_rows)[:, None]
    if cut.PADDED != cut.WIDTH:
        inside = inside & (columns < cut.WIDTH)[None, :]
    return base + rows[:, None] * stride + columns[None, :], inside


@triton.jit
def load_rows(matrix, rows, cut):
    """Load a tile (len(rows), PADDED) of a matrix, zeros after the last row and WIDTH."""
    pointers, inside = tile_of(matrix, rows, cut)
    tile = tl.load(pointers, mask=inside, other=0.0)
    if cut.INTERPRET:  # the interpreter computes bfloat16 wrongly
        tile = tile.to(tl.float32)
    return tile


@triton.jit
def store_rows(matrix, rows, tile, cut):
    """Store a tile to the rows of a matrix, in its dtype."""
    pointers, inside = tile_of(matrix, rows, cut)
    tl.store(pointers, tile.to(pointers.dtype.element_ty), mask=inside)


@triton.jit
def load_bias(distances, head, positions, scale):
    """Return the bias for `subtract_bias`: slope on unscaled scores, prefix, query positions."""
    slope, n_prefix = scale, 0
    if distances is not None:
        slope, n_prefix = tl.load(distances[0] + head) / scale, distances[1]
    return slope, n_prefix, positions


@triton.jit
def subtract_bias(scores, keys, bias, cut):
    """Return unscaled scores minus slope · |i - j|; keys and `bias` positions broadcast."""
    if cut.BIASED:
        slope, n_prefix, positions = bias
        is_apart = (positions >= n_prefix) & (keys >= n_prefix)
        scores -= tl.where(is_apart, tl.abs(positions - keys).to(tl.float32) * slope, 0.0)
    return scores


@triton.jit
def masked_dot(query_ME, key_NE, keys, sight, is_edge, bias, cut):
    """Return unscaled scores (M, N), -inf for keys that are not visible to the query.

    Args:
        query_ME, key_NE: of the tile.
        keys: positions and labels (N,).
        sight: limits (M,), labels (M,) and window of the queries.
        is_edge: whether any pair of the tile is not visible; otherwise the comparison is skipped.
        bias: see `load_bias`.
        cut: constants.
    """
    keys_N, key_labels_N = keys
    limit_M, labels_M, window = sight
    scores_MN = tl.dot(query_ME, tl.trans(key_NE), input_precision=cut.PRECISION)
    scores_MN = subtract_bias(scores_MN, keys_N[None, :], bias, cut)
    if is_edge:
        visible_MN = is_visible(
            keys_N[None, :], key_labels_N[None, :], limit_M[:, None], labels_M[:, None], bias[2],
            window, cut,
        )  # fmt: skip
        scores_MN = tl.where(visible_MN, scores_MN, float("-inf"))
    return scores_MN


@triton.jit
def random_words(draws, row, rows, n_rows, n_blocks):
    """Return two random words per query for `keep_mask`; unused without dropout."""
    first, second = rows, rows
    if draws is not None:
        n_all_rows = (tl.num_programs(0) // n_blocks).to(tl.int64) * n_rows
        pointers = draws[0] + row * n_rows + rows
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
    return word.to(tl.int32, bitcast=True) >= draws[1]


@triton.jit
def apply_dropout(values, keep, draws):
    """Return the kept values, scaled, and 0 for the others."""
    return tl.where(keep, values * draws[2], 0.0)
