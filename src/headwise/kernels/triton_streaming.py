"""Forward kernel of fused α-entmax attention for long rows: keys pass by several times.

The scores are formed again in each pass: for the maximum, for moments, for Newton's method, and for
the context. The first pass of moments lists the blocks with any key above the lowest threshold
there can be, and the passes after it see no others. How many there are is decided by the program
itself from the queries it holds, at most 64 or 128 of them. `live` marks the blocks of LIST x LIST
scores with any weight.

Letters: M queries and N keys of a tile, E head width.
"""

from __future__ import annotations

import triton
import triton.language as tl

from headwise.kernels.triton_forward import write_rows
from headwise.kernels.triton_kernels import (
    ANY,
    N_EVALUATIONS,
    SIZES,
    SQUARE,
    TINY,
    finite_top,
    keeps,
    kept,
    largest_shift,
    load_beta,
    load_rows,
    masked_dot,
    moment_shift,
    moments,
    n_allowed_keys,
    n_moment_passes,
    newton,
    powers,
    tolerance,
)


@triton.jit
def scores_of_block(
    index, query_ME, key_base, key_n, allowed, limit_M, full,
    BLOCK_N: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr,
    PRECISION: tl.constexpr, INTERPRET: tl.constexpr,
):  # fmt: skip
    """Unscaled scores (M, N) of one block of keys; `full` keys are seen by all the queries."""
    keys_N = index * BLOCK_N + tl.arange(0, BLOCK_N)
    key_NE = load_rows(key_base, key_n, keys_N, allowed, WIDTH, PADDED, INTERPRET)
    is_edge = (index + 1) * BLOCK_N > full
    return masked_dot(query_ME, key_NE, keys_N, limit_M, is_edge, PRECISION)


@triton.jit
def find_top(
    query_ME, key_base, key_n, allowed, limit_M, full, reach,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr,
    PRECISION: tl.constexpr, INTERPRET: tl.constexpr,
):  # fmt: skip
    """Largest score of each row, reduced along the row only once."""
    top_MN = tl.full([BLOCK_M, BLOCK_N], float("-inf"), tl.float32)
    for index in range(tl.cdiv(reach, BLOCK_N)):
        scores_MN = scores_of_block(
            index, query_ME, key_base, key_n, allowed, limit_M, full,
            BLOCK_N, WIDTH, PADDED, PRECISION, INTERPRET,
        )  # fmt: skip
        top_MN = tl.maximum(top_MN, scores_MN)
    return finite_top(tl.max(top_MN, 1))


@triton.jit
def start(
    listed, query_ME, key_base, key_n, allowed, limit_M, full, reach, top_M, slope, beta, shift_max,
    BLOCK_N: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr,
    PRECISION: tl.constexpr, INTERPRET: tl.constexpr,
):  # fmt: skip
    """Shift from the moments above the lowest threshold; writes the list, returns its length."""
    n_listed = 0
    count_M, sum_M, square_M = top_M * 0.0, top_M * 0.0, top_M * 0.0
    for index in range(tl.cdiv(reach, BLOCK_N)):
        scores_MN = scores_of_block(
            index, query_ME, key_base, key_n, allowed, limit_M, full,
            BLOCK_N, WIDTH, PADDED, PRECISION, INTERPRET,
        )  # fmt: skip
        more_M, more_sum_M, more_square_M = moments(
            scores_MN - top_M[:, None], top_M * 0.0 + 1.0, slope
        )
        count_M += more_M
        sum_M += more_sum_M
        square_M += more_square_M
        if tl.max(((more_sum_M <= 0.0) == 0).to(tl.int32), 0) > 0:  # NaN counts
            tl.store(listed + n_listed, index)
            n_listed += 1
    tl.debug_barrier()  # the list is read by other threads than wrote it
    shift_M = moment_shift(count_M, sum_M, square_M, top_M * 0.0, beta, shift_max)
    return shift_M, n_listed


