"""The maps from scores to weights: the public functions of `headwise.entmax`."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from headwise.ops.arguments import check_tensor
from headwise.ops.family import POWERS, Power
from headwise.ops.maps import operator


def softmax(scores: Tensor, dim: int = -1, mask: Tensor | None = None) -> Tensor:
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
    """
    working, along, allowed = _prepare(scores, dim, mask)
    return _finish(_along_last(working, None, allowed, Power.EXP), along, scores.dtype)


def sparsemax(scores: Tensor, dim: int = -1, mask: Tensor | None = None) -> Tensor:
    """Sparsemax (Martins and Astudillo 2016): Euclidean projection onto the simplex, α = 2.

    Arguments, result and errors as for `softmax`; allowed keys may also get weight exactly 0.
    """
    return alpha_entmax(scores, 2.0, dim, mask)


def entmax15(scores: Tensor, dim: int = -1, mask: Tensor | None = None) -> Tensor:
    """1.5-entmax (Peters et al. 2019).

    Arguments, result and errors as for `softmax`; allowed keys may also get weight exactly 0.
    """
    return alpha_entmax(scores, 1.5, dim, mask)


def alpha_entmax(
    scores: Tensor, alpha: Tensor | float, dim: int = -1, mask: Tensor | None = None
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
        ValueError: alpha is outside [1, 2], or has more than one value along `dim`.
        TypeError: as for `softmax`.
    """
    working, along, allowed = _prepare(scores, dim, mask)
    if isinstance(alpha, Tensor):
        shape = (1,) * (scores.dim() - alpha.dim()) + tuple(alpha.shape)
        if len(shape) > scores.dim() or shape[dim] != 1:
            raise ValueError(
                f"alpha must broadcast against scores {tuple(scores.shape)} with size 1 along "
                f"dim {dim}, got shape {tuple(alpha.shape)}; for one alpha per head of scores "
                "(B, H, Q, K) give it the shape (H, 1, 1)"
            )
        aligned = _moved(alpha.to(working.dtype).reshape(shape), dim, -1)
        weights = _along_last(working, aligned, allowed, Power.ANY)
        return _finish(weights, along, scores.dtype)
    alpha = float(alpha)
    if not 1 <= alpha <= 2:
        raise ValueError(f"alpha must be in [1, 2], got {alpha}")
    power = POWERS.get(alpha, Power.ANY)
    alpha_tensor = working.new_full((1,) * working.dim(), alpha) if power is Power.ANY else None
    weights = _along_last(working, alpha_tensor, allowed, power)
    return _finish(weights, along, scores.dtype)


def _prepare(scores: Tensor, dim: int, mask: Tensor | None) -> tuple[Tensor, int, Tensor | None]:
    """Return scores in working precision, `dim`, and mask; the normalised axis is moved last."""
    if not scores.is_floating_point():
        raise TypeError(f"scores must be floating-point, got {scores.dtype}")
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
    return _moved(working, dim, -1), dim, mask


def _moved(values: Tensor, dim: int, to: int) -> Tensor:
    """Move an axis; without a view, which costs time, if it is in place already."""
    is_in_place = {dim, to} <= {-1, values.dim() - 1}
    return values if is_in_place else values.movedim(dim, to)


def _finish(weights: Tensor, dim: int, dtype: torch.dtype) -> Tensor:
    return _moved(weights, -1, dim).to(dtype)


def _along_last(scores: Tensor, alpha: Tensor | None, mask: Tensor | None, power: Power) -> Tensor:
    """Return the weights along the last axis of scores with any number of axes."""
    shape = scores.shape
    if len(shape) == 4:
        return operator.weights(scores, alpha, mask, power)

    def four_axes(values: Tensor) -> Tensor:
        if len(shape) > 4:
            rows, n = shape[:-1], values.shape[-1]
            check_tensor("mask or alpha", values, (values.dtype,), (*rows, n), values.device, True)
            return values.expand(*rows, n).reshape(1, 1, math.prod(rows), n)
        return values.reshape((1,) * (4 - len(shape)) + tuple(values.shape))

    if mask is not None:
        mask = four_axes(mask)
    if alpha is not None:
        alpha = four_axes(alpha)
    return operator.weights(four_axes(scores), alpha, mask, power).view(shape)
