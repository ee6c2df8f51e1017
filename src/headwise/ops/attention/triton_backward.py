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
    is_visible,
    listed_block,
    listed_blocks,
    n_allowed_keys,
    places_of,
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
    row = (line // n_lines).to(tl.int64)
    marks = live + row * n_lines * n_items + (line % n_lines) * stride_line
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
    heads, strides, alpha, lengths, draws, distances, pattern, saved_rows, block_lists, grad_query,
    grad_alpha, grad_dot_centre, n_heads, n_queries, n_keys, query_offset, scale, cut,
):  # fmt: skip
    """Write dq and dα of a block of queries, and c to `grad_dot_centre`, for `backward_keys`."""
    query, key, value, grad = heads
    centre, top, shift = saved_rows
    n_blocks = tl.cdiv(n_queries, cut.BLOCK_M)
    block, row, batch, head = program_place(n_heads, n_blocks, True)
    beta = load_beta(alpha, head, cut)
    slope = beta * scale
    allowed = n_allowed_keys(lengths, batch, n_keys)
    first = block * cut.BLOCK_M
    slots_M, offsets_N = first + tl.arange(0, cut.BLOCK_M), tl.arange(0, cut.BLOCK_N)
    rows_M, labels_M = places_of(pattern, row, slots_M, n_queries, False)
    inside_M = rows_M < n_queries
    limit_M, full, reach = visible(rows_M, first, allowed, query_offset, cut)
    sight = limit_M, labels_M, window_of(pattern, head)
    keys = matrix(key, strides[1], batch, head, allowed)
    values = matrix(value, strides[2], batch, head, allowed)
    query_ME = load_rows(matrix(query, strides[0], batch, head, n_queries), rows_M, cut)
    grad_ME = load_rows(matrix(grad, strides[3], batch, head, n_queries), rows_M, cut)
    centre_ME = load_rows(joined_heads(centre, batch, head, n_heads, n_queries, cut), rows_M, cut)
    bias = load_bias(distances, head, rows_M[:, None] + query_offset, scale)
    c_M = tl.sum(grad_ME.to(tl.float32) * centre_ME.to(tl.float32), 1)
    row_M = row * n_queries + rows_M
    tl.store(grad_dot_centre + row_M, c_M, mask=inside_M)
    top_M = tl.load(top + row_M, mask=inside_M, other=0.0)
    shift_M = tl.load(shift + row_M, mask=inside_M, other=NO_KEYS)
    first_M, second_M = random_words(draws, row, rows_M, n_queries, n_blocks)

    block_list, n_items = None, tl.cdiv(reach, cut.BLOCK_N)
    if block_lists is not None:
        line = row * n_blocks + block
        block_list, n_items = listed_blocks(block_lists, line, tl.cdiv(n_keys, cut.BLOCK_N))
    grad_query_ME = tl.zeros([cut.BLOCK_M, cut.PADDED], tl.float32)
    alpha_M = top_M * 0.0
    for item in range(n_items):
        _entry, index, is_edge = listed_block(block_list, item, full, cut.BLOCK_N)
        slots_N = index * cut.BLOCK_N + offsets_N
        keys_N, key_labels_N = places_of(pattern, row, slots_N, n_keys, True)
        key_NE = load_rows(keys, keys_N, cut)
        value_NE = load_rows(values, keys_N, cut)
        score_MN = masked_dot(query_ME, key_NE, (keys_N, key_labels_N), sight, is_edge, bias, cut)
        gap_MN = score_MN - top_M[:, None]
        dp_MN = tl.dot(grad_ME, tl.trans(value_NE), input_precision=cut.PRECISION)
        if draws is not None:
            keep_MN = keep_mask(first_M[:, None], second_M[:, None], keys_N[None, :], draws)
            dp_MN = apply_dropout(dp_MN, keep_MN, draws)
        dp_MN = dp_MN - c_M[:, None]
        x_s_log2x = powers(gap_MN, shift_M[:, None], slope, beta, cut)
        if grad_alpha is not None:
            terms_MN = alpha_terms(gap_MN, shift_M[:, None], slope, beta, x_s_log2x, cut.PRECISE)
            alpha_M += tl.sum(terms_MN * dp_MN, 1)
        ds_MN = x_s_log2x[1] * dp_MN
        grad_query_ME += tl.dot(ds_MN.to(key_NE.dtype), key_NE, input_precision=cut.PRECISION)
    out = joined_heads(grad_query, batch, head, n_heads, n_queries, cut)
    store_rows(out, rows_M, grad_query_ME * scale, cut)
    if grad_alpha is not None:
        tl.store(grad_alpha + row_M, -alpha_M / (beta * beta), mask=inside_M)