@triton.jit
def improve_by_moments(
    shift_M, listed, n_listed, query_ME, key_base, key_n, allowed, limit_M, full, top_M, slope,
    beta, shift_max,
    BLOCK_N: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr, POWER: tl.constexpr,
    PRECISE: tl.constexpr, PRECISION: tl.constexpr, INTERPRET: tl.constexpr,
):  # fmt: skip
    """More moments. Where x is not raised by a logarithm, they tell F as well, and solve for the
    support they saw: the loop ends when that was the right one.
    """
    near_enough = 0.5 * tl.sqrt(tolerance(beta, PRECISE))
    base_M = 1.0 - slope * top_M  # of x from whole scores
    n_left = N_EVALUATIONS + 0
    if POWER == ANY:
        n_left = n_moment_passes(beta, PRECISE) - 1
    while n_left > 0:
        count_M, sum_M, square_M = top_M * 0.0, top_M * 0.0, top_M * 0.0
        for item in range(n_listed):
            scores_MN = scores_of_block(
                tl.load(listed + item).to(tl.int32), query_ME, key_base, key_n, allowed, limit_M,
                full, BLOCK_N, WIDTH, PADDED, PRECISION, INTERPRET,
            )  # fmt: skip
            more_M, more_sum_M, more_square_M = moments(scores_MN, base_M - shift_M, slope)
            count_M += more_M
            sum_M += more_sum_M
            square_M += more_square_M
        n_left -= 1
        if POWER != ANY:
            mass_M = sum_M
            if POWER == SQUARE:
                mass_M = square_M
            is_open = (tl.abs(mass_M - 1.0) > near_enough) & (limit_M > 0)
            n_left = tl.where(tl.max(is_open.to(tl.int32), 0) > 0, n_left, 0)
        shift_M = moment_shift(count_M, sum_M, square_M, shift_M, beta, shift_max)
    return shift_M


@triton.jit
def improve_by_newton(
    shift_M, listed, n_listed, query_ME, key_base, key_n, allowed, limit_M, full, top_M, slope,
    beta, shift_max,
    BLOCK_N: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr, POWER: tl.constexpr,
    PRECISE: tl.constexpr, PRECISION: tl.constexpr, INTERPRET: tl.constexpr,
):  # fmt: skip
    """Newton without values, until the step just made should end below the tolerance."""
    near_enough = 0.5 * tl.sqrt(tolerance(beta, PRECISE))
    n_left = N_EVALUATIONS + 0
    while n_left > 0:
        mass_M, total_M = top_M * 0.0, top_M * 0.0
        for item in range(n_listed):
            scores_MN = scores_of_block(
                tl.load(listed + item).to(tl.int32), query_ME, key_base, key_n, allowed, limit_M,
                full, BLOCK_N, WIDTH, PADDED, PRECISION, INTERPRET,
            )  # fmt: skip
            gap_MN = scores_MN - top_M[:, None]
            x_MN, s_MN, _log2_x_MN = powers(
                gap_MN, shift_M[:, None], slope, beta, POWER, PRECISE, INTERPRET
            )
            mass_M += tl.sum(s_MN * x_MN, 1)
            total_M += tl.sum(s_MN, 1)
        next_M = newton(shift_M, mass_M, total_M, beta, shift_max)
        is_open = (tl.abs(mass_M - 1.0) > near_enough) & (next_M != shift_M) & (limit_M > 0)
        n_left = tl.where(tl.max(is_open.to(tl.int32), 0) > 0, n_left - 1, 0)
        shift_M = next_M
    return shift_M


