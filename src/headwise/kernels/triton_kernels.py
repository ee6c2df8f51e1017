"""What the kernels of fused α-entmax attention share: one tile of scores, and the rules of a row.

A tile holds M queries (a block of them) and N keys. Per row are kept the largest score `top`,
before scaling, and the shift t of `headwise.entmax.solver`; with β = α - 1 a tile then is

    gap = q·k - top ≤ 0        t_j = t - β scale gap        x = [1 - t_j]_+
    s = x^(1/β - 1)            p = s x

Subtracting before scaling makes the gap of the largest key 0, exactly so where products are formed
in the same order (the way back may form them transposed, and be off by a rounding). A masked
key has the gap -inf, hence p = s = 0; a query without keys has the shift NO_KEYS, hence the same.
NaN passes through every step: it ends up in the row that it came from.

Half-precision inputs take the approximate logarithm of the special-function unit (an absolute
error of 2^-22), which is enough for α ≥ 1 + SERIES_BETA; below, log(1 - t_j) is a short series,
and no logarithm at all. Float32 inputs take the precise one with the rounding of 1 - t_j put back.
β is one number a program, so that choice is a branch which all threads take alike.
"""

from __future__ import annotations

import triton
import triton.language as tl

BETA_MIN = tl.constexpr(1e-7)
SERIES_BETA = tl.constexpr(1 / 32)
NO_KEYS = tl.constexpr(2.0)  # beyond every shift, which are in [0, 1)
TINY = tl.constexpr(1.1754944e-38)
LOG2_E = tl.constexpr(1.4426950408889634)
LN_2 = tl.constexpr(0.6931471805599453)
# Arguments go in groups: tuples of tensors, of strides, and of what a kernel is compiled for, `cut`
# (`headwise.kernels.triton_operators.Cut`). `draws` of dropout are (row_keys, threshold,
# keep_scale), `distances` are (slopes, prefix). None in place of a group or a tensor: there is
# none, and no code for it.
#
# Numbers that a kernel is not compiled anew for: lengths change with every batch, and the prefix of
# a search is of length 1 to begin with. (In a tuple they would be specialised.)
SIZES = ("n_heads", "n_queries", "n_keys", "query_offset")
N_EVALUATIONS = tl.constexpr(16)  # cap; adversarial rows need 6
# How x is raised to 1/β, numbered as `headwise.kernels.problem.Power`.
EXP = tl.constexpr(0)  # not at all: softmax, α = 1
ANY = tl.constexpr(1)
SQUARE = tl.constexpr(2)  # α = 1.5
LINEAR = tl.constexpr(3)  # α = 2


