"""The maps from scores to weights: the public functions of `headwise.entmax`."""

from __future__ import annotations

import math
from collections.abc import Callable
from enum import IntEnum

import torch
from torch import Tensor

from headwise.ops.arguments import check_tensor
from headwise.ops.family import POWERS, Power
from headwise.ops.maps import bisection, operator


class AxisError(IndexError, ValueError):
    """An axis that a tensor does not have: as torch's IndexError, and a ValueError as NumPy's."""


def softmax(scores: Tensor, dim: int = -1, *, mask: Tensor | None = None) -> Tensor:
    """Softmax over the allowed keys, the dense member of the family: α = 1.

    Args:
        scores: floating-point tensor of any shape. Half precision is computed in float32 and
            cast at the end. A score of -inf counts as masked.
        dim: the axis that is normalised.
        mask: bool, broadcastable to `scores`, True = may attend. Masked keys get weight
            exactly 0 and gradient 0, even if their score is NaN or inf.

    Returns:
        Weights of the shape and dtype of `scores`, which sum to one along `dim`. A row without an
        allowed key is zero with zero gradients. A row with an allowed NaN or +inf is NaN.

    Raises:
        TypeError: scores are not floating-point, or mask is not bool.
        ValueError: `dim` is no axis of scores (also an IndexError), or shapes do not match.
    """
    return _apply(operator.weights, scores, None, dim, mask, Power.EXP)


def sparsemax(
    X: Tensor, dim: int = -1, k: int | None = None, *, mask: Tensor | None = None
) -> Tensor:
    """Sparsemax (Martins and Astudillo 2016): Euclidean projection onto the simplex, α = 2.

    Arguments, result and errors as for `softmax`; allowed keys may also get weight exactly 0.
    `k` has no effect: the map is exact without sorting.
    """
    return _apply(operator.weights, X, None, dim, mask, Power.LINEAR)


def entmax15(
    X: Tensor, dim: int = -1, k: int | None = None, *, mask: Tensor | None = None
) -> Tensor:
    """1.5-entmax (Peters et al. 2019).

    Arguments, result and errors as for `softmax`; allowed keys may also get weight exactly 0.
    `k` has no effect: the map is exact without sorting.
    """
    return _apply(operator.weights, X, None, dim, mask, Power.SQUARE)


def alpha_entmax(
    scores: Tensor, alpha: Tensor | float, dim: int = -1, *, mask: Tensor | None = None
) -> Tensor:
    """α-entmax (Peters et al. 2019) with a gradient to α (Correia et al. 2019).

        argmax over p in the simplex of <p, z> + (Σ p - Σ p^α) / (α (α - 1))

    Args:
        scores: as for `softmax`.
        alpha: in [1, 2]: a number, or a tensor that broadcasts against `scores`
            with size 1 along `dim`, such as (H, 1, 1) for scores (B, H, Q, K). Computed in
            float32 (float64 for float64 scores); a tensor is clamped to at
            least 1 + 1e-7, so that its gradient is finite at exactly 1 too. On an accelerator it is
            clamped without a check, which would wait for the device.
        dim: as for `softmax`.
        mask: as for `softmax`.

    Returns:
        As `softmax`, differentiable once in scores and alpha by backward; torch.func.jvp raises.

    Raises:
        ValueError: alpha is outside [1, 2] (`entmax_bisect` takes others), or has more than one
            value along `dim`.
        TypeError: as for `softmax`.
    """
    if isinstance(alpha, Tensor):
        return _apply(operator.weights, scores, alpha, dim, mask, Power.ANY)
    if not 1 <= alpha <= 2:
        raise ValueError(f"alpha must be in [1, 2], got {alpha}; entmax_bisect takes others")
    power = POWERS.get(alpha, Power.ANY)
    number = alpha if power is Power.ANY else None
    return _apply(operator.weights, scores, number, dim, mask, power)


