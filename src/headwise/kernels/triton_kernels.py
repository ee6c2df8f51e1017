"""Functions shared by the fused α-entmax attention kernels: tiles of scores, formulas of rows.

A tile has M queries and N keys. Each row has its largest score `top`, before scaling, and the shift
t of `headwise.entmax.solver`; with β = α - 1 a tile is

    gap = q·k - top ≤ 0        t_j = t - β scale gap        x = [1 - t_j]_+
    s = x^(1/β - 1)            p = s x

Subtracting before scaling makes the gap of the largest key 0, exactly if dot products are summed in
the same order (backward may compute them transposed, with a rounding error). A masked key has the
gap -inf, hence p = s = 0; a query without keys has the shift NO_KEYS, with the same effect. NaN is
propagated within its row.

Half-precision inputs use the approximate logarithm of the special-function unit (absolute error
2^-22), which suffices for α ≥ 1 + SERIES_BETA; below, log(1 - t_j) is a short series. Float32
inputs use the precise logarithm, corrected for the rounding of 1 - t_j. β is constant per program,
so all threads take the same branch.
"""

from __future__ import annotations

import triton
import triton.language as tl

from headwise.kernels.triton_visible import is_visible

BETA_MIN = tl.constexpr(1e-7)
SERIES_BETA = tl.constexpr(1 / 32)
NO_KEYS = tl.constexpr(2.0)  # above every shift, which is in [0, 1)
TINY = tl.constexpr(1.1754944e-38)
LOG2_E = tl.constexpr(1.4426950408889634)
LN_2 = tl.constexpr(0.6931471805599453)
# Arguments are grouped in tuples: tensors, strides, and compile-time constants `cut`
# (`headwise.kernels.triton_operators.Cut`). `draws` of dropout are (row_keys, threshold,
# keep_scale), `distances` are (slopes, prefix), `pattern` is (places, their number, windows, lists)
# of `headwise.kernels.triton_pattern`. A group or tensor that is None is absent: no code is
# generated for it.
#
# Before a loop, no variable that the loop sets is a copy of another one: if the loop copies it
# again (`last = shift`), Triton sees no change, and the copy keeps its first value (except in the
# interpreter; `tests/unit/test_triton_loops.py`).
#
# Integers without specialisation: lengths change with every batch, and decoding starts with a
# prefix of length 1. (In a tuple they would be specialised.)
SIZES = ("n_heads", "n_queries", "n_keys", "query_offset")
N_EVALUATIONS = tl.constexpr(16)  # upper limit; adversarial rows need 6
# How x is raised to 1/β, numbered as in `headwise.kernels.problem.Power`.
EXP = tl.constexpr(0)  # no power: softmax; then x = 1, s = p, t = ln Σ e^gap, and β counts as 1
ANY = tl.constexpr(1)
SQUARE = tl.constexpr(2)  # α = 1.5
LINEAR = tl.constexpr(3)  # α = 2


