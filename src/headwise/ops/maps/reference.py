"""The threshold of α-entmax, solved for all rows at once.

With β = α - 1 and b_i = β(z_max - z_i) ≥ 0, the weights of a row are

    x_i = [1 - t - b_i]_+      p_i = x_i^(1/β)      s_i = p_i / x_i = p_i^(2-α)

for the unique shift t in [0, 1) with F = Σ p_i = 1 (Peters et al. 2019, with τ = βz_max + t - 1).
S = Σ s_i is the slope of F up to sign and a factor. As α falls to 1, t/β tends to
logsumexp(z) - z_max and p to softmax, so α near 1 needs no branch.

Start: a few passes match the power mean of the support by its count, mean and variance of b, which
is exact for α = 1.5 and 2. Then Newton on F^β, which is convex with slope at least 1 and therefore
converges from every start. Last, a linear correction along s.

Axes: R rows, K keys.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from headwise.ops.family import ALPHAS, BETA_MIN, Power

CHUNK_SCORES = 1 << 19  # hides the overhead of calls, fits into the caches


@dataclass(frozen=True)
class Precision:
    """Stopping criteria of the iteration for one floating-point dtype."""

    mass_loose: float  # |F - 1| that the correction removes for β ≤ 1/2
    mass_border: float  # (this)^β: the largest shift that changes a border key by at most this
    mass_tight: float  # rounding error of F
    n_moment_passes: int
    n_evaluations: int  # upper limit; proved: 16 to 20 for adversarial rows, observed: 6


PRECISIONS = {
    torch.float32: Precision(4e-4, 2e-7, 5e-7, 2, 16),
    torch.float64: Precision(1e-8, 1e-15, 4e-15, 3, 40),
}
# Accelerators, without reading values back: fixed counts that suffice for adversarial rows.
N_MOMENT_PASSES_FIXED = 8
N_EVALUATIONS_FIXED = {torch.float32: 6, torch.float64: 8}


@dataclass(frozen=True)
class _Rows:
    """Constants of the iteration over some rows, and its buffers."""

    b_RK: Tensor  # -b: scaled scores minus the row's maximum, ≤ 0, -inf where masked
    beta: Tensor  # (R, 1) or (1, 1)
    exponent: Tensor  # (1/β - 1) · log2(e)
    tolerance: Tensor  # maximum of |F - 1|
    empty_R1: Tensor  # 1 for a row without an allowed key, else 0
    shift_max: Tensor  # 1 - K^(-β): the shift of a row of equal scores
    buffer_3RK: Tensor  # x, s, a temporary; allocating them each time costs more than the sums

    def select(self, rows: Tensor) -> _Rows:
        """Select some of the rows."""

        def pick(value: Tensor) -> Tensor:
            return value[rows] if value.shape[0] > 1 else value

        return _Rows(
            self.b_RK[rows],
            pick(self.beta),
            pick(self.exponent),
            pick(self.tolerance),
            self.empty_R1[rows],
            pick(self.shift_max),
            self.buffer_3RK[:, : rows.shape[0]],
        )


def solve(scores_RK: Tensor, beta: Tensor, power: Power, out_RK: Tensor, is_adaptive: bool) -> None:
    """Write the α-entmax weights of every row to `out_RK` (may be `scores_RK` itself).

    Args:
        scores_RK: float32 or float64, contiguous; -inf where a key is masked.
        beta: α - 1, (R, 1) or (1, 1), same dtype.
        power: SQUARE and LINEAR need β = 0.5 and 1 throughout.
        out_RK: the weights, same dtype. A row without a key becomes zeros, a row with NaN or +inf
            becomes NaN.
        is_adaptive: stop at convergence, for CPUs. False: fixed counts that suffice for adversarial
            rows, for accelerators, where reading values back would wait for the device.
    """
    n_rows, n_keys = scores_RK.shape
    if n_rows == 0 or n_keys == 0:
        return
    n_chunk = min(n_rows, max(1, CHUNK_SCORES // n_keys)) if is_adaptive else n_rows
    beta = beta.clamp(BETA_MIN, 1.0)
    buffer_3RK = scores_RK.new_empty(3, n_chunk, n_keys)
    for first in range(0, n_rows, n_chunk):
        part = slice(first, first + n_chunk)
        part_beta = beta[part] if beta.shape[0] > 1 else beta
        rows = _prepare(scores_RK[part], part_beta, out_RK[part], buffer_3RK)
        if power is Power.LINEAR and is_adaptive:  # a Newton step is as cheap as a moment pass
            shift = torch.zeros_like(rows.empty_R1)
        else:
            shift = _moment_start(rows, is_adaptive)
        if is_adaptive:
            _finish_adaptive(rows, shift, power, out_RK[part])
        else:
            _finish_fixed(rows, shift, power, out_RK[part])


def _prepare(scores_RK: Tensor, beta: Tensor, out_RK: Tensor, buffer_3RK: Tensor) -> _Rows:
    """Return the constants of some rows; `out_RK` holds -b until the weights overwrite it."""
    limit = torch.finfo(scores_RK.dtype).max
    precision = PRECISIONS[scores_RK.dtype]
    largest_R1 = _row_max(scores_RK)
    empty_R1 = (largest_R1 == -math.inf).to(scores_RK.dtype)
    # -inf - (-inf) would be NaN; a finite maximum keeps every key of an empty row at -inf
    b_RK = torch.sub(scores_RK, largest_R1.clamp_min(-limit), out=out_RK).mul_(beta)
    # never 0, so that 0^0 off the support is exp2(-inf) = 0 at β = 1 too
    exponent = beta.reciprocal().sub_(1.0).clamp_min_(1e-30).mul_(math.log2(math.e))
    tolerance = torch.exp2(beta * math.log2(precision.mass_border))
    tolerance.clamp_(precision.mass_tight, precision.mass_loose)
    shift_max = torch.expm1(beta * -math.log(scores_RK.shape[1])).neg_()
    buffer_3RK = buffer_3RK[:, : scores_RK.shape[0]]
    return _Rows(b_RK, beta, exponent, tolerance, empty_R1, shift_max, buffer_3RK)


def _row_max(scores_RK: Tensor) -> Tensor:
    """Return the largest score of every row (R, 1), NaN for a row with NaN."""
    n_keys = scores_RK.shape[1]
    n_whole = n_keys // 32 * 32
    if scores_RK.device.type != "cpu" or n_keys == n_whole:
        return scores_RK.amax(-1, keepdim=True)
    # torch's CPU kernel reduces the remainder of a vector entry by entry, at ten times the cost.
    # The parts of a maximum may overlap: two aligned parts for long rows, halving for short ones.
    if n_whole:
        head_R1 = scores_RK[:, :n_whole].amax(-1, keepdim=True)
        return torch.maximum(head_R1, scores_RK[:, -32:].amax(-1, keepdim=True))
    while n_keys > 1:
        n_half = (n_keys + 1) // 2
        scores_RK = torch.maximum(scores_RK[:, :n_half], scores_RK[:, -n_half:])
        n_keys = n_half
    return scores_RK


def _moment_start(rows: _Rows, is_adaptive: bool) -> Tensor:
    """Return a first shift (R, 1) from count, mean and variance of b in the support.

    M_r ≈ sqrt(m² + (r - 1)σ²) for the power mean of order r = 1/β of x, exact for r = 1 and 2.
    """
    precision = PRECISIONS[rows.b_RK.dtype]
    n_passes = precision.n_moment_passes if is_adaptive else N_MOMENT_PASSES_FIXED
    beta = rows.beta
    level = torch.ones_like(rows.empty_R1)  # 1 - t
    shift = level
    for _ in range(n_passes):
        x_RK = torch.add(rows.b_RK, level, out=rows.buffer_3RK[0]).clamp_min_(0.0)
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
    """Return s (R, K), F = Σ xs and S = Σ s (R, 1) at a shift; x stays in `rows.buffer_3RK[0]`."""
    x_RK, s_RK, temporary_RK = rows.buffer_3RK.unbind()
    if power is Power.ANY:
        # log1p of x - 1: x itself has lost the digits that matter for small β. Off the support
        # log1p(-1) = -inf, and exp2 turns that into exactly 0.
        torch.sub(rows.b_RK, shift_R1, out=s_RK).clamp_min_(-1.0)
        torch.add(s_RK, 1.0, out=x_RK)
        s_RK.log1p_().mul_(rows.exponent).exp2_()
        mass = torch.mul(x_RK, s_RK, out=temporary_RK).sum(-1, keepdim=True)
        slope = s_RK.sum(-1, keepdim=True)
    else:
        torch.add(rows.b_RK, 1.0 - shift_R1, out=x_RK).clamp_min_(0.0)
        total = x_RK.sum(-1, keepdim=True)
        if power is Power.SQUARE:
            s_RK = x_RK
            # vector_norm is too inexact here (1e-5): it sums sequentially
            mass = torch.square(x_RK, out=temporary_RK).sum(-1, keepdim=True)
            slope = total
        else:
            mass = total
            slope = torch.sign(x_RK, out=s_RK).sum(-1, keepdim=True)
    tiny = torch.finfo(slope.dtype).tiny
    # a row without a key counts as converged; its s is 0
    return s_RK, mass.add_(rows.empty_R1), slope.clamp_min_(tiny)


def _step(rows: _Rows, shift_R1: Tensor, mass: Tensor, slope: Tensor) -> Tensor:
    """Return the next shift, by Newton on F^β; F = 0 (by rounding) leads back to t = 0."""
    mass = mass.clamp_min(torch.finfo(mass.dtype).tiny)
    growth = torch.expm1(mass.log().mul_(rows.beta).neg_()).neg_()
    shift = growth.mul_(mass).div_(slope).add_(shift_R1).clamp_min_(0.0)
    return torch.minimum(shift, rows.shift_max)


def _correct(rows: _Rows, s_RK: Tensor, mass: Tensor, slope: Tensor, out_RK: Tensor) -> None:
    """Write weights max(p - cs, 0) with c = (F - 1)/S: a linear step to Σp = 1."""
    x_RK, _, temporary_RK = rows.buffer_3RK.unbind()
    torch.sub(x_RK, (mass - 1.0).div_(slope), out=temporary_RK).clamp_min_(0.0)
    torch.mul(temporary_RK, s_RK, out=out_RK)


def _finish_adaptive(rows: _Rows, shift_R1: Tensor, power: Power, out_RK: Tensor) -> None:
    """Iterate until every row has converged; drop converged rows once they are the majority."""
    row_index: Tensor | None = None  # indices of the rows in `rows`; None: all
    for n_left in range(PRECISIONS[rows.b_RK.dtype].n_evaluations - 1, -1, -1):
        s_RK, mass, slope = _evaluate(rows, shift_R1, power)
        is_open = (mass - 1.0).abs_() > rows.tolerance  # False for NaN
        n_open = int(torch.count_nonzero(is_open)) if n_left else 0
        if 2 * n_open >= mass.shape[0]:
            shift_R1 = _step(rows, shift_R1, mass, slope)
            continue
        if n_open:
            index = is_open.view(-1).nonzero().view(-1)
            open_rows = rows.select(index)  # before out_RK, which holds -b, is overwritten
            shift_R1 = _step(rows, shift_R1, mass, slope)[index]
        if row_index is None:
            _correct(rows, s_RK, mass, slope, out_RK)
        else:
            solved_RK = torch.empty_like(rows.b_RK)
            _correct(rows, s_RK, mass, slope, solved_RK)
            out_RK.index_copy_(0, row_index, solved_RK)
        if n_open == 0:
            return
        row_index = index if row_index is None else row_index[index]
        rows = open_rows


def _finish_fixed(rows: _Rows, shift_R1: Tensor, power: Power, out_RK: Tensor) -> None:
    """Run the same number of steps for every row, without reading values back."""
    for n_left in range(N_EVALUATIONS_FIXED[rows.b_RK.dtype] - 1, -1, -1):
        s_RK, mass, slope = _evaluate(rows, shift_R1, power)
        if n_left:
            shift_R1 = _step(rows, shift_R1, mass, slope)
    _correct(rows, s_RK, mass, slope, out_RK)


# For β at or above this: exp(y) - 1 - y directly; below: its series, accurate for p > 1e-9.
BETA_SERIES = 0.1


# 1/2!, 1/3!, 1/4!, …
SERIES = {
    torch.float32: tuple(1 / math.factorial(degree) for degree in range(2, 9)),
    torch.float64: tuple(1 / math.factorial(degree) for degree in range(2, 18)),
}


LOG2_E = math.log2(math.e)


def masked_copy(scores: Tensor, mask: Tensor) -> Tensor:
    """Return a contiguous copy of `scores` with -inf wherever the broadcast `mask` is False."""
    if scores.device.type != "cpu":
        return scores.masked_fill(~mask, -torch.inf).contiguous()
    # On a CPU masked_fill and where are an order of magnitude slower than arithmetic, but
    # arithmetic would propagate NaN: combine the bits instead.
    int_dtype = torch.int32 if scores.dtype is torch.float32 else torch.int64
    keep = mask.to(int_dtype).neg_()  # all bits set where True
    fill = torch.where(mask, 0.0, -torch.inf).to(scores.dtype).view(int_dtype)
    bits = torch.bitwise_and(scores.contiguous().view(int_dtype), keep)
    return bits.bitwise_or_(fill).view(scores.dtype)


def _softmax(scores: Tensor, mask: Tensor | None) -> Tensor:
    if mask is not None:
        scores = masked_copy(scores, mask)
    weights = torch.softmax(scores, -1)
    # every key of an empty row is NaN, so checking the first key of each row is enough
    if scores.device.type != "cpu" or bool(weights[..., :1].isnan().any()):
        is_empty = (scores == -torch.inf).all(-1, keepdim=True)
        weights = weights.masked_fill_(is_empty, 0.0)
    return weights


def _rows(beta: Tensor | None, scores: Tensor, power: Power) -> Tensor:
    """Return β of every row (R, 1), or (1, 1) if all rows share it."""
    if beta is None:
        return scores.new_full((1, 1), ALPHAS[power] - 1)
    if beta.numel() > 1:
        beta = beta.expand(*scores.shape[:-1], 1)
    return beta.reshape(-1, 1)


def _backward(
    weights: Tensor,
    grad: Tensor,
    beta: Tensor,
    power: Power,
    grad_scores: Tensor,
    grad_rows: Tensor | None,
) -> None:
    """Write the gradient of the scores and, unless `grad_rows` is None, of α per row."""
    if weights.numel() == 0:
        return
    n_keys = weights.shape[-1]
    weights_RK, grad_RK = weights.view(-1, n_keys), grad.reshape(-1, n_keys)
    out_RK = grad_scores.view(-1, n_keys)
    alpha_R1 = None if grad_rows is None else grad_rows.view(-1, 1)
    n_rows = weights_RK.shape[0]
    is_cpu = weights.device.type == "cpu"
    n_chunk = min(n_rows, max(1, CHUNK_SCORES // n_keys)) if is_cpu else n_rows
    buffer_3RK = weights.new_empty(3, n_chunk, n_keys)
    tiny = torch.finfo(weights.dtype).tiny
    for first in range(0, n_rows, n_chunk):
        part = slice(first, first + n_chunk)
        p_RK, dp_RK, s_RK = weights_RK[part], grad_RK[part], out_RK[part]
        beta_R1 = beta[part] if beta.shape[0] > 1 else beta
        buffer = buffer_3RK[:, : p_RK.shape[0]]
        if alpha_R1 is None:
            _slope(p_RK, beta_R1, power, buffer, s_RK)
        else:
            psi_RK = _slope_and_psi(p_RK, beta_R1, buffer, s_RK)
        total = s_RK.sum(-1, keepdim=True).clamp_min_(tiny)  # 0 in a row without a key
        centred_RK = torch.mul(s_RK, dp_RK, out=buffer[0])
        centre = centred_RK.sum(-1, keepdim=True).div_(total)
        torch.sub(dp_RK, centre, out=centred_RK)
        if alpha_R1 is not None:
            alpha_R1[part] = psi_RK.mul_(centred_RK).sum(-1, keepdim=True).neg_()
        s_RK.mul_(centred_RK)


def _slope(p_RK: Tensor, beta: Tensor, power: Power, buffer_3RK: Tensor, out_RK: Tensor) -> None:
    """Write s = p^(2-α) on the support, else 0."""
    if power is Power.SQUARE:
        torch.sqrt(p_RK, out=out_RK)
    elif power is Power.LINEAR:
        torch.sign(p_RK, out=out_RK)
    else:
        s_RK, is_support_RK, _ = buffer_3RK.unbind()
        # the logarithm of 0 is slow: clamp, then multiply by the sign to restore 0
        torch.clamp_min(p_RK, torch.finfo(p_RK.dtype).tiny, out=s_RK)
        s_RK.log_().mul_((1.0 - beta) * LOG2_E).exp2_()
        torch.mul(s_RK, torch.sign(p_RK, out=is_support_RK), out=out_RK)


def _slope_and_psi(p_RK: Tensor, beta: Tensor, buffer_3RK: Tensor, out_RK: Tensor) -> Tensor:
    """Write s, and return p ψ in the last buffer; both are 0 off the support."""
    log_p_RK, y_RK, psi_RK = buffer_3RK.unbind()
    torch.clamp_min(p_RK, torch.finfo(p_RK.dtype).tiny, out=log_p_RK).log_()
    torch.mul(log_p_RK, -beta, out=y_RK)
    torch.expm1(y_RK, out=psi_RK)
    torch.addcmul(p_RK, p_RK, psi_RK, out=out_RK)
    if p_RK.device.type == "cpu":  # reading values back is free here
        beta_min, beta_max = (float(bound) for bound in beta.aminmax())
    else:
        beta_min, beta_max = 0.0, 1.0
    if beta_max < BETA_SERIES:
        _series(y_RK, psi_RK).mul_(log_p_RK.square_())
        return psi_RK.mul_(p_RK)
    psi_RK.sub_(y_RK).div_(beta.square())
    if beta_min < BETA_SERIES:
        series_RK = _series(y_RK, torch.empty_like(y_RK)).mul_(log_p_RK.square_())
        is_direct = (beta >= BETA_SERIES).to(beta.dtype)
        torch.lerp(series_RK, psi_RK, is_direct, out=psi_RK)
    return psi_RK.mul_(p_RK)


def _series(y_RK: Tensor, out_RK: Tensor) -> Tensor:
    """Write and return (exp(y) - 1 - y) / y² for small y."""
    coefficients = SERIES[y_RK.dtype]
    torch.mul(y_RK, coefficients[-1], out=out_RK)
    for coefficient in coefficients[-2:0:-1]:
        out_RK.add_(coefficient).mul_(y_RK)
    return out_RK.add_(coefficients[0])
