"""Backward kernels of fused α-entmax attention.

One kernel runs over queries and writes dq and the α gradient per query; one runs over keys and
writes dk and dv. Each recomputes the scores and sums in a fixed order: no atomics, deterministic.
With c = <dO, C> of a query (C: the centre saved by forward) and dP = dO vᵀ after dropout:

    ds = s (dP - c)     dq = scale ds k     dk = scale dsᵀ q     dv = pᵀ dO
    dα = -Σ p ψ (dP - c)                                     (`headwise.ops.maps.reference`)

The streaming forward kernel marks the blocks with any weight (`live`); both kernels visit only
these.

Axes: M queries and N keys of a tile, E head width.
"""

from __future__ import annotations

import triton
import triton.language as tl

from headwise.ops.attention.triton_shared import (
    SIZES,
    apply_dropout,
    joined_heads,
    keep_mask,
    load_bias,
    load_rows,
    masked_dot,
    matrix,
    program_place,
    random_words,
    store_rows,
    subtract_bias,
)
from headwise.ops.attention.triton_visible import (
    ALL_FULL,
    Blocks,
    Sight,
    is_visible,
    listed_block,
    listed_blocks,
    load_keys,
    n_allowed_keys,
    places_of,
    segments_of,
    visible,
    window_of,
)
from headwise.ops.triton.threshold import NO_KEYS, alpha_terms, load_beta, powers