@triton.jit
def program_place(n_heads, n_blocks, IS_REVERSED: tl.constexpr):
    """Return block, row of (B, H), sentence and head of a program; reversed: last block first."""
    program = tl.program_id(0)
    block, row = program % n_blocks, (program // n_blocks).to(tl.int64)
    if IS_REVERSED:
        block = n_blocks - 1 - block
    return block, row, row // n_heads, row % n_heads


@triton.jit
def matrix(tensor, strides, batch, head, n_rows):
    """Return the matrix (base, stride, rows) of a sentence and a head in a tensor (B, H, N, E)."""
    return tensor + batch * strides[0] + head * strides[1], strides[2], n_rows


@triton.jit
def joined_heads(tensor, batch, head, n_heads, n_rows, cut):
    """Return the matrix of a contiguous tensor (B, N, H, E)."""
    return tensor + (batch * n_rows * n_heads + head) * cut.WIDTH, n_heads * cut.WIDTH, n_rows


@triton.jit
def tile_of(matrix, rows, cut):
    """Return pointers to a tile (len(rows), PADDED) of a matrix, and which are inside it."""
    base, stride, n_rows = matrix
    columns = tl.arange(0, cut.PADDED)
    inside = (rows < n_rows)[:, None]
    if cut.PADDED != cut.WIDTH:
        inside = inside & (columns < cut.WIDTH)[None, :]
    return base + rows[:, None] * stride + columns[None, :], inside


@triton.jit
def load_rows(matrix, rows, cut):
    """Load a tile (len(rows), PADDED) of a matrix, zeros after the last row and WIDTH."""
    pointers, inside = tile_of(matrix, rows, cut)
    tile = tl.load(pointers, mask=inside, other=0.0)
    if cut.INTERPRET:  # the interpreter computes bfloat16 wrongly
        tile = tile.to(tl.float32)
    return tile


@triton.jit
def store_rows(matrix, rows, tile, cut):
    """Store a tile to the rows of a matrix, in its dtype."""
    pointers, inside = tile_of(matrix, rows, cut)
    tl.store(pointers, tile.to(pointers.dtype.element_ty), mask=inside)


@triton.jit
def load_bias(distances, head, positions, scale):
    """Return the bias for `subtract_bias`: slope on unscaled scores, prefix, query positions."""
    slope, n_prefix = scale, 0
    if distances is not None:
        slope, n_prefix = tl.load(distances[0] + head) / scale, distances[1]
    return slope, n_prefix, positions


@triton.jit
def subtract_bias(scores, keys, bias, cut):
    """Return unscaled scores minus slope · |i - j|; keys and `bias` positions broadcast."""
    if cut.BIASED:
        slope, n_prefix, positions = bias
        is_apart = (positions >= n_prefix) & (keys >= n_prefix)
        scores -= tl.where(is_apart, tl.abs(positions - keys).to(tl.float32) * slope, 0.0)
    return scores


@triton.jit
def masked_dot(query_ME, key_NE, keys, sight, is_edge, bias, cut):
    """Return unscaled scores (M, N), -inf for keys that are not visible to the query.

    Args:
        query_ME, key_NE: of the tile.
        keys: positions and labels (N,).
        sight: limits (M,), labels (M,) and window of the queries.
        is_edge: whether any pair of the tile is not visible; otherwise the comparison is skipped.
        bias: see `load_bias`.
        cut: constants.
    """
    keys_N, key_labels_N = keys
    limit_M, labels_M, window = sight
    scores_MN = tl.dot(query_ME, tl.trans(key_NE), input_precision=cut.PRECISION)
    scores_MN = subtract_bias(scores_MN, keys_N[None, :], bias, cut)
    if is_edge:
        visible_MN = is_visible(
            keys_N[None, :], key_labels_N[None, :], limit_M[:, None], labels_M[:, None], bias[2],
            window, cut,
        )  # fmt: skip
        scores_MN = tl.where(visible_MN, scores_MN, float("-inf"))
    return scores_MN


@triton.jit
def finite_top(top):
    """Return the largest score of each row, 0 without a key: -inf - (-inf) would be NaN."""
    return tl.where(top == float("-inf"), 0.0, top)


@triton.jit
def load_beta(alpha, head, cut):
    """Return β of a head, clamped to where every formula is finite; 1 for EXP."""
    beta = tl.minimum(tl.maximum(tl.load(alpha + head) - 1.0, BETA_MIN), 1.0)
    if cut.POWER == EXP:
        beta = beta * 0.0 + 1.0
    return beta


@triton.jit
def root_exponent(beta):
    """Return 1/β - 1, never 0, so that off the support s = exp2(-inf) = 0 at α = 2 too."""
    return tl.maximum(1.0 / beta - 1.0, 1e-30)


@triton.jit
def fast_log2(x, INTERPRET: tl.constexpr):
    """Return log2 in one instruction; the library function takes twenty."""
    if INTERPRET:
        return tl.log2(x)
    return tl.inline_asm_elementwise(
        "lg2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
    )


@triton.jit
def powers(gap, shift, slope, beta, cut):
    """Return x, s and log2 x of a tile; log2 x is meaningless unless POWER is ANY.

    Args:
        gap: scores minus the largest of the row, not scaled.
        shift: t of each row, broadcastable to `gap`.
        slope: β scale.
        beta: α - 1.
        cut: POWER is the map; PRECISE: to float32 precision, else to half precision; INTERPRET:
            whether Triton's interpreter runs this.
    """
    level = 1.0 - shift
    if cut.POWER == EXP:
        x = tl.full(gap.shape, 1.0, tl.float32)
        s = tl.exp2((gap * slope - shift) * LOG2_E)
        log2_x = x
    elif cut.POWER == LINEAR:
        x = tl.maximum(gap * slope + level, 0.0, propagate_nan=tl.PropagateNan.ALL)
        s = tl.where(x > 0.0, 1.0, 0.0)
        log2_x = x
    elif cut.POWER == SQUARE:
        x = tl.maximum(gap * slope + level, 0.0, propagate_nan=tl.PropagateNan.ALL)
        s = x
        log2_x = x
    else:
        exponent = root_exponent(beta)
        if cut.PRECISE:
            shifts = shift - gap * slope
            x = tl.maximum(1.0 - shifts, 0.0, propagate_nan=tl.PropagateNan.ALL)
            log2_x = (tl.log(x) - ((x - 1.0) + shifts)) * LOG2_E
        elif beta < SERIES_BETA:
            # up to t_j^6: the error in p is below 1e-7 for every β here
            shifts = shift - gap * slope
            x = tl.maximum(1.0 - shifts, 0.0, propagate_nan=tl.PropagateNan.ALL)
            series = 0.2 + shifts * (1.0 / 6.0)
            series = 1.0 + shifts * (0.5 + shifts * (1.0 / 3.0 + shifts * (0.25 + shifts * series)))
            log2_x = shifts * series * -LOG2_E
        else:
            x = tl.maximum(gap * slope + level, 0.0, propagate_nan=tl.PropagateNan.ALL)
            log2_x = fast_log2(x, cut.INTERPRET)
        s = tl.exp2(log2_x * exponent)
    return x, s, log2_x


@triton.jit
def alpha_terms(gap, shift, slope, beta, x_s_log2x, PRECISE: tl.constexpr):
    """Return β² p ψ of a tile, for the gradient of α (see `headwise.entmax.function`).

    Args:
        gap, shift, slope, beta: as for `powers`.
        x_s_log2x: the result of `powers`.
        PRECISE: as for `powers`.
    """
    x, s, log2_x = x_s_log2x
    p = s * x
    if PRECISE:
        y = log2_x * -LN_2
        series = 1.0 / 24.0 + y * (1.0 / 120.0 + y * (1.0 / 720.0 + y * (1.0 / 5040.0)))
        series = y * y * (0.5 + y * (1.0 / 6.0 + y * series))
        terms = tl.where(y < 0.5, p * series, s - p - p * y)
    elif beta < SERIES_BETA:
        # 1/x - 1 + ln x as a series in 1 - x
        shifts = shift - gap * slope
        series = 2.0 / 3.0 + shifts * (0.75 + shifts * (0.8 + shifts * (5.0 / 6.0)))
        terms = p * shifts * shifts * (0.5 + shifts * series)
    else:
        terms = s - p + p * log2_x * LN_2
    return tl.where(p > 0.0, terms, 0.0)  # off the support some factors are infinite


@triton.jit
def one_minus_exp(y):
    """Return 1 - exp(-y), precise for small y too."""
    small = y * (1.0 - y * (0.5 - y * (1.0 / 6.0 - y * (1.0 / 24.0))))
    return tl.where(tl.abs(y) < 0.03, small, 1.0 - tl.exp(-y))


@triton.jit
def largest_shift(beta, n_keys):
    """Return the shift of `n_keys` equal scores, rounded up."""
    return one_minus_exp(beta * tl.log(tl.cast(n_keys, tl.float32))) * 1.000001


@triton.jit
def tolerance(beta, PRECISE: tl.constexpr):
    """Return the |F - 1| that the linear correction reduces below the rounding of results.

    It depends on β: a shift changes a key at the border of the support by its root. Backward uses
    the uncorrected shift of the centre, so that the ds of a row sum to 0, which matters more than
    an error of this size in Σp.
    """
    if PRECISE:
        return beta * 0.0 + 1e-6
    return tl.minimum(tl.maximum(tl.exp2(beta * -16.6), 1e-4), 5e-4)


@triton.jit
def n_moment_passes(beta, PRECISE: tl.constexpr):
    """Return the number of `moment_shift` passes that save more time than they cost."""
    if PRECISE:
        return tl.where(beta < 0.15, 1, 4)
    return tl.where(beta < 0.15, 1, tl.where(beta < 0.35, 2, 3))


@triton.jit
def moments(values_MN, level_M, slope):
    """Return count, sum and sum of squares of x = [values slope + level]_+ per row.

    `values` are gaps, or scores with a level that includes the row's largest score: one operation
    less per key, and exact enough for a start.
    """
    x_MN = values_MN * slope + level_M[:, None]
    x_MN = tl.maximum(x_MN, 0.0, propagate_nan=tl.PropagateNan.ALL)
    count_M = tl.sum(tl.where(x_MN > 0.0, 1.0, 0.0), 1)
    return count_M, tl.sum(x_MN, 1), tl.sum(x_MN * x_MN, 1)


@triton.jit
def moment_shift(count_M, sum_M, square_M, shift_M, beta, shift_max):
    """Return the shift from count, mean and variance of x; exact for α = 1.5 and 2."""
    count_M = tl.maximum(count_M, 1.0)
    mean_M = sum_M / count_M
    variance_M = tl.maximum(square_M / count_M - mean_M * mean_M, 0.0)
    missing_M = one_minus_exp(2.0 * beta * tl.log(count_M))
    # near α = 1 the variance of x is lost to rounding, but Newton's method needs no good start
    missing_M += tl.where(beta > 0.004, variance_M * (1.0 - beta) / beta, 0.0)
    root_M = tl.sqrt(tl.maximum(1.0 - missing_M, 0.0))
    shift_M = tl.minimum(missing_M, 1.0) / (1.0 + root_M) + mean_M - (1.0 - shift_M)
    return tl.minimum(tl.maximum(shift_M, 0.0), shift_max)


@triton.jit
def newton(shift_M, mass_M, slope_M, beta, shift_max):
    """Return the next shift, by Newton's method on F^β; F = 0 (by rounding) leads back to t = 0."""
    mass_M = tl.maximum(mass_M, TINY)
    growth_M = one_minus_exp(beta * tl.log(mass_M))
    shift_M += mass_M * growth_M / tl.maximum(slope_M, TINY)
    return tl.minimum(tl.maximum(shift_M, 0.0), shift_max)


@triton.jit
def random_words(draws, row, rows, n_rows, n_blocks):
    """Return two random words per query for `keep_mask`; unused without dropout."""
    first, second = rows, rows
    if draws is not None:
        n_all_rows = (tl.num_programs(0) // n_blocks).to(tl.int64) * n_rows
        pointers = draws[0] + row * n_rows + rows
        first = tl.load(pointers, mask=rows < n_rows, other=0)
        second = tl.load(pointers + n_all_rows, mask=rows < n_rows, other=0)
    return first.to(tl.uint32, bitcast=True), second.to(tl.uint32, bitcast=True)


@triton.jit
def keep_mask(first, second, keys, draws):
    """Return whether dropout keeps each weight, by a hash of the query's words and the key.

    The hash has two rounds of multiply and shift; a counter-based generator would need ten. The
    words are drawn from torch's generator.
    """
    word = first + keys.to(tl.uint32) * 0x9E3779B1
    word = (word ^ (word >> 16)) * 0x21F0AAAD
    word = (word ^ (word >> 15) ^ second) * 0x735A2D97
    word = word ^ (word >> 15)
    return word.to(tl.int32, bitcast=True) >= draws[1]


@triton.jit
def apply_dropout(values, keep, draws):
    """Return the kept values, scaled, and 0 for the others."""
    return tl.where(keep, values * draws[2], 0.0)
