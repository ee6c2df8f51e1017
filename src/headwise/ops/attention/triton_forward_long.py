"""Forward kernel of fused α-entmax attention for long rows, with several passes over the keys.

The scores are recomputed in each pass: for the maximum, for moments, for Newton's method, and for
the context. The first pass of moments lists the blocks with any key above the lowest possible
threshold, and later passes read only these. The number of passes depends on the queries of the
program, at most 64. `live` marks the blocks of BLOCK_N x BLOCK_N scores with any weight.

Axes: M queries and N keys of a tile, E head width.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from headwise.ops.attention.triton_forward import HeadMap, write_rows
from headwise.ops.attention.triton_shared import (
    SIZES,
    apply_dropout,
    keep_mask,
    load_bias,
    load_rows,
    masked_dot,
    matrix,
    program_place,
    random_words,
)
from headwise.ops.attention.triton_visible import (
    Blocks,
    Sight,
    listed_block,
    listed_blocks,
    load_keys,
    n_allowed_keys,
    places_of,
    segments_of,
    visible,
    window_of,
)
from headwise.ops.triton.threshold import (
    ANY,
    EXP,
    N_EVALUATIONS,
    SQUARE,
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


class Inputs(NamedTuple):
    """What the scores of a program are computed from."""

    query_ME: Any
    keys: Any  # their `Matrix`
    sight: Any
    limit_M: Any  # of the sight, 0 for queries without a visible key
    full: Any  # number of keys that are visible to all queries
    bias: Any
    pattern: Any
    masks: Any
    at: Any
    n_keys: Any


@triton.jit
def scores_of_block(entries, item, inputs, const):
    """Return the unscaled scores (M, N) of a listed block of keys, its positions and its entry."""
    entry, index, is_edge = listed_block(entries, item, inputs.full, const.BLOCK_N)
    slots_N = index * const.BLOCK_N + tl.arange(0, const.BLOCK_N)
    keys = load_keys(inputs.pattern, inputs.masks, inputs.at, slots_N, inputs.n_keys)
    key_NE = load_rows(inputs.keys, keys.positions_N, const)
    scores_MN = masked_dot(inputs.query_ME, key_NE, keys, inputs.sight, is_edge, inputs.bias, const)
    return scores_MN, keys.positions_N, entry


@triton.jit
def find_top(inputs, blocks, const):
    """Return the largest score of each row, -inf without a key, reduced along the row once."""
    top_MN = tl.full([const.BLOCK_M, const.BLOCK_N], float("-inf"), tl.float32)
    for item in range(blocks.number):
        scores_MN, _keys_N, _entry = scores_of_block(blocks.entries, item, inputs, const)
        top_MN = tl.maximum(top_MN, scores_MN)
    return tl.max(top_MN, 1)


@triton.jit
def start_shift(block_list, inputs, blocks, top_M, head_map, const):
    """Return the shift from the moments above the lowest threshold, and the blocks above it.

    The list of these is written to `block_list`.
    """
    slope, beta, shift_max = head_map
    n_listed = 0
    count_M, sum_M, square_M = top_M * 0.0, top_M * 0.0, top_M * 0.0
    for item in range(blocks.number):
        scores_MN, _keys_N, entry = scores_of_block(blocks.entries, item, inputs, const)
        gap_MN = scores_MN - top_M[:, None]
        more_M, more_sum_M, more_square_M = moments(gap_MN, top_M * 0.0 + 1.0, slope)
        count_M += more_M
        sum_M += more_sum_M
        square_M += more_square_M
        if tl.max(((more_sum_M <= 0.0) == 0).to(tl.int32), 0) > 0:  # True for NaN
            tl.store(block_list + n_listed, entry)
            n_listed += 1
    tl.debug_barrier()  # threads read entries that other threads wrote
    shift_M = moment_shift(count_M, sum_M, square_M, top_M * 0.0, beta, shift_max)
    return shift_M, Blocks(block_list, n_listed)


@triton.jit
def improve_by_moments(shift_M, blocks, inputs, top_M, head_map, const):
    """Return the shift after more passes of moments.

    Unless POWER is ANY, moments give F too, and the exact shift for their support: the loop ends
    when the support is correct.
    """
    slope, beta, shift_max = head_map
    loose = 0.5 * tl.sqrt(tolerance(beta, const.PRECISE))
    base_M = 1.0 - slope * top_M  # level of x for scores instead of gaps
    n_left = N_EVALUATIONS + 0
    if const.POWER == ANY:
        n_left = n_moment_passes(beta, const.PRECISE) - 1
    while n_left > 0:
        count_M, sum_M, square_M = top_M * 0.0, top_M * 0.0, top_M * 0.0
        for item in range(blocks.number):
            scores_MN, _keys_N, _entry = scores_of_block(blocks.entries, item, inputs, const)
            more_M, more_sum_M, more_square_M = moments(scores_MN, base_M - shift_M, slope)
            count_M += more_M
            sum_M += more_sum_M
            square_M += more_square_M
        n_left -= 1
        if const.POWER != ANY:
            mass_M = sum_M
            if const.POWER == SQUARE:
                mass_M = square_M
            is_open = (tl.abs(mass_M - 1.0) > loose) & (inputs.limit_M > 0)
            n_left = tl.where(tl.max(is_open.to(tl.int32), 0) > 0, n_left, 0)
        shift_M = moment_shift(count_M, sum_M, square_M, shift_M, beta, shift_max)
    return shift_M


@triton.jit
def improve_by_newton(shift_M, blocks, inputs, top_M, head_map, const):
    """Return the shift by Newton's method; stops when the next step should be within tolerance."""
    slope, beta, shift_max = head_map
    loose = 0.5 * tl.sqrt(tolerance(beta, const.PRECISE))
    n_left = N_EVALUATIONS + 0
    while n_left > 0:
        mass_M, total_M = top_M * 0.0, top_M * 0.0
        for item in range(blocks.number):
            scores_MN, _keys_N, _entry = scores_of_block(blocks.entries, item, inputs, const)
            gap_MN = scores_MN - top_M[:, None]
            x_MN, s_MN, _log2_x_MN = powers(gap_MN, shift_M[:, None], slope, beta, const)
            mass_M += tl.sum(s_MN * x_MN, 1)
            total_M += tl.sum(s_MN, 1)
        next_M = newton(shift_M, mass_M, total_M, beta, shift_max)
        is_open = (tl.abs(mass_M - 1.0) > loose) & (next_M != shift_M) & (inputs.limit_M > 0)
        n_left = tl.where(tl.max(is_open.to(tl.int32), 0) > 0, n_left - 1, 0)
        shift_M = next_M
    return shift_M