@triton.jit(do_not_specialize=("n_lines", "n_items"))
def live_lists(live, lists, stride_line, stride_item, n_lines, n_items, CHUNK: tl.constexpr):
    """Write the number of marked items of each line, and then their entries, ascending.

    `live` is (batch and head, lines, items) with the given strides, so that one kernel lists
    the key blocks of each query block, and the query blocks of each key block. Entries are those
    of `listed_block`; a mark of 2 says that a block has pairs that are not visible.
    """
    line = tl.program_id(0)
    bh = (line // n_lines).to(tl.int64)
    marks = live + bh * n_lines * n_items + (line % n_lines) * stride_line
    block_list = lists + line.to(tl.int64) * (n_items + 1)
    count = 0
    for start in range(0, n_items, CHUNK):
        items = start + tl.arange(0, CHUNK)
        mark = tl.load(marks + items * stride_item, mask=items < n_items, other=0).to(tl.int32)
        is_live = (mark > 0).to(tl.int32)
        positions = count + tl.cumsum(is_live, 0)
        entries = tl.where(mark > 1, ~items, items).to(tl.int16)
        tl.store(block_list + positions, entries, mask=is_live > 0)
        count += tl.sum(is_live, 0)
    tl.store(block_list, count)


@triton.jit(do_not_specialize=SIZES)
def backward_queries(
    heads, alpha, masks, draws, distances, pattern, saved_rows, block_lists, grad_query,
    grad_alpha, grad_dot_centre, n_heads, n_queries, n_keys, query_offset, scale, const,
):  # fmt: skip
    """Write dq and dα of a block of queries, and c to `grad_dot_centre`, for `backward_keys`."""
    query, key, value, grad = heads
    centre, top, shift = saved_rows
    n_blocks = tl.cdiv(n_queries, const.BLOCK_M)
    at = program_place(n_heads, n_blocks, True)
    beta = load_beta(alpha, at.head, const)
    slope = beta * scale
    allowed = n_allowed_keys(masks, at.batch, n_keys)
    first = at.block * const.BLOCK_M
    slots_M, offsets_N = first + tl.arange(0, const.BLOCK_M), tl.arange(0, const.BLOCK_N)
    rows_M, labels_M = places_of(pattern, at.bh, slots_M, n_queries, False)
    inside_M = rows_M < n_queries
    limit_M, full, reach = visible(rows_M, first, allowed, query_offset, const)
    segments_M = segments_of(masks, at.batch, rows_M, n_queries)
    sight = Sight(limit_M, labels_M, segments_M, window_of(pattern, at.head))
    matrix_keys, values = (
        matrix(key, at, allowed, const.GROUP),
        matrix(value, at, allowed, const.GROUP),
    )
    query_ME = load_rows(matrix(query, at, n_queries), rows_M, const)
    grad_ME = load_rows(matrix(grad, at, n_queries), rows_M, const)
    centre_ME = load_rows(joined_heads(centre, at, n_heads, n_queries, const), rows_M, const)
    bias = load_bias(distances, at.head, rows_M[:, None] + query_offset, scale)
    c_M = tl.sum(grad_ME.to(tl.float32) * centre_ME.to(tl.float32), 1)
    index_M = at.bh * n_queries + rows_M
    tl.store(grad_dot_centre + index_M, c_M, mask=inside_M)
    top_M = tl.load(top + index_M, mask=inside_M, other=0.0)
    shift_M = tl.load(shift + index_M, mask=inside_M, other=NO_KEYS)
    first_M, second_M = random_words(draws, at.bh, rows_M, n_queries, n_blocks)

    blocks = Blocks(None, tl.cdiv(reach, const.BLOCK_N))
    if block_lists is not None:
        line = at.bh * n_blocks + at.block
        blocks = listed_blocks(block_lists, line, tl.cdiv(n_keys, const.BLOCK_N))
    grad_query_ME = tl.zeros([const.BLOCK_M, const.PADDED], tl.float32)
    alpha_M = top_M * 0.0
    for item in range(blocks.number):
        _entry, index, is_edge = listed_block(blocks.entries, item, full, const.BLOCK_N)
        slots_N = index * const.BLOCK_N + offsets_N
        keys = load_keys(pattern, masks, at, slots_N, n_keys)
        key_NE = load_rows(matrix_keys, keys.positions_N, const)
        value_NE = load_rows(values, keys.positions_N, const)
        score_MN = masked_dot(query_ME, key_NE, keys, sight, is_edge, bias, const)
        gap_MN = score_MN - top_M[:, None]
        dp_MN = tl.dot(grad_ME, tl.trans(value_NE), input_precision=const.PRECISION)
        if draws is not None:
            keys_N = keys.positions_N
            keep_MN = keep_mask(first_M[:, None], second_M[:, None], keys_N[None, :], draws)
            dp_MN = apply_dropout(dp_MN, keep_MN, draws)
        dp_MN = dp_MN - c_M[:, None]
        x_MN, s_MN, log2_x_MN = powers(gap_MN, shift_M[:, None], slope, beta, const)
        if grad_alpha is not None:
            terms_MN = alpha_terms(
                gap_MN, shift_M[:, None], slope, beta, (x_MN, s_MN, log2_x_MN), const.PRECISE
            )
            alpha_M += tl.sum(terms_MN * dp_MN, 1)
        ds_MN = s_MN * dp_MN
        grad_query_ME += tl.dot(ds_MN.to(key_NE.dtype), key_NE, input_precision=const.PRECISION)
    out = joined_heads(grad_query, at, n_heads, n_queries, const)
    store_rows(out, rows_M, grad_query_ME * scale, const)
    if grad_alpha is not None:
        tl.store(grad_alpha + index_M, -alpha_M / (beta * beta), mask=inside_M)


@triton.jit(do_not_specialize=SIZES)
def backward_keys(
    heads, alpha, masks, draws, distances, pattern, saved_rows, block_lists, grad_key,
    grad_value, n_heads, n_queries, n_keys, query_offset, scale, const,
):  # fmt: skip
    """Write dk and dv of a block of keys, by query head. Tiles have keys as rows: pᵀ directly."""
    query, key, value, grad = heads
    grad_dot_centre, top, shift = saved_rows
    n_blocks = tl.cdiv(n_keys, const.BLOCK_N)
    at = program_place(n_heads, n_blocks, False)
    beta = load_beta(alpha, at.head, const)
    slope = beta * scale
    allowed = n_allowed_keys(masks, at.batch, n_keys)
    first = at.block * const.BLOCK_N
    slots_N, offsets_M = first + tl.arange(0, const.BLOCK_N), tl.arange(0, const.BLOCK_M)
    keys, window = load_keys(pattern, masks, at, slots_N, n_keys), window_of(pattern, at.head)
    keys_N = keys.positions_N
    key_NE = load_rows(matrix(key, at, allowed, const.GROUP), keys_N, const)
    value_NE = load_rows(matrix(value, at, allowed, const.GROUP), keys_N, const)
    queries = matrix(query, at, n_queries)
    grads = matrix(grad, at, n_queries)

    n_query_blocks = tl.cdiv(n_queries, const.BLOCK_M)
    start, end = 0, n_query_blocks
    if const.CAUSAL:
        start = tl.maximum(first - query_offset, 0) // const.BLOCK_M
    if first >= allowed:
        end = 0
    blocks = Blocks(None, end)
    if block_lists is not None:
        start = 0
        blocks = listed_blocks(block_lists, at.bh * n_blocks + at.block, n_query_blocks)
    grad_key_NE = tl.zeros([const.BLOCK_N, const.PADDED], tl.float32)
    grad_value_NE = tl.zeros([const.BLOCK_N, const.PADDED], tl.float32)
    for item in range(start, blocks.number):
        _entry, index, is_partial = listed_block(blocks.entries, item, ALL_FULL, const.BLOCK_M)
        slots_M = index * const.BLOCK_M + offsets_M
        rows_M, labels_M = places_of(pattern, at.bh, slots_M, n_queries, False)
        inside_M = rows_M < n_queries
        query_ME = load_rows(queries, rows_M, const)
        grad_ME = load_rows(grads, rows_M, const)
        index_M = at.bh * n_queries + rows_M
        top_M = tl.load(top + index_M, mask=inside_M, other=0.0)
        shift_M = tl.load(shift + index_M, mask=inside_M, other=NO_KEYS)
        c_M = tl.load(grad_dot_centre + index_M, mask=inside_M, other=0.0)
        score_NM = tl.dot(key_NE, tl.trans(query_ME), input_precision=const.PRECISION)
        bias = load_bias(distances, at.head, rows_M[None, :] + query_offset, scale)
        gap_NM = subtract_bias(score_NM, keys_N[:, None], bias, const) - top_M[None, :]
        limit_M, full, _reach = visible(rows_M, index * const.BLOCK_M, allowed, query_offset, const)
        if is_partial | (first + const.BLOCK_N > full):
            segments_M = segments_of(masks, at.batch, rows_M, n_queries)
            sight = Sight(limit_M, labels_M, segments_M, window)
            visible_NM = is_visible(keys, sight, bias.positions, 1, const)
            gap_NM = tl.where(visible_NM, gap_NM, float("-inf"))
        x_NM, s_NM, _log2_x_NM = powers(gap_NM, shift_M[None, :], slope, beta, const)
        dp_NM = tl.dot(value_NE, tl.trans(grad_ME), input_precision=const.PRECISION)
        p_NM = s_NM * x_NM
        if draws is not None:
            first_M, second_M = random_words(draws, at.bh, rows_M, n_queries, n_blocks)
            keep_NM = keep_mask(first_M[None, :], second_M[None, :], keys_N[:, None], draws)
            p_NM, dp_NM = apply_dropout(p_NM, keep_NM, draws), apply_dropout(dp_NM, keep_NM, draws)
        grad_value_NE += tl.dot(p_NM.to(grad_ME.dtype), grad_ME, input_precision=const.PRECISION)
        ds_NM = s_NM * (dp_NM - c_M[None, :])
        grad_key_NE += tl.dot(ds_NM.to(query_ME.dtype), query_ME, input_precision=const.PRECISION)
    if masks.keys is not None:  # those of masked keys are zeros
        keys_N = slots_N
    out = joined_heads(grad_key, at, n_heads, n_keys, const)
    store_rows(out, keys_N, grad_key_NE * scale, const)
    out = joined_heads(grad_value, at, n_heads, n_keys, const)
    store_rows(out, keys_N, grad_value_NE, const)
