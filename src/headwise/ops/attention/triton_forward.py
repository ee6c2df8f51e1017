"""Forward kernel of fused α-entmax attention for short rows, whose scores stay in registers.

It also writes the values per row that the backward kernels need: top, shift and the
`centre` C = Σ s m v / Σ s (m: dropout), whose dot product with the incoming gradient is the c of
`headwise.ops.maps.reference`.

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
)
from headwise.ops.attention.triton_visible import n_allowed_keys, visible
from headwise.ops.triton.threshold import (
    N_EVALUATIONS,
    NO_KEYS,
    TINY,
    finite_top,
    largest_shift,
    load_beta,
    moment_shift,
    moments,
    n_moment_passes,
    newton,
    powers,
    tolerance,
)


@triton.jit
def write_rows(out, results, limit_M, rows_M, at, n_heads, n_queries, cut):
    """Write the results (context, centre, top, shift) of some queries."""
    context, centre, top, shift = out
    context_ME, centre_ME, top_M, shift_M = results
    _block, row, batch, head = at
    store_rows(joined_heads(context, batch, head, n_heads, n_queries, cut), rows_M, context_ME, cut)
    store_rows(joined_heads(centre, batch, head, n_heads, n_queries, cut), rows_M, centre_ME, cut)
    inside_M = rows_M < n_queries
    tl.store(top + row * n_queries + rows_M, top_M, mask=inside_M)
    shift_M = tl.where(limit_M > 0, shift_M, NO_KEYS)
    tl.store(shift + row * n_queries + rows_M, shift_M, mask=inside_M)


@triton.jit
def solve_resident(gap_MN, limit_M, rule, cut):
    """Return s and corrected p of whole rows, Σ s, and the last shift."""
    slope, beta, shift_max = rule
    zero_M = (limit_M * 0).to(tl.float32)
    shift_M = zero_M
    for _ in range(n_moment_passes(beta, cut.PRECISE)):
        count_M, sum_M, square_M = moments(gap_MN, 1.0 - shift_M, slope)
        shift_M = moment_shift(count_M, sum_M, square_M, shift_M, beta, shift_max)
    # s of the last evaluation stays in registers; recomputing x from the gaps is cheaper
    enough = tolerance(beta, cut.PRECISE)
    s_MN, last_M, mass_M, total_M = gap_MN, zero_M, zero_M, zero_M
    n_left = N_EVALUATIONS + 0
    while n_left > 0:
        x_MN, s_MN, _log2_x_MN = powers(gap_MN, shift_M[:, None], slope, beta, cut)
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
    heads, strides, alpha, lengths, draws, distances, pattern, out,
    n_heads, n_queries, n_keys, query_offset, scale, cut,
):  # fmt: skip
    """Forward with BLOCK_N ≥ n_keys: scores of BLOCK_M queries are computed only once.

    `pattern` is None.
    """
    query, key, value = heads
    n_blocks = tl.cdiv(n_queries, cut.BLOCK_M)
    block, row, batch, head = program_place(n_heads, n_blocks, False)
    beta = load_beta(alpha, head, cut)
    slope = beta * scale
    allowed = n_allowed_keys(lengths, batch, n_keys)
    first = block * cut.BLOCK_M
    rows_M, keys_N = first + tl.arange(0, cut.BLOCK_M), tl.arange(0, cut.BLOCK_N)
    limit_M, _full, _reach = visible(rows_M, first, allowed, query_offset, cut)

    query_ME = load_rows(matrix(query, strides[0], batch, head, n_queries), rows_M, cut)
    key_NE = load_rows(matrix(key, strides[1], batch, head, allowed), keys_N, cut)
    bias = load_bias(distances, head, rows_M[:, None] + query_offset, scale)
    keys, sight = (keys_N, keys_N), (limit_M, limit_M, 0)
    gap_MN = masked_dot(query_ME, key_NE, keys, sight, True, bias, cut)
    top_M = finite_top(tl.max(gap_MN, 1))
    gap_MN = gap_MN - top_M[:, None]

    rule = slope, beta, largest_shift(beta, n_keys)
    s_MN, p_MN, total_M, shift_M = solve_resident(gap_MN, limit_M, rule, cut)
    if draws is not None:
        first_M, second_M = random_words(draws, row, rows_M, n_queries, n_blocks)
        keep_MN = keep_mask(first_M[:, None], second_M[:, None], keys_N[None, :], draws)
        p_MN, s_MN = apply_dropout(p_MN, keep_MN, draws), apply_dropout(s_MN, keep_MN, draws)
    value_NE = load_rows(matrix(value, strides[2], batch, head, allowed), keys_N, cut)
    context_ME = tl.dot(p_MN.to(value_NE.dtype), value_NE, input_precision=cut.PRECISION)
    centre_ME = tl.dot(s_MN.to(value_NE.dtype), value_NE, input_precision=cut.PRECISION)
    results = context_ME, centre_ME / total_M[:, None], top_M, shift_M
    write_rows(out, results, limit_M, rows_M, (block, row, batch, head), n_heads, n_queries, cut)