@triton.jit
def weighted_sums(shift_M, marks, blocks, inputs, values, top_M, head_map, words, draws, const):
    """Return F, Σ s, Σ p v and Σ s v at a shift; mark blocks with a weight, and skip the others."""
    slope, beta, _shift_max = head_map
    first_M, second_M = words
    mass_M, total_M = top_M * 0.0, top_M * 0.0
    context_ME = tl.zeros([const.BLOCK_M, const.PADDED], tl.float32)
    centre_ME = tl.zeros([const.BLOCK_M, const.PADDED], tl.float32)
    for item in range(blocks.number):
        scores_MN, keys_N, entry = scores_of_block(blocks.entries, item, inputs, const)
        value_NE = load_rows(values, keys_N, const)
        gap_MN = scores_MN - top_M[:, None]
        x_MN, s_MN, _log2_x_MN = powers(gap_MN, shift_M[:, None], slope, beta, const)
        p_MN = s_MN * x_MN
        mass_M += tl.sum(p_MN, 1)
        more_M = tl.sum(s_MN, 1)
        total_M += more_M
        is_live = (tl.sum(more_M, 0) <= 0.0) == 0  # True for NaN
        if is_live:
            tl.store(marks + tl.maximum(entry, ~entry), tl.where(entry < 0, 2, 1))
            if draws is not None:
                keep_MN = keep_mask(first_M[:, None], second_M[:, None], keys_N[None, :], draws)
                p_MN, s_MN = (
                    apply_dropout(p_MN, keep_MN, draws),
                    apply_dropout(s_MN, keep_MN, draws),
                )
            context_ME += tl.dot(p_MN.to(value_NE.dtype), value_NE, input_precision=const.PRECISION)
            centre_ME += tl.dot(s_MN.to(value_NE.dtype), value_NE, input_precision=const.PRECISION)
    return mass_M, total_M, context_ME, centre_ME


