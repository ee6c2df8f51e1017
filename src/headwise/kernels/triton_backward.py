"""Backward kernels of fused α-entmax attention.

One goes by queries and writes dq and the α gradient of each query; one goes by keys and writes dk
and dv. Each forms the scores again and sums in a fixed order: no atomics, same bits every time.
With c = <dO, C> of a query (C: the centre that forward kept) and dP = dO vᵀ, dropped as p was:

    ds = s (dP - c)     dq = scale ds k     dk = scale dsᵀ q     dv = pᵀ dO
    dα = -Σ p ψ (dP - c)                                     (`headwise.entmax.function`)

Of rows longer than forward holds at once it marked the blocks with any weight (`live`), and both go
through lists of these.

Letters: M queries and N keys of a tile, E head width.
"""

from __future__ import annotations

import triton
import triton.language as tl

from headwise.kernels.triton_kernels import (
    NO_KEYS,
    SIZES,
    alpha_terms,
    keeps,
    kept,
    load_beta,
    load_rows,
    masked_dot,
    n_allowed_keys,
    powers,
    store_rows,
)


@triton.jit(do_not_specialize=("n_lines", "n_items"))
def live_lists(
    live, lists, counts, stride_line, stride_item, n_lines, n_items, CHUNK: tl.constexpr
):
    """Indices of the marked items of each line, ascending, and how many they are.

    `live` is (rows of batch and head, lines, items) by the strides given, so that one kernel lists
    the key blocks of each query block, and the query blocks of each key block.
    """
    line = tl.program_id(0)
    row = (line // n_lines).to(tl.int64)
    marks = live + row * n_lines * n_items + (line % n_lines) * stride_line
    listed = lists + line.to(tl.int64) * n_items
    count = 0
    for start in range(0, n_items, CHUNK):
        items = start + tl.arange(0, CHUNK)
        is_live = tl.load(marks + items * stride_item, mask=items < n_items, other=0).to(tl.int32)
        places = count + tl.cumsum(is_live, 0) - 1
        tl.store(listed + places, items.to(tl.int16), mask=is_live > 0)
        count += tl.sum(is_live, 0)
    tl.store(counts + line, count)


@triton.jit(do_not_specialize=SIZES)
def backward_queries(
    query, key, value, alpha, lengths, row_keys, grad, centre, top, shift, lists, counts,
    grad_query, grad_alpha, product,
    query_b, query_h, query_n, key_b, key_h, key_n, value_b, value_h, value_n,
    grad_b, grad_h, grad_n,
    n_heads, n_queries, n_keys, query_offset, scale, threshold, keep_scale,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr,
    CAUSAL: tl.constexpr, HAS_LENGTHS: tl.constexpr, HAS_LISTS: tl.constexpr,
    HAS_ALPHA: tl.constexpr, DROPOUT: tl.constexpr, POWER: tl.constexpr, PRECISE: tl.constexpr,
    PRECISION: tl.constexpr, INTERPRET: tl.constexpr,
):  # fmt: skip
    """Dq and dα of a block of queries; `product` <- c, which `backward_keys` reads."""
    n_blocks = tl.cdiv(n_queries, BLOCK_M)
    program = tl.program_id(0)
    block, row = n_blocks - 1 - program % n_blocks, (program // n_blocks).to(tl.int64)
    batch, head = row // n_heads, row % n_heads
    beta = load_beta(alpha, head)
    slope = beta * scale
    allowed = n_allowed_keys(lengths, batch, n_keys, HAS_LENGTHS)
    first = block * BLOCK_M
    rows_M, within_N = first + tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_N)
    inside_M = rows_M < n_queries
    limit_M = rows_M * 0 + allowed
    full, reach = allowed, allowed
    if CAUSAL:
        limit_M = tl.minimum(limit_M, rows_M + query_offset + 1)
        full = tl.minimum(full, first + query_offset + 1)
        reach = tl.minimum(reach, first + BLOCK_M + query_offset)
    key_base = key + batch * key_b + head * key_h
    value_base = value + batch * value_b + head * value_h
    base = query + batch * query_b + head * query_h
    query_ME = load_rows(base, query_n, rows_M, n_queries, WIDTH, PADDED, INTERPRET)
    base = grad + batch * grad_b + head * grad_h
    grad_ME = load_rows(base, grad_n, rows_M, n_queries, WIDTH, PADDED, INTERPRET)
    offset = (batch * n_queries * n_heads + head) * WIDTH
    stride = n_heads * WIDTH
    centre_ME = load_rows(centre + offset, stride, rows_M, n_queries, WIDTH, PADDED, INTERPRET)
    product_M = tl.sum(grad_ME.to(tl.float32) * centre_ME.to(tl.float32), 1)
    tl.store(product + row * n_queries + rows_M, product_M, mask=inside_M)
    top_M = tl.load(top + row * n_queries + rows_M, mask=inside_M, other=0.0)
    shift_M = tl.load(shift + row * n_queries + rows_M, mask=inside_M, other=NO_KEYS)
    if DROPOUT:
        n_all_rows = (tl.num_programs(0) // n_blocks).to(tl.int64) * n_queries
        first_M, second_M = kept(row_keys, row * n_queries, rows_M, n_queries, n_all_rows)

    n_items = tl.cdiv(reach, BLOCK_N)
    listed = lists
    if HAS_LISTS:
        line = row * n_blocks + block
        listed = lists + line * tl.cdiv(n_keys, BLOCK_N)
        n_items = tl.load(counts + line)
    gradient_ME = tl.zeros([BLOCK_M, PADDED], tl.float32)
    alpha_M = top_M * 0.0
    for item in range(n_items):
        index = item
        if HAS_LISTS:
            index = tl.load(listed + item).to(tl.int32)
        keys_N = index * BLOCK_N + within_N
        key_NE = load_rows(key_base, key_n, keys_N, allowed, WIDTH, PADDED, INTERPRET)
        value_NE = load_rows(value_base, value_n, keys_N, allowed, WIDTH, PADDED, INTERPRET)
        is_edge = (index + 1) * BLOCK_N > full
        gap_MN = masked_dot(query_ME, key_NE, keys_N, limit_M, is_edge, PRECISION) - top_M[:, None]
        pull_MN = tl.dot(grad_ME, tl.trans(value_NE), input_precision=PRECISION)
        if DROPOUT:
            keep_MN = keeps(first_M[:, None], second_M[:, None], keys_N[None, :], threshold)
            pull_MN = tl.where(keep_MN, pull_MN * keep_scale, 0.0)
        pull_MN = pull_MN - product_M[:, None]
        x_MN, s_MN, log2_x_MN = powers(
            gap_MN, shift_M[:, None], slope, beta, POWER, PRECISE, INTERPRET
        )
        if HAS_ALPHA:
            terms_MN = alpha_terms(
                gap_MN, shift_M[:, None], slope, beta, x_MN, s_MN, log2_x_MN, PRECISE
            )
            alpha_M += tl.sum(terms_MN * pull_MN, 1)
        pull_MN = s_MN * pull_MN
        gradient_ME += tl.dot(pull_MN.to(key_NE.dtype), key_NE, input_precision=PRECISION)
    gradient_ME = gradient_ME * scale
    store_rows(grad_query + offset, stride, rows_M, n_queries, gradient_ME, WIDTH, PADDED)
    if HAS_ALPHA:
        tl.store(grad_alpha + row * n_queries + rows_M, -alpha_M / (beta * beta), mask=inside_M)


@triton.jit(do_not_specialize=SIZES)
def backward_keys(
    query, key, value, alpha, lengths, row_keys, grad, product, top, shift, lists, counts,
    grad_key, grad_value,
    query_b, query_h, query_n, key_b, key_h, key_n, value_b, value_h, value_n,
    grad_b, grad_h, grad_n,
    n_heads, n_queries, n_keys, query_offset, scale, threshold, keep_scale,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr,
    CAUSAL: tl.constexpr, HAS_LENGTHS: tl.constexpr, HAS_LISTS: tl.constexpr,
    DROPOUT: tl.constexpr, POWER: tl.constexpr, PRECISE: tl.constexpr, PRECISION: tl.constexpr,
    INTERPRET: tl.constexpr,
):  # fmt: skip
    """Dk and dv of a block of keys. Tiles stand with the keys as rows, so that pᵀ is at hand."""
    n_blocks = tl.cdiv(n_keys, BLOCK_N)
    program = tl.program_id(0)
    block, row = program % n_blocks, (program // n_blocks).to(tl.int64)
    batch, head = row // n_heads, row % n_heads
    beta = load_beta(alpha, head)
    slope = beta * scale
    allowed = n_allowed_keys(lengths, batch, n_keys, HAS_LENGTHS)
    first = block * BLOCK_N
    keys_N, within_M = first + tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_M)
    base = key + batch * key_b + head * key_h
    key_NE = load_rows(base, key_n, keys_N, allowed, WIDTH, PADDED, INTERPRET)
    base = value + batch * value_b + head * value_h
    value_NE = load_rows(base, value_n, keys_N, allowed, WIDTH, PADDED, INTERPRET)
    query_base = query + batch * query_b + head * query_h
    grad_base = grad + batch * grad_b + head * grad_h
    n_all_rows = (tl.num_programs(0) // n_blocks).to(tl.int64) * n_queries

    start, n_items = 0, tl.cdiv(n_queries, BLOCK_M)
    if CAUSAL:
        start = tl.maximum(first - query_offset, 0) // BLOCK_M
    if first >= allowed:
        n_items = 0
    listed = lists
    if HAS_LISTS:
        line = row * n_blocks + block
        listed = lists + line * tl.cdiv(n_queries, BLOCK_M)
        start, n_items = 0, tl.load(counts + line)
    grad_key_NE = tl.zeros([BLOCK_N, PADDED], tl.float32)
    grad_value_NE = tl.zeros([BLOCK_N, PADDED], tl.float32)
    for item in range(start, n_items):
        index = item
        if HAS_LISTS:
            index = tl.load(listed + item).to(tl.int32)
        rows_M = index * BLOCK_M + within_M
        inside_M = rows_M < n_queries
        query_ME = load_rows(query_base, query_n, rows_M, n_queries, WIDTH, PADDED, INTERPRET)
        grad_ME = load_rows(grad_base, grad_n, rows_M, n_queries, WIDTH, PADDED, INTERPRET)
        row_M = row * n_queries + rows_M
        top_M = tl.load(top + row_M, mask=inside_M, other=0.0)
        shift_M = tl.load(shift + row_M, mask=inside_M, other=NO_KEYS)
        product_M = tl.load(product + row_M, mask=inside_M, other=0.0)
        gap_NM = tl.dot(key_NE, tl.trans(query_ME), input_precision=PRECISION) - top_M[None, :]
        full, limit_M = allowed, rows_M * 0 + allowed
        if CAUSAL:
            full = tl.minimum(full, index * BLOCK_M + query_offset + 1)
            limit_M = tl.minimum(limit_M, rows_M + query_offset + 1)
        if first + BLOCK_N > full:
            gap_NM = tl.where(keys_N[:, None] < limit_M[None, :], gap_NM, float("-inf"))
        x_NM, s_NM, _log2_x_NM = powers(
            gap_NM, shift_M[None, :], slope, beta, POWER, PRECISE, INTERPRET
        )
        pull_NM = tl.dot(value_NE, tl.trans(grad_ME), input_precision=PRECISION)
        p_NM = s_NM * x_NM
        if DROPOUT:
            first_M, second_M = kept(row_keys, row * n_queries, rows_M, n_queries, n_all_rows)
            keep_NM = keeps(first_M[None, :], second_M[None, :], keys_N[:, None], threshold)
            p_NM = tl.where(keep_NM, p_NM * keep_scale, 0.0)
            pull_NM = tl.where(keep_NM, pull_NM * keep_scale, 0.0)
        grad_value_NE += tl.dot(p_NM.to(grad_ME.dtype), grad_ME, input_precision=PRECISION)
        pull_NM = s_NM * (pull_NM - product_M[None, :])
        grad_key_NE += tl.dot(pull_NM.to(query_ME.dtype), query_ME, input_precision=PRECISION)
    grad_key_NE = grad_key_NE * scale
    offset = (batch * n_keys * n_heads + head) * WIDTH
    stride = n_heads * WIDTH
    store_rows(grad_key + offset, stride, keys_N, n_keys, grad_key_NE, WIDTH, PADDED)
    store_rows(grad_value + offset, stride, keys_N, n_keys, grad_value_NE, WIDTH, PADDED)