@triton.jit
def place(n_heads, n_blocks, IS_REVERSED: tl.constexpr):
    """Block, row of (B, H), sentence and head of a program; reversed: the last block first."""
    program = tl.program_id(0)
    block, row = program % n_blocks, (program // n_blocks).to(tl.int64)
    if IS_REVERSED:
        block = n_blocks - 1 - block
    return block, row, row // n_heads, row % n_heads


@triton.jit
def matrix(tensor, strides, batch, head, n_rows):
    """What `load_rows` reads of a tensor (B, H, N, E) for a sentence and a head."""
    return tensor + batch * strides[0] + head * strides[1], strides[2], n_rows


@triton.jit
def joined(tensor, batch, head, n_heads, n_rows, cut):
    """The same of a tensor laid out as (B, N, H, E) without gaps."""
    return tensor + (batch * n_rows * n_heads + head) * cut.WIDTH, n_heads * cut.WIDTH, n_rows


@triton.jit
def tile_of(matrix, rows, cut):
    """Where the elements of a tile (len(rows), PADDED) lie, and which of them there are."""
    base, stride, n_rows = matrix
    columns = tl.arange(0, cut.PADDED)
    inside = (rows < n_rows)[:, None]
    if cut.PADDED != cut.WIDTH:
        inside = inside & (columns < cut.WIDTH)[None, :]
    return base + rows[:, None] * stride + columns[None, :], inside


@triton.jit
def load_rows(matrix, rows, cut):
    """A tile (len(rows), PADDED) of a matrix of rows, zeros beyond the last and WIDTH."""
    pointers, inside = tile_of(matrix, rows, cut)
    tile = tl.load(pointers, mask=inside, other=0.0)
    if cut.INTERPRET:  # which computes nonsense from bfloat16
        tile = tile.to(tl.float32)
    return tile


@triton.jit
def store_rows(matrix, rows, tile, cut):
    """Write what `load_rows` would read, in the type of the matrix."""
    pointers, inside = tile_of(matrix, rows, cut)
    tl.store(pointers, tile.to(pointers.dtype.element_ty), mask=inside)


@triton.jit
def n_allowed_keys(lengths, batch, n_keys):
    """Keys that padding leaves."""
    if lengths is not None:
        return tl.minimum(tl.load(lengths + batch).to(tl.int32), n_keys)
    return n_keys


@triton.jit
def visible(rows_M, first, allowed, query_offset, cut):
    """Keys that each query (M,), that all queries from `first` on, and that any of them may see."""
    limit_M = rows_M * 0 + allowed
    full, reach = allowed, allowed
    if cut.CAUSAL:
        limit_M = tl.minimum(limit_M, rows_M + query_offset + 1)
        full = tl.minimum(full, first + query_offset + 1)
        reach = tl.minimum(reach, first + cut.BLOCK_M + query_offset)
    return limit_M, full, reach


@triton.jit
def load_bias(distances, head, positions, scale):
    """What `lowered` reads: slope of a head, for unscaled scores, prefix, positions of queries."""
    slope, n_prefix = scale, 0
    if distances is not None:
        slope, n_prefix = tl.load(distances[0] + head) / scale, distances[1]
    return slope, n_prefix, positions


@triton.jit
def lowered(scores, keys, bias, cut):
    """Unscaled scores less slope · |i - j|; keys and the positions of `bias` broadcast to them."""
    if cut.BIASED:
        slope, n_prefix, positions = bias
        is_apart = (positions >= n_prefix) & (keys >= n_prefix)
        scores -= tl.where(is_apart, tl.abs(positions - keys).to(tl.float32) * slope, 0.0)
    return scores


@triton.jit
def masked_dot(query_ME, key_NE, keys_N, limit_M, is_edge, bias, cut):
    """Unscaled scores (M, N); -inf where a key is at or beyond the limit of its query.

    `is_edge` is whether any key of the tile is: only there the comparison is worth its time.
    """
    scores_MN = tl.dot(query_ME, tl.trans(key_NE), input_precision=cut.PRECISION)
    scores_MN = lowered(scores_MN, keys_N[None, :], bias, cut)
    if is_edge:
        scores_MN = tl.where(keys_N[None, :] < limit_M[:, None], scores_MN, float("-inf"))
    return scores_MN


@triton.jit
def finite_top(top):
    """The largest score of each row, 0 where there is no key: -inf less -inf would be NaN."""
    return tl.where(top == float("-inf"), 0.0, top)


@triton.jit
def load_beta(alpha, head):
    """β of a head, held to where every formula stays finite."""
    return tl.minimum(tl.maximum(tl.load(alpha + head) - 1.0, BETA_MIN), 1.0)


@triton.jit
def root_exponent(beta):
    """1/β - 1, never 0: off the support that makes s = exp2(-inf) = 0 at α = 2 as well."""
    return tl.maximum(1.0 / beta - 1.0, 1e-30)


@triton.jit
def fast_log2(x, INTERPRET: tl.constexpr):
    """log2 in one instruction; the library's takes twenty."""
    if INTERPRET:
        return tl.log2(x)
    return tl.inline_asm_elementwise(
        "lg2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
    )


@triton.jit
def powers(gap, shift, slope, beta, cut):
    """x, s and log2 x of a tile; the logarithm stands for nothing where POWER is not ANY.

    Args:
        gap: scores less the largest of the row, not scaled.
        shift: t of each row, broadcastable to `gap`.
        slope: β scale.
        beta: α - 1.
        cut: POWER is ANY, SQUARE or LINEAR; PRECISE, whether to float32, or else to what half
            precision can hold; INTERPRET, whether the interpreter of Triton runs this.
    """
    level = 1.0 - shift
    if cut.POWER == LINEAR:
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
            # to the sixth power of t_j: an error below 1e-7 in p for every β here
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
def alpha_terms(gap, shift, slope, beta, found, PRECISE: tl.constexpr):
    """β² p ψ of a tile: by how much p bends to α (see `headwise.entmax.function`).

    Args:
        gap, shift, slope, beta: as for `powers`, which found
        found: x, s and log2 x.
        PRECISE: as there.
    """
    x, s, log2_x = found
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
    """1 - exp(-y), precise for small y as well."""
    small = y * (1.0 - y * (0.5 - y * (1.0 / 6.0 - y * (1.0 / 24.0))))
    return tl.where(tl.abs(y) < 0.03, small, 1.0 - tl.exp(-y))


@triton.jit
def largest_shift(beta, n_keys):
    """The shift of `n_keys` equal scores, and a rounding above it."""
    return one_minus_exp(beta * tl.log(tl.cast(n_keys, tl.float32))) * 1.000001


@triton.jit
def tolerance(beta, PRECISE: tl.constexpr):
    """|F - 1| that the linear correction brings below the rounding of results.

    It falls with β, for a shift moves a key at the border of the support by its root. What is kept
    for the way back is the shift that the centre was evaluated at, uncorrected: so the ds of a row
    sum to 0, which weighs more than a Σp that is off by no more than this.
    """
    if PRECISE:
        return beta * 0.0 + 1e-6
    return tl.minimum(tl.maximum(tl.exp2(beta * -16.6), 1e-4), 5e-4)


@triton.jit
def n_moment_passes(beta, PRECISE: tl.constexpr):
    """Passes of `moment_shift` that save more evaluations than they cost."""
    if PRECISE:
        return tl.where(beta < 0.15, 1, 4)
    return tl.where(beta < 0.15, 1, tl.where(beta < 0.35, 2, 3))


@triton.jit
def moments(values_MN, level_M, slope):
    """Count, sum and sum of squares of x over the support, per row: x = [values slope + level]_+.

    `values` may be gaps, or whole scores with a level that takes the largest of the row into
    account: one operation a key less, and rounded enough for a start.
    """
    x_MN = values_MN * slope + level_M[:, None]
    x_MN = tl.maximum(x_MN, 0.0, propagate_nan=tl.PropagateNan.ALL)
    count_M = tl.sum(tl.where(x_MN > 0.0, 1.0, 0.0), 1)
    return count_M, tl.sum(x_MN, 1), tl.sum(x_MN * x_MN, 1)


@triton.jit
def moment_shift(count_M, sum_M, square_M, shift_M, beta, shift_max):
    """Shift that matches count, mean and variance to the power mean; exact for α = 1.5 and 2."""
    count_M = tl.maximum(count_M, 1.0)
    mean_M = sum_M / count_M
    variance_M = tl.maximum(square_M / count_M - mean_M * mean_M, 0.0)
    lack_M = one_minus_exp(2.0 * beta * tl.log(count_M))
    # near α = 1 the variance of x is lost to rounding, and Newton needs no good start
    lack_M += tl.where(beta > 0.004, variance_M * (1.0 - beta) / beta, 0.0)
    root_M = tl.sqrt(tl.maximum(1.0 - lack_M, 0.0))
    shift_M = tl.minimum(lack_M, 1.0) / (1.0 + root_M) + mean_M - (1.0 - shift_M)
    return tl.minimum(tl.maximum(shift_M, 0.0), shift_max)


@triton.jit
def newton(shift_M, mass_M, slope_M, beta, shift_max):
    """Newton on F^β. F = 0 (rounding right of the support) leads back to the left end."""
    mass_M = tl.maximum(mass_M, TINY)
    growth_M = one_minus_exp(beta * tl.log(mass_M))
    shift_M += mass_M * growth_M / tl.maximum(slope_M, TINY)
    return tl.minimum(tl.maximum(shift_M, 0.0), shift_max)


@triton.jit
def kept(draws, row, rows, n_rows, n_blocks):
    """Two random words of each query of a row of (B, H), for `keeps`; nothing without dropout."""
    first, second = rows, rows
    if draws is not None:
        n_all_rows = (tl.num_programs(0) // n_blocks).to(tl.int64) * n_rows
        pointers = draws[0] + row * n_rows + rows
        first = tl.load(pointers, mask=rows < n_rows, other=0)
        second = tl.load(pointers + n_all_rows, mask=rows < n_rows, other=0)
    return first.to(tl.uint32, bitcast=True), second.to(tl.uint32, bitcast=True)


@triton.jit
def keeps(first, second, keys, draws):
    """Whether dropout keeps each weight: a hash of the words of its query and of its key.

    Two rounds of multiply and shift, as a random number of the counter-based generator would take
    ten; the words of a query are drawn by torch's generator.
    """
    word = first + keys.to(tl.uint32) * 0x9E3779B1
    word = (word ^ (word >> 16)) * 0x21F0AAAD
    word = (word ^ (word >> 15) ^ second) * 0x735A2D97
    word = word ^ (word >> 15)
    return word.to(tl.int32, bitcast=True) >= draws[1]


@triton.jit
def dropped(values, keep, draws):
    """Values where they are kept, scaled, and 0 elsewhere."""
    return tl.where(keep, values * draws[2], 0.0)
