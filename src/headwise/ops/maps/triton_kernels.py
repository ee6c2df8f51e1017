"""Kernels of the maps for whole rows of scores, and functions shared with the losses.

A program has M rows and reads their keys in blocks of N, in each pass: for the maximum, for
moments, for Newton's method, and for the weights. After the first pass, rows of usual length are in
cache. For long rows, the first pass of moments lists the blocks with any key above the lowest
possible threshold, and the search reads only these. Sums are accumulated per position in a block,
and reduced along the row at the end of a pass.

Formulas are those of `ops/triton/threshold.py`, with β per row and a scale of 1.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from headwise.ops.triton.threshold import (
    ANY,
    LINEAR,
    LOG2_E,
    N_EVALUATIONS,
    SQUARE,
    TINY,
    alpha_terms,
    finite_top,
    largest_shift,
    moment_shift,
    newton,
    powers,
)

N_MOMENT_PASSES = tl.constexpr(2)  # beyond the first; each saves more than it costs
# Not specialised, as they change with every batch. (mask_k, which is 0 or 1, is specialised.)
SIZES = ("n_rows", "n_heads", "n_queries", "n_keys", "beta_b", "beta_h", "beta_q")
MASKED_SIZES = (*SIZES, "mask_b", "mask_h", "mask_q")


class Rows(NamedTuple):
    """Rows of scores."""

    base_M: Any  # start of each row
    inside_M: Any  # which rows exist
    n_keys: Any
    mask_M: Any  # start of each row's mask, if there is one
    mask_k: Any  # stride of its keys


@triton.jit
def gaps(rows, keys_N, top_M, HAS_MASK: tl.constexpr):
    """Return scores minus `top_M` (M, N), -inf where there is no key or it is masked."""
    inside_MN = rows.inside_M[:, None] & (keys_N < rows.n_keys)[None, :]
    if HAS_MASK:
        offsets_N = keys_N.to(tl.int64) * rows.mask_k
        allowed_MN = tl.load(rows.mask_M[:, None] + offsets_N[None, :], mask=inside_MN, other=0)
        inside_MN = inside_MN & (allowed_MN != 0)
    scores_MN = tl.load(rows.base_M[:, None] + keys_N[None, :], mask=inside_MN, other=float("-inf"))
    return scores_MN.to(tl.float32) - top_M[:, None]


@triton.jit
def largest_of_rows(values_MN):
    """Return the maximum of each row (M,), NaN if the row has NaN, which tl.max ignores."""
    has_nan_M = tl.max((values_MN != values_MN).to(tl.int32), 1) > 0
    return tl.where(has_nan_M, float("nan"), tl.max(values_MN, 1))


@triton.jit
def find_top(rows, const):
    """Return the largest score of each row (M,), -inf without keys, NaN if the row has NaN."""
    top_MN = tl.full([const.BLOCK_M, const.BLOCK_N], float("-inf"), tl.float32)
    zero_M = tl.zeros([const.BLOCK_M], tl.float32)
    for index in range(tl.cdiv(rows.n_keys, const.BLOCK_N)):
        keys_N = index * const.BLOCK_N + tl.arange(0, const.BLOCK_N)
        scores_MN = gaps(rows, keys_N, zero_M, const.HAS_MASK)
        top_MN = tl.maximum(top_MN, scores_MN, propagate_nan=tl.PropagateNan.ALL)
    return largest_of_rows(top_MN)


@triton.jit
def beta_of_rows(beta, strides, indices, inside_M, POWER: tl.constexpr):
    """Return β of each row (M,), already clamped."""
    batch_M, head_M, query_M = indices
    if POWER == ANY:
        beta_b, beta_h, beta_q = strides
        offsets_M = batch_M * beta_b + head_M * beta_h + query_M * beta_q
        return tl.load(beta + offsets_M, mask=inside_M, other=1.0).to(tl.float32)
    if POWER == SQUARE:
        return (batch_M * 0.0 + 0.5).to(tl.float32)
    return (batch_M * 0.0 + 1.0).to(tl.float32)


@triton.jit
def listed_block(block_list, item):
    """Return the block index of an item of the list; without a list, the item."""
    if block_list is not None:
        return tl.load(block_list + item).to(tl.int32)
    return item


@triton.jit
def add_moments(gap_MN, level_M, beta_M, count_MN, sum_MN, square_MN):
    """Return x of a block, and the sums plus its support, x and x², not reduced along rows."""
    x_MN = gap_MN * beta_M[:, None] + level_M[:, None]
    x_MN = tl.maximum(x_MN, 0.0, propagate_nan=tl.PropagateNan.ALL)
    count_MN += tl.where(x_MN > 0.0, 1.0, 0.0)
    return x_MN, count_MN, sum_MN + x_MN, square_MN + x_MN * x_MN


@triton.jit
def start_shift(rows, block_list, top_M, beta_M, shift_max_M, const):
    """Return the shift from the moments above the lowest threshold; write the list of blocks."""
    n_listed = 0
    zero_M = tl.zeros([const.BLOCK_M], tl.float32)
    zero_MN = tl.zeros([const.BLOCK_M, const.BLOCK_N], tl.float32)
    count_MN, sum_MN, square_MN = zero_MN, zero_MN, zero_MN
    for index in range(tl.cdiv(rows.n_keys, const.BLOCK_N)):
        keys_N = index * const.BLOCK_N + tl.arange(0, const.BLOCK_N)
        gap_MN = gaps(rows, keys_N, top_M, const.HAS_MASK)
        x_MN, count_MN, sum_MN, square_MN = add_moments(
            gap_MN, zero_M + 1.0, beta_M, count_MN, sum_MN, square_MN
        )
        if block_list is not None:
            is_listed_MN = ((x_MN <= 0.0) == 0).to(tl.int32)  # True for NaN
            if tl.max(tl.max(is_listed_MN, 1), 0) > 0:
                tl.store(block_list + n_listed, index)
                n_listed += 1
    if block_list is not None:
        tl.debug_barrier()  # threads read entries that other threads wrote
    else:
        n_listed = 1
    shift_M = moment_shift(
        tl.sum(count_MN, 1), tl.sum(sum_MN, 1), tl.sum(square_MN, 1), zero_M, beta_M, shift_max_M
    )
    return shift_M, n_listed


@triton.jit
def find_shift(rows, block_list, top_M, is_empty_M, beta_M, const):
    """Return the shift t and the correction c = (F - 1) / Σ s of each row, and the list length."""
    slope_M1 = beta_M[:, None]
    shift_max_M = largest_shift(beta_M, rows.n_keys)
    zero_M = tl.zeros([const.BLOCK_M], tl.float32)
    zero_MN = tl.zeros([const.BLOCK_M, const.BLOCK_N], tl.float32)
    shift_M, n_listed = start_shift(rows, block_list, top_M, beta_M, shift_max_M, const)
    for _ in range(N_MOMENT_PASSES):
        count_MN, sum_MN, square_MN = zero_MN, zero_MN, zero_MN
        for item in range(n_listed):
            keys_N = listed_block(block_list, item) * const.BLOCK_N + tl.arange(0, const.BLOCK_N)
            gap_MN = gaps(rows, keys_N, top_M, const.HAS_MASK)
            _x_MN, count_MN, sum_MN, square_MN = add_moments(
                gap_MN, 1.0 - shift_M, beta_M, count_MN, sum_MN, square_MN
            )
        count_M, sum_M, square_M = tl.sum(count_MN, 1), tl.sum(sum_MN, 1), tl.sum(square_MN, 1)
        shift_M = moment_shift(count_M, sum_M, square_M, shift_M, beta_M, shift_max_M)
    # the correction along s squares the error, except for keys at the border of the support
    enough_M = tl.minimum(tl.maximum(tl.exp2(beta_M * -22.25), 5e-7), 4e-4)
    evaluated_M, excess_M, n_left = zero_M, zero_M, N_EVALUATIONS + 0
    while n_left > 0:
        mass_MN, total_MN = zero_MN, zero_MN
        for item in range(n_listed):
            keys_N = listed_block(block_list, item) * const.BLOCK_N + tl.arange(0, const.BLOCK_N)
            gap_MN = gaps(rows, keys_N, top_M, const.HAS_MASK)
            x_MN, s_MN, _log2_x_MN = powers(gap_MN, shift_M[:, None], slope_M1, slope_M1, const)
            mass_MN += s_MN * x_MN
            total_MN += s_MN
        mass_M, total_M = tl.sum(mass_MN, 1), tl.sum(total_MN, 1)
        evaluated_M = shift_M
        excess_M = tl.where(is_empty_M, 0.0, (mass_M - 1.0) / tl.maximum(total_M, TINY))
        next_M = newton(shift_M, mass_M, total_M, beta_M, shift_max_M)
        is_open_M = (tl.abs(mass_M - 1.0) > enough_M) & (next_M != shift_M)
        is_open_M = is_open_M & (is_empty_M == 0)
        shift_M = tl.where(is_open_M, next_M, shift_M)
        n_left = tl.where(tl.max(is_open_M.to(tl.int32), 0) > 0, n_left - 1, 0)
    return evaluated_M, excess_M, n_listed


@triton.jit
def row_indices(n_rows, n_heads, n_queries, BLOCK_M: tl.constexpr):
    """Return the rows of (B, H, Q) of a program, which exist, and their three indices."""
    rows_M = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M).to(tl.int64)
    batch_M, head_M = rows_M // n_queries // n_heads, rows_M // n_queries % n_heads
    return rows_M, rows_M < n_rows, (batch_M, head_M, rows_M % n_queries)


@triton.jit(do_not_specialize=MASKED_SIZES)
def weights_forward(
    scores, beta, mask, weights, lists, beta_b, beta_h, beta_q, mask_b, mask_h, mask_q, mask_k,
    n_rows, n_heads, n_queries, n_keys, const,
):  # fmt: skip
    """Write the weights of rows of scores; `lists` is a buffer for block indices."""
    rows_M, inside_M, indices = row_indices(n_rows, n_heads, n_queries, const.BLOCK_M)
    beta_M = beta_of_rows(beta, (beta_b, beta_h, beta_q), indices, inside_M, const.POWER)
    base_M = scores + rows_M * n_keys
    mask_M = base_M  # unused without a mask
    if const.HAS_MASK:
        batch_M, head_M, query_M = indices
        mask_M = mask + batch_M * mask_b + head_M * mask_h + query_M * mask_q
    rows = Rows(base_M, inside_M, n_keys, mask_M, mask_k)
    block_list = lists
    if lists is not None:
        block_list = lists + tl.program_id(0).to(tl.int64) * tl.cdiv(n_keys, const.BLOCK_N)
    top_M = find_top(rows, const)
    is_empty_M = top_M == float("-inf")
    top_M = finite_top(top_M)
    shift_M, excess_M, _n_listed = find_shift(rows, block_list, top_M, is_empty_M, beta_M, const)
    out_M = weights + rows_M * n_keys
    for index in range(tl.cdiv(n_keys, const.BLOCK_N)):
        keys_N = index * const.BLOCK_N + tl.arange(0, const.BLOCK_N)
        gap_MN = gaps(rows, keys_N, top_M, const.HAS_MASK)
        x_MN, s_MN, _log2_x_MN = powers(
            gap_MN, shift_M[:, None], beta_M[:, None], beta_M[:, None], const
        )
        x_MN = tl.maximum(x_MN - excess_M[:, None], 0.0, propagate_nan=tl.PropagateNan.ALL)
        inside_MN = inside_M[:, None] & (keys_N < n_keys)[None, :]
        values_MN = (x_MN * s_MN).to(weights.dtype.element_ty)
        tl.store(out_M[:, None] + keys_N[None, :], values_MN, mask=inside_MN)


@triton.jit
def slopes(p_MN, beta_M1, POWER: tl.constexpr):
    """Return s = p^(1 - β) on the support, else 0, and for ANY y = -β ln p."""
    y_MN = p_MN
    if POWER == SQUARE:
        s_MN = tl.sqrt(p_MN)
    elif POWER == LINEAR:
        s_MN = tl.where(p_MN > 0.0, 1.0, p_MN)
    else:
        y_MN = tl.log(tl.maximum(p_MN, TINY, propagate_nan=tl.PropagateNan.ALL)) * -beta_M1
        s_MN = p_MN * tl.exp2(y_MN * LOG2_E)
    return s_MN, y_MN


@triton.jit
def load_weights(weights, grad, first_M, inside_M, keys_N, n_keys):
    """Return a block of weights and gradients, zeros after the row, their offsets and mask."""
    inside_MN = inside_M[:, None] & (keys_N < n_keys)[None, :]
    offsets_MN = first_M[:, None] + keys_N[None, :]
    p_MN = tl.load(weights + offsets_MN, mask=inside_MN, other=0.0).to(tl.float32)
    grad_MN = tl.load(grad + offsets_MN, mask=inside_MN, other=0.0).to(tl.float32)
    return p_MN, grad_MN, offsets_MN, inside_MN


@triton.jit(do_not_specialize=SIZES)
def weights_backward(
    weights, grad, beta, grad_scores, grad_alpha,
    beta_b, beta_h, beta_q, n_rows, n_heads, n_queries, n_keys, const,
):  # fmt: skip
    """Write the gradients of the scores and of α per row (see `headwise.ops.maps.reference`)."""
    rows_M, inside_M, indices = row_indices(n_rows, n_heads, n_queries, const.BLOCK_M)
    beta_M = beta_of_rows(beta, (beta_b, beta_h, beta_q), indices, inside_M, const.POWER)
    beta_M1 = beta_M[:, None]
    first_M = rows_M * n_keys
    total_MN = tl.zeros([const.BLOCK_M, const.BLOCK_N], tl.float32)
    s_grad_MN, alpha_MN = total_MN, total_MN
    for index in range(tl.cdiv(n_keys, const.BLOCK_N)):
        keys_N = index * const.BLOCK_N + tl.arange(0, const.BLOCK_N)
        p_MN, grad_MN, _, _ = load_weights(weights, grad, first_M, inside_M, keys_N, n_keys)
        s_MN, _y_MN = slopes(p_MN, beta_M1, const.POWER)
        total_MN += s_MN
        s_grad_MN += s_MN * grad_MN
    total_M = tl.sum(total_MN, 1)
    centre_M = tl.sum(s_grad_MN, 1) / tl.maximum(total_M, TINY, propagate_nan=tl.PropagateNan.ALL)
    for index in range(tl.cdiv(n_keys, const.BLOCK_N)):
        keys_N = index * const.BLOCK_N + tl.arange(0, const.BLOCK_N)
        p_MN, grad_MN, offsets_MN, inside_MN = load_weights(
            weights, grad, first_M, inside_M, keys_N, n_keys
        )
        s_MN, y_MN = slopes(p_MN, beta_M1, const.POWER)
        centred_MN = grad_MN - centre_M[:, None]
        if grad_alpha is not None:
            log2_x_MN = y_MN * -LOG2_E
            x_s_log2x = tl.exp2(log2_x_MN), s_MN, log2_x_MN
            alpha_MN -= alpha_terms(p_MN, p_MN, beta_M1, beta_M1, x_s_log2x, True) * centred_MN
        values_MN = (s_MN * centred_MN).to(grad_scores.dtype.element_ty)
        tl.store(grad_scores + offsets_MN, values_MN, mask=inside_MN)
    if grad_alpha is not None:
        alpha_M = tl.sum(alpha_MN, 1) / (beta_M * beta_M)
        tl.store(grad_alpha + rows_M, alpha_M, mask=inside_M)
