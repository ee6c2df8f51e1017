"""Forward kernel of fused α-entmax attention for short rows: their scores are held on the chip.

It writes, beside the context, what the backward kernels need of a row: top and shift, and the
`centre` C = Σ s m v / Σ s (m: dropout), whose product with the incoming gradient is the c of
`headwise.entmax.function`.

Letters: M queries and N keys of a tile, E head width.
"""

from __future__ import annotations

import triton
import triton.language as tl

from headwise.kernels.triton_kernels import (
    N_EVALUATIONS,
    NO_KEYS,
    SIZES,
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
    store_rows,
    tolerance,
)


@triton.jit
def write_rows(
    context, centre, top, shift, context_ME, centre_ME, top_M, shift_M, limit_M,
    row, batch, head, rows_M, n_heads, n_queries, WIDTH: tl.constexpr, PADDED: tl.constexpr,
):  # fmt: skip
    """What is kept of some queries; matrices are laid out as (B, Q, H, E)."""
    offset = (batch * n_queries * n_heads + head) * WIDTH
    stride = n_heads * WIDTH
    store_rows(context + offset, stride, rows_M, n_queries, context_ME, WIDTH, PADDED)
    store_rows(centre + offset, stride, rows_M, n_queries, centre_ME, WIDTH, PADDED)
    inside_M = rows_M < n_queries
    tl.store(top + row * n_queries + rows_M, top_M, mask=inside_M)
    shift_M = tl.where(limit_M > 0, shift_M, NO_KEYS)
    tl.store(shift + row * n_queries + rows_M, shift_M, mask=inside_M)


@triton.jit
def solve_resident(
    gap_MN, limit_M, slope, beta, shift_max,
    POWER: tl.constexpr, PRECISE: tl.constexpr, INTERPRET: tl.constexpr,
):  # fmt: skip
    """S and corrected p of whole rows, Σ s, and the shift one step further."""
    shift_M = (limit_M * 0).to(tl.float32)
    for _ in range(n_moment_passes(beta, PRECISE)):
        count_M, sum_M, square_M = moments(gap_MN, 1.0 - shift_M, slope)
        shift_M = moment_shift(count_M, sum_M, square_M, shift_M, beta, shift_max)
    # s of the last evaluation stays in registers; x is had again from the gaps for less
    enough = tolerance(beta, PRECISE)
    s_MN, last_M, mass_M, total_M = gap_MN, shift_M, shift_M, shift_M
    n_left = N_EVALUATIONS + 0
    while n_left > 0:
        x_MN, s_MN, _log2_x_MN = powers(
            gap_MN, shift_M[:, None], slope, beta, POWER, PRECISE, INTERPRET
        )
        mass_M, total_M = tl.sum(s_MN * x_MN, 1), tl.sum(s_MN, 1)
        last_M = shift_M
        shift_M = newton(shift_M, mass_M, total_M, beta, shift_max)
        is_open = (tl.abs(mass_M - 1.0) > enough) & (shift_M != last_M) & (limit_M > 0)
        n_left = tl.where(tl.max(is_open.to(tl.int32), 0) > 0, n_left - 1, 0)
    total_M = tl.maximum(total_M, TINY)
    excess_M = tl.where(limit_M > 0, (mass_M - 1.0) / total_M, 0.0)
    level_MN = (1.0 - last_M)[:, None] + gap_MN * slope - excess_M[:, None]
    p_MN = tl.maximum(level_MN, 0.0, propagate_nan=tl.PropagateNan.ALL) * s_MN
    return s_MN, p_MN, total_M, last_M


@triton.jit(do_not_specialize=SIZES)
def forward_resident(
    query, key, value, alpha, lengths, row_keys,
    context, centre, top, shift,
    query_b, query_h, query_n, key_b, key_h, key_n, value_b, value_h, value_n,
    n_heads, n_queries, n_keys, query_offset, scale, threshold, keep_scale,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr,
    CAUSAL: tl.constexpr, HAS_LENGTHS: tl.constexpr, DROPOUT: tl.constexpr, POWER: tl.constexpr,
    PRECISE: tl.constexpr, PRECISION: tl.constexpr, INTERPRET: tl.constexpr,
):  # fmt: skip
    """BLOCK_N ≥ n_keys: the scores of BLOCK_M queries are formed once and stay in registers."""
    n_blocks = tl.cdiv(n_queries, BLOCK_M)
    program = tl.program_id(0)
    block, row = program % n_blocks, (program // n_blocks).to(tl.int64)  # row: of batch and head
    batch, head = row // n_heads, row % n_heads
    beta = load_beta(alpha, head)
    slope = beta * scale
    allowed = n_allowed_keys(lengths, batch, n_keys, HAS_LENGTHS)
    rows_M, keys_N = block * BLOCK_M + tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_N)
    limit_M = rows_M * 0 + allowed
    if CAUSAL:
        limit_M = tl.minimum(limit_M, rows_M + query_offset + 1)

    base = query + batch * query_b + head * query_h
    query_ME = load_rows(base, query_n, rows_M, n_queries, WIDTH, PADDED, INTERPRET)
    base = key + batch * key_b + head * key_h
    key_NE = load_rows(base, key_n, keys_N, allowed, WIDTH, PADDED, INTERPRET)
    gap_MN = masked_dot(query_ME, key_NE, keys_N, limit_M, True, PRECISION)
    top_M = finite_top(tl.max(gap_MN, 1))
    gap_MN = gap_MN - top_M[:, None]

    shift_max = largest_shift(beta, n_keys)
    s_MN, p_MN, total_M, shift_M = solve_resident(
        gap_MN, limit_M, slope, beta, shift_max, POWER, PRECISE, INTERPRET
    )
    if DROPOUT:
        n_all_rows = (tl.num_programs(0) // n_blocks).to(tl.int64) * n_queries
        first_M, second_M = kept(row_keys, row * n_queries, rows_M, n_queries, n_all_rows)
        keep_MN = keeps(first_M[:, None], second_M[:, None], keys_N[None, :], threshold)
        p_MN = tl.where(keep_MN, p_MN * keep_scale, 0.0)
        s_MN = tl.where(keep_MN, s_MN * keep_scale, 0.0)
    base = value + batch * value_b + head * value_h
    value_NE = load_rows(base, value_n, keys_N, allowed, WIDTH, PADDED, INTERPRET)
    context_ME = tl.dot(p_MN.to(value_NE.dtype), value_NE, input_precision=PRECISION)
    centre_ME = tl.dot(s_MN.to(value_NE.dtype), value_NE, input_precision=PRECISION)
    centre_ME = centre_ME / total_M[:, None]

    write_rows(
        context, centre, top, shift, context_ME, centre_ME, top_M, shift_M, limit_M,
        row, batch, head, rows_M, n_heads, n_queries, WIDTH, PADDED,
    )  # fmt: skip