@triton.jit(do_not_specialize=SIZES)
def backward_keys(
    heads, strides, alpha, lengths, draws, distances, pattern, saved_rows, block_lists, grad_key,
    grad_value, n_heads, n_queries, n_keys, query_offset, scale, cut,
):  # fmt: skip
    """Write dk and dv of a block of keys. Tiles have keys as rows, which gives pᵀ directly."""
    query, key, value, grad = heads
    grad_dot_centre, top, shift = saved_rows
    n_blocks = tl.cdiv(n_keys, cut.BLOCK_N)
    block, row, batch, head = program_place(n_heads, n_blocks, False)
    beta = load_beta(alpha, head, cut)
    slope = beta * scale
    allowed = n_allowed_keys(lengths, batch, n_keys)
    first = block * cut.BLOCK_N
    slots_N, offsets_M = first + tl.arange(0, cut.BLOCK_N), tl.arange(0, cut.BLOCK_M)
    keys_N, key_labels_N = places_of(pattern, row, slots_N, n_keys, True)
    window = window_of(pattern, head)
    key_NE = load_rows(matrix(key, strides[1], batch, head, allowed), keys_N, cut)
    value_NE = load_rows(matrix(value, strides[2], batch, head, allowed), keys_N, cut)
    queries = matrix(query, strides[0], batch, head, n_queries)
    grads = matrix(grad, strides[3], batch, head, n_queries)

    block_list, start, n_items = None, 0, tl.cdiv(n_queries, cut.BLOCK_M)
    if cut.CAUSAL:
        start = tl.maximum(first - query_offset, 0) // cut.BLOCK_M
    if first >= allowed:
        n_items = 0
    if block_lists is not None:
        line, start = row * n_blocks + block, 0
        block_list, n_items = listed_blocks(block_lists, line, tl.cdiv(n_queries, cut.BLOCK_M))
    grad_key_NE = tl.zeros([cut.BLOCK_N, cut.PADDED], tl.float32)
    grad_value_NE = tl.zeros([cut.BLOCK_N, cut.PADDED], tl.float32)
    for item in range(start, n_items):
        _entry, index, is_partial = listed_block(block_list, item, ALL_FULL, cut.BLOCK_M)
        slots_M = index * cut.BLOCK_M + offsets_M
        rows_M, labels_M = places_of(pattern, row, slots_M, n_queries, False)
        inside_M = rows_M < n_queries
        query_ME = load_rows(queries, rows_M, cut)
        grad_ME = load_rows(grads, rows_M, cut)
        row_M = row * n_queries + rows_M
        top_M = tl.load(top + row_M, mask=inside_M, other=0.0)
        shift_M = tl.load(shift + row_M, mask=inside_M, other=NO_KEYS)
        c_M = tl.load(grad_dot_centre + row_M, mask=inside_M, other=0.0)
        score_NM = tl.dot(key_NE, tl.trans(query_ME), input_precision=cut.PRECISION)
        bias = load_bias(distances, head, rows_M[None, :] + query_offset, scale)
        gap_NM = subtract_bias(score_NM, keys_N[:, None], bias, cut) - top_M[None, :]
        limit_M, full, _reach = visible(rows_M, index * cut.BLOCK_M, allowed, query_offset, cut)
        if is_partial | (first + cut.BLOCK_N > full):
            visible_NM = is_visible(
                keys_N[:, None], key_labels_N[:, None], limit_M[None, :], labels_M[None, :],
                bias[2], window, cut,
            )  # fmt: skip
            gap_NM = tl.where(visible_NM, gap_NM, float("-inf"))
        x_NM, s_NM, _log2_x_NM = powers(gap_NM, shift_M[None, :], slope, beta, cut)
        dp_NM = tl.dot(value_NE, tl.trans(grad_ME), input_precision=cut.PRECISION)
        p_NM = s_NM * x_NM
        if draws is not None:
            first_M, second_M = random_words(draws, row, rows_M, n_queries, n_blocks)
            keep_NM = keep_mask(first_M[None, :], second_M[None, :], keys_N[:, None], draws)
            p_NM, dp_NM = apply_dropout(p_NM, keep_NM, draws), apply_dropout(dp_NM, keep_NM, draws)
        grad_value_NE += tl.dot(p_NM.to(grad_ME.dtype), grad_ME, input_precision=cut.PRECISION)
        ds_NM = s_NM * (dp_NM - c_M[None, :])
        grad_key_NE += tl.dot(ds_NM.to(query_ME.dtype), query_ME, input_precision=cut.PRECISION)
    out = joined_heads(grad_key, batch, head, n_heads, n_keys, cut)
    store_rows(out, keys_N, grad_key_NE * scale, cut)
    store_rows(
        joined_heads(grad_value, batch, head, n_heads, n_keys, cut), keys_N, grad_value_NE, cut
    )