@triton.jit(do_not_specialize=SIZES)
def forward_streaming(
    heads, alpha, masks, draws, distances, pattern, out, live, lists,
    n_heads, n_queries, n_keys, query_offset, scale, const,
):  # fmt: skip
    """Forward in several passes; BLOCK_M is BLOCK_N.

    Launched twice. Without `live` it searches: it writes top and shift of each query, and to
    `lists` the blocks that may have weights. Then, with `live`, it reads these and writes all
    results. The search without contexts needs half of the registers, so that twice as many
    programs share a processor.
    """
    query, key, value = heads
    n_blocks = tl.cdiv(n_queries, const.BLOCK_M)
    # causal: long rows first, for an even load
    at = program_place(n_heads, n_blocks, True)
    beta = load_beta(alpha, at.head, const)
    head_map = HeadMap(beta * scale, beta, largest_shift(beta, n_keys))
    allowed = n_allowed_keys(masks, at.batch, n_keys)
    first = at.block * const.BLOCK_M
    slots_M = first + tl.arange(0, const.BLOCK_M)
    rows_M, labels_M = places_of(pattern, at.bh, slots_M, n_queries, False)
    limit_M, full, reach = visible(rows_M, first, allowed, query_offset, const)
    # rows after the last query get no keys: with equal scores, they would list every block
    limit_M = tl.where(rows_M < n_queries, limit_M, 0)
    full = tl.where(first + const.BLOCK_M <= n_queries, full, 0)
    query_ME = load_rows(matrix(query, at, n_queries), rows_M, const)
    bias = load_bias(distances, at.head, rows_M[:, None] + query_offset, scale)
    keys, values = matrix(key, at, allowed, const.GROUP), matrix(value, at, allowed, const.GROUP)
    segments_M = segments_of(masks, at.batch, rows_M, n_queries)
    sight = Sight(limit_M, labels_M, segments_M, window_of(pattern, at.head))
    inputs = Inputs(query_ME, keys, sight, limit_M, full, bias, pattern, masks, at, n_keys)

    line, inside_M = at.bh * n_blocks + at.block, rows_M < n_queries
    index_M = at.bh * n_queries + rows_M
    n_key_blocks = tl.cdiv(n_keys, const.BLOCK_N)
    blocks = Blocks(None, tl.cdiv(reach, const.BLOCK_N))
    if masks.lists is not None:
        mask_list = masks.lists + at.batch * masks.lists_per_batch + at.head * masks.lists_per_head
        blocks = listed_blocks(mask_list, at.block, n_key_blocks)
    if live is None:
        top_M = find_top(inputs, blocks, const)
        tl.store(out.top + index_M, top_M, mask=inside_M)
    else:
        top_M = tl.load(out.top + index_M, mask=inside_M, other=float("-inf"))
    if masks.lists is not None:
        limit_M = tl.where(top_M == float("-inf"), 0, limit_M)  # no key is visible
    top_M = finite_top(top_M)
    inputs = Inputs(query_ME, keys, sight, limit_M, full, bias, pattern, masks, at, n_keys)
    if live is None:
        if const.POWER != EXP:
            block_list = lists + line * (1 + n_key_blocks)
            shift_M, blocks = start_shift(block_list + 1, inputs, blocks, top_M, head_map, const)
            tl.store(block_list, blocks.number)
            shift_M = improve_by_moments(shift_M, blocks, inputs, top_M, head_map, const)
            if const.POWER == ANY:
                shift_M = improve_by_newton(shift_M, blocks, inputs, top_M, head_map, const)
            tl.store(out.shift + index_M, shift_M, mask=inside_M)
    else:
        shift_M = top_M * 0.0
        if const.POWER != EXP:
            shift_M = tl.load(out.shift + index_M, mask=inside_M, other=0.0)
            blocks = listed_blocks(lists, line, n_key_blocks)
        words = random_words(draws, at.bh, rows_M, n_queries, n_blocks)
        marks = live + line * n_key_blocks
        # if F is too far from 1, repeat with the next shift
        enough = tolerance(beta, const.PRECISE)
        mass_M, total_M = top_M * 0.0, top_M * 0.0
        context_ME = tl.zeros([const.BLOCK_M, const.PADDED], tl.float32)
        centre_ME = tl.zeros([const.BLOCK_M, const.PADDED], tl.float32)
        last_M, n_left = top_M * 0.0, N_EVALUATIONS + 0
        if const.POWER == EXP:
            n_left = 1 + 0
        while n_left > 0:
            mass_M, total_M, context_ME, centre_ME = weighted_sums(
                shift_M, marks, blocks, inputs, values, top_M, head_map, words, draws, const
            )
            last_M = shift_M
            shift_M = newton(shift_M, mass_M, total_M, beta, head_map.shift_max)
            is_open = (tl.abs(mass_M - 1.0) > enough) & (shift_M != last_M) & (limit_M > 0)
            n_left = tl.where(tl.max(is_open.to(tl.int32), 0) > 0, n_left - 1, 0)
        total_M = tl.maximum(total_M, TINY)
        if const.POWER == EXP:
            context_ME = context_ME / total_M[:, None]
            last_M = tl.log(total_M)
        else:
            excess_M = tl.where(limit_M > 0, (mass_M - 1.0) / total_M, 0.0)
            context_ME = context_ME - excess_M[:, None] * centre_ME
        results = context_ME, centre_ME / total_M[:, None], top_M, last_M
        write_rows(out, results, limit_M, rows_M, at, n_heads, n_queries, const)
