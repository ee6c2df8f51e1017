"""Functions shared by the kernels of attention, maps and losses: tiles of scores, formulas of rows.

A tile has M queries and N keys. Each row has its largest score `top`, before scaling, and the shift
t of `headwise.ops.maps.reference`; with β = α - 1 a tile is

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

BETA_MIN = tl.constexpr(1e-7)
SERIES_BETA = tl.constexpr(1 / 32)
NO_KEYS = tl.constexpr(2.0)  # above every shift, which is in [0, 1)
TINY = tl.constexpr(1.1754944e-38)
LOG2_E = tl.constexpr(1.4426950408889634)
LN_2 = tl.constexpr(0.6931471805599453)
N_EVALUATIONS = tl.constexpr(16)  # upper limit; adversarial rows need 6
# How x is raised to 1/β, numbered as in `headwise.ops.family.Power`.
EXP = tl.constexpr(0)  # no power: softmax; then x = 1, s = p, t = ln Σ e^gap, and β counts as 1
ANY = tl.constexpr(1)
SQUARE = tl.constexpr(2)  # α = 1.5
LINEAR = tl.constexpr(3)  # α = 2


@triton.jit
def finite_top(top):
    """Return the largest score of each row, 0 without a key: -inf - (-inf) would be NaN."""
    return tl.where(top == float("-inf"), 0.0, top)


@triton.jit
def load_beta(alpha, head, const):
    """Return β of a head, clamped to where every formula is finite; 1 for EXP."""
    beta = tl.minimum(tl.maximum(tl.load(alpha + head) - 1.0, BETA_MIN), 1.0)
    if const.POWER == EXP:
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
def powers(gap, shift, slope, beta, const):
    """Return x, s and log2 x of a tile; log2 x is meaningless unless POWER is ANY.

    Args:
        gap: scores minus the largest of the row, not scaled.
        shift: t of each row, broadcastable to `gap`.
        slope: β scale.
        beta: α - 1.
        const: POWER is the map; PRECISE: to float32 precision, else to half precision; INTERPRET:
            whether Triton's interpreter runs this.
    """
    level = 1.0 - shift
    if const.POWER == EXP:
        x = tl.full(gap.shape, 1.0, tl.float32)
        s = tl.exp2((gap * slope - shift) * LOG2_E)
        log2_x = x
    elif const.POWER == LINEAR:
        x = tl.maximum(gap * slope + level, 0.0, propagate_nan=tl.PropagateNan.ALL)
        s = tl.where(x > 0.0, 1.0, 0.0)
        log2_x = x
    elif const.POWER == SQUARE:
        x = tl.maximum(gap * slope + level, 0.0, propagate_nan=tl.PropagateNan.ALL)
        s = x
        log2_x = x
    else:
        exponent = root_exponent(beta)
        if const.PRECISE:
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
            log2_x = fast_log2(x, const.INTERPRET)
        s = tl.exp2(log2_x * exponent)
    return x, s, log2_x


@triton.jit
def alpha_terms(gap, shift, slope, beta, x_s_log2x, PRECISE: tl.constexpr):
    """Return β² p ψ of a tile, for the gradient of α (see `headwise.ops.maps.reference`).

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