def entmax_bisect(
    X: Tensor, alpha: Tensor | float = 1.5, dim: int = -1, n_iter: int = 50,
    ensure_sum_one: bool = True, *, mask: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """α-entmax for every α: `alpha_entmax` in [1, 2], by bisection if any α is outside.

    Below 1 all weights are positive with heavier tails than softmax's; as α grows the weights
    tend to equal shares of the greatest scores.

    Args:
        X: the scores, as for `softmax`.
        alpha: as for `alpha_entmax`, any finite value. A tensor is read to compare it with
            [1, 2], which waits for an accelerator.
        dim: as for `softmax`.
        n_iter: no effect: bisection ends at the precision of the scores.
        ensure_sum_one: no effect: weights always sum to one.
        mask: as for `softmax`.

    Returns:
        As `alpha_entmax`.

    Raises:
        ValueError: alpha is infinite, or has more than one value along `dim`.
        TypeError: as for `softmax`.
    """
    if not isinstance(alpha, Tensor) and 1 <= alpha <= 2:
        return alpha_entmax(X, alpha, dim, mask=mask)
    return _apply(bisection.weights, X, alpha, dim, mask, bisection.Map.ENTMAX)


def sparsemax_bisect(
    X: Tensor, dim: int = -1, n_iter: int = 50, ensure_sum_one: bool = True, *,
    mask: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Return `sparsemax`, which needs no bisection: `n_iter`, `ensure_sum_one` have no effect."""
    return sparsemax(X, dim, mask=mask)


def normmax_bisect(
    X: Tensor, alpha: Tensor | float = 2, dim: int = -1, n_iter: int = 50, *,
    mask: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """α-normmax (Blondel et al. 2020): argmax over p in the simplex of <p, z> - ||p||_α.

    Args:
        X: the scores, as for `softmax`.
        alpha: above 1: a number, or a tensor that broadcasts against `X` with size 1 along `dim`.
            Its values are read, which waits for an accelerator.
        dim: as for `softmax`.
        n_iter: no effect: bisection ends at the precision of the scores.
        mask: as for `softmax`.

    Returns:
        As `softmax`, differentiable once in scores and alpha.

    Raises:
        ValueError: alpha is at most 1 or infinite, or has more than one value along `dim`.
        TypeError: as for `softmax`.
    """
    return _apply(bisection.weights, X, alpha, dim, mask, bisection.Map.NORMMAX)


def budget_bisect(
    X: Tensor, budget: Tensor | float = 2, dim: int = -1, n_iter: int = 50, *,
    mask: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Budget sparsemax (Martins and Kreutzer 2017): weights in [0, 1] that sum to the budget.

        argmin over p of ||p - z||²    with 0 ≤ p ≤ 1, Σ p = budget

    Args:
        X: the scores, as for `softmax`.
        budget: at least 0: a number, or a tensor as alpha in `normmax_bisect`.
        dim: as for `softmax`.
        n_iter: no effect: bisection ends at the precision of the scores.
        mask: as for `softmax`.

    Returns:
        Weights of the shape and dtype of `X`, differentiable once in scores and budget. A row with
        fewer allowed keys than its budget has weight 1 at each of them.

    Raises:
        ValueError: budget is negative or infinite, or has more than one value along `dim`.
        TypeError: as for `softmax`.
    """
    return _apply(bisection.weights, X, budget, dim, mask, bisection.Map.BUDGET)


def _apply(
    weights: Callable[..., Tensor], scores: Tensor, parameter: Tensor | float | None,
    dim: int, mask: Tensor | None, kind: IntEnum,
) -> Tensor:  # fmt: skip
    """Return `weights(scores, parameter, mask, kind)` along `dim`, in the dtype of the scores."""
    if not scores.is_floating_point():
        raise TypeError(f"scores must be floating-point, got {scores.dtype}")
    n_axes = max(1, scores.dim())
    if not -n_axes <= dim < n_axes:
        raise AxisError(f"dim {dim} is out of range: it must be in [{-n_axes}, {n_axes - 1}]")
    working = scores if scores.dtype is torch.float64 else scores.float()
    if mask is not None:
        if mask.dtype is not torch.bool:
            raise TypeError(f"mask must be bool with True = may attend, got {mask.dtype}")
        if mask.dim() > scores.dim():
            raise ValueError(
                f"mask must broadcast against scores {tuple(scores.shape)}, got {tuple(mask.shape)}"
            )
        mask = mask.reshape((1,) * (scores.dim() - mask.dim()) + tuple(mask.shape))
        mask = _moved(mask, dim, -1)
    if isinstance(parameter, Tensor):
        parameter = _moved(aligned(parameter.to(working.dtype), scores, dim), dim, -1)
    elif parameter is not None:
        parameter = working.new_full((1,) * working.dim(), float(parameter))
    rows = _along_last(weights, _moved(working, dim, -1), parameter, mask, kind)
    return _moved(rows, -1, dim).to(scores.dtype)


def aligned(parameter: Tensor, scores: Tensor, dim: int) -> Tensor:
    """Return the parameter of a map with as many axes as the scores.

    Raises ValueError if it does not broadcast against them with size 1 along `dim`.
    """
    shape = (1,) * (scores.dim() - parameter.dim()) + tuple(parameter.shape)
    if len(shape) > scores.dim() or (shape and shape[dim] != 1):
        raise ValueError(
            f"alpha or budget must broadcast against scores {tuple(scores.shape)} with size 1 "
            f"along dim {dim}, got shape {tuple(parameter.shape)}; for one value per head of "
            "scores (B, H, Q, K) give it the shape (H, 1, 1)"
        )
    return parameter.reshape(shape)


def _moved(values: Tensor, dim: int, to: int) -> Tensor:
    """Move an axis; without a view, which costs time, if it is in place already."""
    is_in_place = {dim, to} <= {-1, values.dim() - 1}
    return values if is_in_place else values.movedim(dim, to)


def _along_last(
    weights: Callable[..., Tensor], scores: Tensor, parameter: Tensor | None,
    mask: Tensor | None, kind: IntEnum,
) -> Tensor:  # fmt: skip
    """Return the weights along the last axis of scores with any number of axes."""
    shape = scores.shape
    if len(shape) == 4:
        return weights(scores, parameter, mask, kind)

    def four_axes(values: Tensor) -> Tensor:
        if len(shape) > 4:
            rows, n = shape[:-1], values.shape[-1]
            check_tensor("mask or alpha", values, (values.dtype,), (*rows, n), values.device, True)
            return values.expand(*rows, n).reshape(1, 1, math.prod(rows), n)
        return values.reshape((1,) * (4 - len(shape)) + tuple(values.shape))

    if mask is not None:
        mask = four_axes(mask)
    if parameter is not None:
        parameter = four_axes(parameter)
    return weights(four_axes(scores), parameter, mask, kind).view(shape)
