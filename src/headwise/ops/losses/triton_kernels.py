"""Kernels for losses over a vocabulary, including cross-entropy. Forward: one program per row.

Forward reads the row for the maximum, threshold search, and loss. Backward recomputes the
probabilities from two numbers per row, maximum and shift (formulas: `reference.py`); it may
overwrite the logits with the gradient.

Axes: M rows of a program (one), N classes of a block.
"""

from __future__ import annotations

import triton
import triton.language as tl

from headwise.ops.maps.triton_kernels import Rows, find_shift, gaps, largest_of_rows, listed_block
from headwise.ops.triton.threshold import EXP, LOG2_E, finite_top, powers

# May be views without 16-byte alignment.
UNALIGNED = ("stats", "value", "support", "total", "lists")
UNALIGNED_BWD = ("stats", "scale", "target")


@triton.jit(do_not_specialize_on_alignment=UNALIGNED)
def loss_forward(logits, stats, value, support, total, lists, alpha, beta, n_classes, cut):
    """Write per row: maximum and shift, <p, z> + H(p), support size, sum of the logits."""
    row = tl.program_id(0).to(tl.int64)
    row_M = row + tl.arange(0, 1)
    base_M = logits + row_M * n_classes
    inputs = Rows(base_M, row_M == row, n_classes, base_M, 0)
    zero_M = tl.zeros([1], tl.float32)
    n_blocks = tl.cdiv(n_classes, cut.BLOCK_N)
    zero_MN = tl.zeros([1, cut.BLOCK_N], tl.float32)
    max_MN, sum_MN = zero_MN + float("-inf"), zero_MN
    for index in range(n_blocks):
        classes_N = index * cut.BLOCK_N + tl.arange(0, cut.BLOCK_N)
        logits_MN = gaps(inputs, classes_N, zero_M, False)
        max_MN = tl.maximum(max_MN, logits_MN, propagate_nan=tl.PropagateNan.ALL)
        if total is not None:
            sum_MN += tl.where((classes_N < n_classes)[None, :], logits_MN, 0.0)
    if total is not None:
        tl.store(total + row_M, tl.sum(sum_MN, 1))
    top_M = largest_of_rows(max_MN)
    tl.store(stats + 2 * row_M, top_M)
    is_empty_M = top_M == float("-inf")
    top_M = finite_top(top_M)
    value_MN, support_MN = zero_MN, zero_MN
    if cut.POWER == EXP:
        for index in range(n_blocks):
            classes_N = index * cut.BLOCK_N + tl.arange(0, cut.BLOCK_N)
            gap_MN = gaps(inputs, classes_N, top_M, False)
            exp_MN = tl.exp2(gap_MN * LOG2_E)
            value_MN += exp_MN
            support_MN += tl.where(exp_MN > 0.0, 1.0, 0.0)
        value_M = tl.log(tl.sum(value_MN, 1))
        shift_M = value_M
    else:
        block_list = lists
        if lists is not None:
            block_list = lists + row * n_blocks
        beta_M = zero_M + beta
        shift_M, excess_M, n_listed = find_shift(inputs, block_list, top_M, is_empty_M, beta_M, cut)
        shift_M = shift_M + excess_M * beta_M  # apply the correction: p needs only the shift
        for item in range(n_listed):
            classes_N = listed_block(block_list, item) * cut.BLOCK_N + tl.arange(0, cut.BLOCK_N)
            gap_MN = gaps(inputs, classes_N, top_M, False)
            x_MN, s_MN, _log2_x_MN = powers(gap_MN, shift_M[:, None], beta, beta, cut)
            p_MN = x_MN * s_MN
            value_MN += tl.where(p_MN == 0.0, 0.0, p_MN * gap_MN)  # not 0 · inf
            support_MN += tl.where(p_MN > 0.0, 1.0, 0.0)
        value_M = (shift_M / beta + tl.sum(value_MN, 1) * beta) / alpha
    tl.store(stats + 2 * row_M + 1, shift_M)
    tl.store(value + row_M, value_M)
    tl.store(support + row_M, tl.sum(support_MN, 1))


@triton.jit(do_not_specialize_on_alignment=UNALIGNED_BWD)
def loss_backward(logits, stats, out, scale, target, beta, smoothing, eps_v, n_classes, cut):
    """Write the gradient of each row's loss times its scale; `out` may be `logits`."""
    row = tl.program_id(0).to(tl.int64)
    classes_N = tl.program_id(1) * cut.BLOCK_N + tl.arange(0, cut.BLOCK_N)
    mask_N = classes_N < n_classes
    first = row * n_classes
    factor, gold = tl.load(scale + row), tl.load(target + row)
    grad_N = tl.zeros([cut.BLOCK_N], tl.float32)
    if factor != 0.0:  # scale 0 gives zero gradient, even with NaN
        top, shift = finite_top(tl.load(stats + 2 * row)), tl.load(stats + 2 * row + 1)
        logits_N = tl.load(logits + first + classes_N, mask=mask_N, other=float("-inf"))
        gap_N = logits_N.to(tl.float32) - top
        if cut.POWER == EXP:
            p_N = tl.exp2((gap_N - shift) * LOG2_E)
        else:
            x_N, s_N, _log2_x_N = powers(gap_N, shift, beta, beta, cut)
            p_N = x_N * s_N
        grad_N = (p_N - eps_v) * factor
        grad_N = tl.where(classes_N == gold, (p_N - 1.0 + smoothing - eps_v) * factor, grad_N)
    tl.store(out + first + classes_N, grad_N.to(out.dtype.element_ty), mask=mask_N)
