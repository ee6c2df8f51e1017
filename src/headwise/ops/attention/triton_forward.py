"""Forward kernel of fused α-entmax attention for short rows, whose scores stay in registers.

It also writes the values per row that the backward kernels need: top, shift and the
`centre` C = Σ s m v / Σ s (m: dropout), whose dot product with the incoming gradient is the c of
`headwise.ops.maps.reference`.

Axes: M queries and N keys of a tile, E head width.
"""

from __future__ import annotations

from typing import Any, NamedTuple

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
from headwise.ops.attention.triton_visible import (
    Sight,
    is_visible,
    load_keys,
    n_allowed_keys,
    segments_of,
    visible,
)
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


class HeadMap(NamedTuple):
    """The map of a head from scores to weights."""

    slope: Any  # β scale
    beta: Any
    shift_max: Any  # the largest shift


@triton.jit
def write_rows(out, results, limit_M, rows_M, at, n_heads, n_queries, const):
    """Write the results of some queries to `out`; both are `triton_launch.Results`."""
    context_ME, centre_ME, top_M, shift_M = results
    store_rows(joined_heads(out.context, at, n_heads, n_queries, const), rows_M, context_ME, const)
    store_rows(joined_heads(out.centre, at, n_heads, n_queries, const), rows_M, centre_ME, const)
    index_M, inside_M = at.bh * n_queries + rows_M, rows_M < n_queries
    tl.store(out.top + index_M, top_M, mask=inside_M)
    shift_M = tl.where(limit_M > 0, shift_M, NO_KEYS)
    tl.store(out.shift + index_M, shift_M, mask=inside_M)


@triton.jit
def solve_resident(gap_MN, limit_M, head_map, const):
    """Return s and corrected p of whole rows, Σ s, and the last shift."""
    slope, beta, shift_max = head_map
    zero_M = (limit_M * 0).to(tl.float32)
    shift_M = zero_M
    for _ in range(n_moment_passes(beta, const.PRECISE)):
        count_M, sum_M, square_M = moments(gap_MN, 1.0 - shift_M, slope)
        shift_M = moment_shift(count_M, sum_M, square_M, shift_M, beta, shift_max)
    # s of the last evaluation stays in registers; recomputing x from the gaps is cheaper
    enough = tolerance(beta, const.PRECISE)
    s_MN, last_M, mass_M, total_M = gap_MN, zero_M, zero_M, zero_M
    n_left = N_EVALUATIONS + 0
    while n_left > 0:
        x_MN, s_MN, _log2_x_MN = powers(gap_MN, shift_M[:, None], slope, beta, const)
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
    heads, alpha, masks, draws, distances, pattern, out,
    n_heads, n_queries, n_keys, query_offset, scale, const,
):  # fmt: skip
    """Forward with BLOCK_N ≥ n_keys: scores of BLOCK_M queries are computed only once.

    `pattern` is None.
    """
    query, key, value = heads
    n_blocks = tl.cdiv(n_queries, const.BLOCK_M)
    at = program_place(n_heads, n_blocks, False)
    beta = load_beta(alpha, at.head, const)
    allowed = n_allowed_keys(masks, at.batch, n_keys)
    first = at.block * const.BLOCK_M
    rows_M = first + tl.arange(0, const.BLOCK_M)
    keys = load_keys(pattern, masks, at, tl.arange(0, const.BLOCK_N), n_keys)
    limit_M, _full, _reach = visible(rows_M, first, allowed, query_offset, const)

    query_ME = load_rows(matrix(query, at, n_queries), rows_M, const)
    key_NE = load_rows(matrix(key, at, allowed, const.GROUP), keys.positions_N, const)
    bias = load_bias(distances, at.head, rows_M[:, None] + query_offset, scale)
    sight = Sight(limit_M, limit_M, segments_of(masks, at.batch, rows_M, n_queries), 0)
    gap_MN = masked_dot(query_ME, key_NE, keys, sight, True, bias, const)
    if const.UNLISTED:  # not by the scores: Triton 3.7 fails for capability 10.0
        visible_MN = is_visible(keys, sight, bias.positions, 0, const)
        limit_M = tl.where(tl.max(visible_MN.to(tl.int32), 1) > 0, limit_M, 0)
    top_M = finite_top(tl.max(gap_MN, 1))
    gap_MN = gap_MN - top_M[:, None]

    head_map = HeadMap(beta * scale, beta, largest_shift(beta, n_keys))
    s_MN, p_MN, total_M, shift_M = solve_resident(gap_MN, limit_M, head_map, const)
    if draws is not None:
        first_M, second_M = random_words(draws, at.bh, rows_M, n_queries, n_blocks)
        keep_MN = keep_mask(first_M[:, None], second_M[:, None], keys.positions_N[None, :], draws)
        p_MN, s_MN = apply_dropout(p_MN, keep_MN, draws), apply_dropout(s_MN, keep_MN, draws)
    value_NE = load_rows(matrix(value, at, allowed, const.GROUP), keys.positions_N, const)
    context_ME = tl.dot(p_MN.to(value_NE.dtype), value_NE, input_precision=const.PRECISION)
    centre_ME = tl.dot(s_MN.to(value_NE.dtype), value_NE, input_precision=const.PRECISION)
    results = context_ME, centre_ME / total_M[:, None], top_M, shift_M
    write_rows(out, results, limit_M, rows_M, at, n_heads, n_queries, const)
