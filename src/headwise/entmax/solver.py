"""The threshold of α-entmax, for all rows at once.

With β = α - 1 and b_i = β(z_max - z_i) ≥ 0, the weights of a row are

    x_i = [1 - t - b_i]_+      p_i = x_i^(1/β)      s_i = p_i / x_i = p_i^(2-α)

for the one shift t in [0, 1) with F = Σ p_i = 1 (Peters et al. 2019; τ = βz_max + t - 1 there).
t = 0 is the left end; S = Σ s_i is the slope of F up to sign and a factor. As α falls to 1,
t/β tends to logsumexp(z) - z_max and p to softmax, so nothing needs a branch.

Start: a few passes match count, mean and variance of the b inside of the support to the power
mean, which gives t exactly for α = 1.5 and 2. Then Newton on F^β, which is convex with slope at
least 1 and therefore safe from every start, and last a linear correction along s.

Letters: R rows, K keys.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from headwise.kernels.problem import BETA_MIN, Power

CHUNK_SCORES = 1 << 19  # enough to hide the calls, few enough for the caches


@dataclass(frozen=True)
class Precision:
    """Where the iteration ends for one floating-point type."""

    mass_loose: float  # |F - 1| that the correction squares away for β ≤ 1/2
    mass_border: float  # (this)^β: the largest shift that moves a border key by no more than this
    mass_tight: float  # rounding of F
    n_moment_passes: int
    n_evaluations: int  # cap; the proof gives 16 to 20 for adversarial rows, seen are 6


PRECISIONS = {
    torch.float32: Precision(4e-4, 2e-7, 5e-7, 2, 16),
    torch.float64: Precision(1e-8, 1e-15, 4e-15, 3, 40),
}
# Without reading values back (accelerators): the counts that adversarial rows need.
N_MOMENT_PASSES_FIXED = 8
N_EVALUATIONS_FIXED = {torch.float32: 6, torch.float64: 8}


@dataclass(frozen=True)
class _Rows:
    """What stays fixed while the shift of some rows is sought, and room to work in."""

    b_RK: Tensor  # -b: scaled scores below the row's largest, ≤ 0, -inf where masked
    beta: Tensor  # (R, 1) or (1, 1)
    exponent: Tensor  # (1/β - 1) · log2(e)
    tolerance: Tensor  # of |F - 1|
    empty_R1: Tensor  # 1 where no key may be attended to, else 0
    shift_max: Tensor  # 1 - K^(-β): the shift of a row of equal scores
    room_3RK: Tensor  # x, s and a passing product; memory asked for anew costs more than the sums

    def take(self, rows: Tensor) -> _Rows:
        """The same for a part of the rows."""

        def pick(value: Tensor) -> Tensor:
            return value[rows] if value.shape[0] > 1 else value

        return _Rows(
            self.b_RK[rows],
            pick(self.beta),
            pick(self.exponent),
            pick(self.tolerance),
            self.empty_R1[rows],
            pick(self.shift_max),
            self.room_3RK[:, : rows.shape[0]],
        )


def solve(scores_RK: Tensor, beta: Tensor, power: Power, out_RK: Tensor, is_adaptive: bool) -> None:
    """Write the α-entmax weights of every row to `out_RK` (may be `scores_RK` itself).

    Args:
        scores_RK: float32 or float64, contiguous; -inf where a key is masked.
        beta: α - 1, (R, 1) or (1, 1), same type.
        power: SQUARE and LINEAR need β = 0.5 and 1 throughout.
        out_RK: where the weights go, same type. A row without a key becomes zeros, a row with
            NaN or +inf becomes NaN.
        is_adaptive: look at the numbers to know when to stop, as a CPU may. An accelerator would
            have to wait for them, and takes fixed counts that serve adversarial rows instead.
    """
    n_rows, n_keys = scores_RK.shape
    if n_rows == 0 or n_keys == 0:
        return
    n_chunk = min(n_rows, max(1, CHUNK_SCORES // n_keys)) if is_adaptive else n_rows
    beta = beta.clamp(BETA_MIN, 1.0)
    room_3RK = scores_RK.new_empty(3, n_chunk, n_keys)
    for first in range(0, n_rows, n_chunk):
        part = slice(first, first + n_chunk)
        part_beta = beta[part] if beta.shape[0] > 1 else beta
        rows = _prepare(scores_RK[part], part_beta, out_RK[part], room_3RK)
        if power is Power.LINEAR and is_adaptive:  # here a step costs no more than such a pass
            shift = torch.zeros_like(rows.empty_R1)
        else:
            shift = _moment_start(rows, is_adaptive)
        if is_adaptive:
            _finish_adaptive(rows, shift, power, out_RK[part])
        else:
            _finish_fixed(rows, shift, power, out_RK[part])


def _prepare(scores_RK: Tensor, beta: Tensor, out_RK: Tensor, room_3RK: Tensor) -> _Rows:
    """The fixed part of some rows; `out_RK` holds the scaled scores until weights replace them."""
    limit = torch.finfo(scores_RK.dtype).max
    precision = PRECISIONS[scores_RK.dtype]
    largest_R1 = _row_max(scores_RK)
    empty_R1 = (largest_R1 == -math.inf).to(scores_RK.dtype)
    # -inf - (-inf) would be NaN; a finite top keeps every key of an empty row at -inf
    b_RK = torch.sub(scores_RK, largest_R1.clamp_min(-limit), out=out_RK).mul_(beta)
    # never 0, so that 0^0 off the support comes out as exp2(-inf) = 0 at β = 1 too
    exponent = beta.reciprocal().sub_(1.0).clamp_min_(1e-30).mul_(math.log2(math.e))
    tolerance = torch.exp2(beta * math.log2(precision.mass_border))
    tolerance.clamp_(precision.mass_tight, precision.mass_loose)
    shift_max = torch.expm1(beta * -math.log(scores_RK.shape[1])).neg_()
    room_3RK = room_3RK[:, : scores_RK.shape[0]]
    return _Rows(b_RK, beta, exponent, tolerance, empty_R1, shift_max, room_3RK)


def _row_max(scores_RK: Tensor) -> Tensor:
    """Largest score of every row, (R, 1); NaN where the row has one."""
    n_keys = scores_RK.shape[1]
    n_whole = n_keys // 32 * 32
    if scores_RK.device.type != "cpu" or n_keys == n_whole:
        return scores_RK.amax(-1, keepdim=True)
    # The CPU kernel takes what exceeds whole vectors one by one, at ten times the cost. Parts may
    # overlap in a maximum: two whole stretches for long rows, halves of halves for short ones.
    if n_whole:
        head_R1 = scores_RK[:, :n_whole].amax(-1, keepdim=True)
        return torch.maximum(head_R1, scores_RK[:, -32:].amax(-1, keepdim=True))
    while n_keys > 1:
        n_half = (n_keys + 1) // 2
        scores_RK = torch.maximum(scores_RK[:, :n_half], scores_RK[:, -n_half:])
        n_keys = n_half
    return scores_RK


def _moment_start(rows: _Rows, is_adaptive: bool) -> Tensor:
    """Shift (R, 1) from count, mean and variance of b inside of the support.

    M_r ≈ sqrt(m² + (r - 1)σ²) for the power mean of order r = 1/β of x, exact for r = 1 and 2.
    """
    precision = PRECISIONS[rows.b_RK.dtype]
    n_passes = precision.n_moment_passes if is_adaptive else N_MOMENT_PASSES_FIXED
    beta = rows.beta
    level = torch.ones_like(rows.empty_R1)  # 1 - t
    shift = level
    for _ in range(n_passes):
        x_RK = torch.add(rows.b_RK, level, out=rows.room_3RK[0]).clamp_min_(0.0)
        mean = x_RK.sum(-1, keepdim=True)
        square = torch.linalg.vector_norm(x_RK, dim=-1, keepdim=True).square_()
        count = x_RK.sign_().sum(-1, keepdim=True).clamp_min_(1.0)
        mean.div_(count)
        variance = square.div_(count).addcmul_(mean, mean, value=-1.0).clamp_min_(0.0)
        # 1 - D, with D = k^(-2β) - (1-β)σ²/β: D itself would lose the digits of a small shift
        gap = torch.expm1(count.log_().mul_(beta).mul_(-2.0)).neg_()
        gap.add_(variance.div_(beta).mul_(1.0 - beta))
        root = (1.0 - gap).clamp_min_(0.0).sqrt_()
        shift = gap.clamp_max_(1.0).div_(root.add_(1.0)).sub_(level).add_(mean)
        shift = torch.minimum(shift.clamp_min_(0.0), rows.shift_max)
        level = 1.0 - shift
    return shift


def _evaluate(rows: _Rows, shift_R1: Tensor, power: Power) -> tuple[Tensor, Tensor, Tensor]:
    """At a shift: s (R, K), F = Σ xs and S = Σ s, (R, 1); x stays in the room of `rows`."""
    x_RK, s_RK, product_RK = rows.room_3RK.unbind()
    if power is Power.ANY:
        # log1p of x - 1, as x itself has lost the digits that matter for small β. Off the
        # support it is log1p(-1) = -inf, and exp2 makes that an exact 0.
        torch.sub(rows.b_RK, shift_R1, out=s_RK).clamp_min_(-1.0)
        torch.add(s_RK, 1.0, out=x_RK)
        s_RK.log1p_().mul_(rows.exponent).exp2_()
        mass = torch.mul(x_RK, s_RK, out=product_RK).sum(-1, keepdim=True)
        slope = s_RK.sum(-1, keepdim=True)
    else:
        torch.add(rows.b_RK, 1.0 - shift_R1, out=x_RK).clamp_min_(0.0)
        total = x_RK.sum(-1, keepdim=True)
        if power is Power.SQUARE:
            s_RK = x_RK
            # not vector_norm, good enough for the start: it adds one by one and loses 1e-5
            mass = torch.square(x_RK, out=product_RK).sum(-1, keepdim=True)
            slope = total
        else:
            mass = total
            slope = torch.sign(x_RK, out=s_RK).sum(-1, keepdim=True)
    tiny = torch.finfo(slope.dtype).tiny
    # a row without a key counts as solved; its s are all 0
    return s_RK, mass.add_(rows.empty_R1), slope.clamp_min_(tiny)


def _step(rows: _Rows, shift_R1: Tensor, mass: Tensor, slope: Tensor) -> Tensor:
    """Newton on F^β. F = 0 (rounding right of the support) leads back to the left end."""
    mass = mass.clamp_min(torch.finfo(mass.dtype).tiny)
    growth = torch.expm1(mass.log().mul_(rows.beta).neg_()).neg_()
    shift = growth.mul_(mass).div_(slope).add_(shift_R1).clamp_min_(0.0)
    return torch.minimum(shift, rows.shift_max)


def _correct(rows: _Rows, s_RK: Tensor, mass: Tensor, slope: Tensor, out_RK: Tensor) -> None:
    """Weights p - cs with c = (F - 1)/S, not below 0: a linear step to Σp = 1, no new pass."""
    x_RK, _, product_RK = rows.room_3RK.unbind()
    torch.sub(x_RK, (mass - 1.0).div_(slope), out=product_RK).clamp_min_(0.0)
    torch.mul(product_RK, s_RK, out=out_RK)


def _finish_adaptive(rows: _Rows, shift_R1: Tensor, power: Power, out_RK: Tensor) -> None:
    """Newton until every row has converged; when few are left, on those alone."""
    left: Tensor | None = None  # the rows of out_RK that `rows` holds; None: all
    for n_left in range(PRECISIONS[rows.b_RK.dtype].n_evaluations - 1, -1, -1):
        s_RK, mass, slope = _evaluate(rows, shift_R1, power)
        is_open = (mass - 1.0).abs_() > rows.tolerance  # False for NaN
        n_open = int(torch.count_nonzero(is_open)) if n_left else 0
        if 2 * n_open >= mass.shape[0]:
            shift_R1 = _step(rows, shift_R1, mass, slope)
            continue
        if n_open:
            index = is_open.view(-1).nonzero().view(-1)
            open_rows = rows.take(index)  # before out_RK, which holds the scaled scores, is written
            shift_R1 = _step(rows, shift_R1, mass, slope)[index]
        if left is None:
            _correct(rows, s_RK, mass, slope, out_RK)
        else:
            solved_RK = torch.empty_like(rows.b_RK)
            _correct(rows, s_RK, mass, slope, solved_RK)
            out_RK.index_copy_(0, left, solved_RK)
        if n_open == 0:
            return
        left = index if left is None else left[index]
        rows = open_rows


def _finish_fixed(rows: _Rows, shift_R1: Tensor, power: Power, out_RK: Tensor) -> None:
    """The same number of steps for every row: nothing is read back from the device."""
    for n_left in range(N_EVALUATIONS_FIXED[rows.b_RK.dtype] - 1, -1, -1):
        s_RK, mass, slope = _evaluate(rows, shift_R1, power)
        if n_left:
            shift_R1 = _step(rows, shift_R1, mass, slope)
    _correct(rows, s_RK, mass, slope, out_RK)