@triton.jit
def gather(
    shift_M, marks_M, is_row_M, listed, n_listed, query_ME, key_base, key_n, value_base, value_n,
    allowed, limit_M, full, top_M, slope, beta, first_M, second_M, threshold, keep_scale,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr,
    LIST: tl.constexpr, DROPOUT: tl.constexpr, POWER: tl.constexpr, PRECISE: tl.constexpr,
    PRECISION: tl.constexpr, INTERPRET: tl.constexpr,
):  # fmt: skip
    """F, Σ s, Σ p v and Σ s v at a shift; marks the blocks with a weight, and skips the others."""
    mass_M, total_M = top_M * 0.0, top_M * 0.0
    context_ME = tl.zeros([BLOCK_M, PADDED], tl.float32)
    centre_ME = tl.zeros([BLOCK_M, PADDED], tl.float32)
    for item in range(n_listed):
        index = tl.load(listed + item).to(tl.int32)
        keys_N = index * BLOCK_N + tl.arange(0, BLOCK_N)
        key_NE = load_rows(key_base, key_n, keys_N, allowed, WIDTH, PADDED, INTERPRET)
        value_NE = load_rows(value_base, value_n, keys_N, allowed, WIDTH, PADDED, INTERPRET)
        is_edge = (index + 1) * BLOCK_N > full
        gap_MN = masked_dot(query_ME, key_NE, keys_N, limit_M, is_edge, PRECISION) - top_M[:, None]
        x_MN, s_MN, _log2_x_MN = powers(
            gap_MN, shift_M[:, None], slope, beta, POWER, PRECISE, INTERPRET
        )
        p_MN = s_MN * x_MN
        mass_M += tl.sum(p_MN, 1)
        more_M = tl.sum(s_MN, 1)
        total_M += more_M
        live_M = tl.sum(tl.reshape(more_M, [BLOCK_M // LIST, LIST]), 1)
        is_live = (live_M <= 0.0) == 0  # NaN counts
        tl.store(marks_M + index, is_live.to(tl.uint8), mask=is_live & is_row_M)
        if tl.max(is_live.to(tl.int32), 0) > 0:
            if DROPOUT:
                keep_MN = keeps(first_M[:, None], second_M[:, None], keys_N[None, :], threshold)
                p_MN = tl.where(keep_MN, p_MN * keep_scale, 0.0)
                s_MN = tl.where(keep_MN, s_MN * keep_scale, 0.0)
            context_ME += tl.dot(p_MN.to(value_NE.dtype), value_NE, input_precision=PRECISION)
            centre_ME += tl.dot(s_MN.to(value_NE.dtype), value_NE, input_precision=PRECISION)
    return mass_M, total_M, context_ME, centre_ME


@triton.jit(do_not_specialize=SIZES)
def forward_streaming(
    query, key, value, alpha, lengths, row_keys,
    context, centre, top, shift, live, lists,
    query_b, query_h, query_n, key_b, key_h, key_n, value_b, value_h, value_n,
    n_heads, n_queries, n_keys, query_offset, scale, threshold, keep_scale,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr,
    LIST: tl.constexpr, CAUSAL: tl.constexpr, HAS_LENGTHS: tl.constexpr,
    DROPOUT: tl.constexpr, POWER: tl.constexpr, PRECISE: tl.constexpr, PRECISION: tl.constexpr,
    INTERPRET: tl.constexpr,
):  # fmt: skip
    """Needs BLOCK_N = LIST and BLOCK_M a multiple of it; `lists` is room for the blocks listed."""
    n_blocks = tl.cdiv(n_queries, BLOCK_M)
    program = tl.program_id(0)
    # causal: the long rows first, so that none is left over at the end
    block, row = n_blocks - 1 - program % n_blocks, (program // n_blocks).to(tl.int64)
    batch, head = row // n_heads, row % n_heads
    beta = load_beta(alpha, head)
    slope = beta * scale
    allowed = n_allowed_keys(lengths, batch, n_keys, HAS_LENGTHS)
    first = block * BLOCK_M
    rows_M = first + tl.arange(0, BLOCK_M)
    limit_M = rows_M * 0 + allowed
    full, reach = allowed, allowed  # keys that all, and that any of these queries may see
    if CAUSAL:
        limit_M = tl.minimum(limit_M, rows_M + query_offset + 1)
        full = tl.minimum(full, first + query_offset + 1)
        reach = tl.minimum(reach, first + BLOCK_M + query_offset)
    # rows behind the last query see nothing: of equal scores, they would keep every block
    limit_M = tl.where(rows_M < n_queries, limit_M, 0)
    full = tl.where(first + BLOCK_M <= n_queries, full, 0)
    key_base = key + batch * key_b + head * key_h
    value_base = value + batch * value_b + head * value_h
    base = query + batch * query_b + head * query_h
    query_ME = load_rows(base, query_n, rows_M, n_queries, WIDTH, PADDED, INTERPRET)

    n_lists = tl.cdiv(n_keys, LIST)
    listed = lists + (row * n_blocks + block) * n_lists
    shift_max = largest_shift(beta, n_keys)
    top_M = find_top(
        query_ME, key_base, key_n, allowed, limit_M, full, reach,
        BLOCK_M, BLOCK_N, WIDTH, PADDED, PRECISION, INTERPRET,
    )  # fmt: skip
    shift_M, n_listed = start(
        listed, query_ME, key_base, key_n, allowed, limit_M, full, reach, top_M, slope, beta,
        shift_max, BLOCK_N, WIDTH, PADDED, PRECISION, INTERPRET,
    )  # fmt: skip
    shift_M = improve_by_moments(
        shift_M, listed, n_listed, query_ME, key_base, key_n, allowed, limit_M, full, top_M, slope,
        beta, shift_max, BLOCK_N, WIDTH, PADDED, POWER, PRECISE, PRECISION, INTERPRET,
    )  # fmt: skip
    if POWER == ANY:
        shift_M = improve_by_newton(
            shift_M, listed, n_listed, query_ME, key_base, key_n, allowed, limit_M, full, top_M,
            slope, beta, shift_max, BLOCK_N, WIDTH, PADDED, POWER, PRECISE, PRECISION, INTERPRET,
        )  # fmt: skip

    first_M, second_M = rows_M, rows_M  # stand for nothing without dropout
    if DROPOUT:
        n_all_rows = (tl.num_programs(0) // n_blocks).to(tl.int64) * n_queries
        first_M, second_M = kept(row_keys, row * n_queries, rows_M, n_queries, n_all_rows)
    lines_M = first // LIST + tl.arange(0, BLOCK_M // LIST)
    marks_M = live + (row * tl.cdiv(n_queries, LIST) + lines_M) * n_lists
    # F is the certificate: where it is too far from 1, once more from the next step
    enough = tolerance(beta, PRECISE)
    mass_M, total_M = top_M * 0.0, top_M * 0.0
    context_ME = tl.zeros([BLOCK_M, PADDED], tl.float32)
    centre_ME = tl.zeros([BLOCK_M, PADDED], tl.float32)
    last_M, n_left = shift_M, N_EVALUATIONS + 0
    while n_left > 0:
        mass_M, total_M, context_ME, centre_ME = gather(
            shift_M, marks_M, lines_M * LIST < n_queries, listed, n_listed, query_ME, key_base,
            key_n, value_base, value_n, allowed, limit_M, full, top_M, slope, beta, first_M,
            second_M, threshold, keep_scale,
            BLOCK_M, BLOCK_N, WIDTH, PADDED, LIST, DROPOUT, POWER, PRECISE, PRECISION, INTERPRET,
        )  # fmt: skip
        last_M = shift_M
        shift_M = newton(shift_M, mass_M, total_M, beta, shift_max)
        is_open = (tl.abs(mass_M - 1.0) > enough) & (shift_M != last_M) & (limit_M > 0)
        n_left = tl.where(tl.max(is_open.to(tl.int32), 0) > 0, n_left - 1, 0)
    total_M = tl.maximum(total_M, TINY)
    excess_M = tl.where(limit_M > 0, (mass_M - 1.0) / total_M, 0.0)
    context_ME = context_ME - excess_M[:, None] * centre_ME
    centre_ME = centre_ME / total_M[:, None]
    write_rows(
        context, centre, top, shift, context_ME, centre_ME, top_M, last_M, limit_M,
        row, batch, head, rows_M, n_heads, n_queries, WIDTH, PADDED,
    )  # fmt: skip
