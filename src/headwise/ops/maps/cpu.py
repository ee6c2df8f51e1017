"""The maps from scores to weights and their gradients, by the C++ kernels.

Axes: B batch, H heads, Q and K numbers of queries and keys.
"""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from headwise.ops.cpp.build import functions
from headwise.ops.cpp.call import FLOAT, address, problem_of
from headwise.ops.draws import Draws
from headwise.ops.family import Power
from headwise.ops.visible import EVERYTHING, Visible


def forward(
    scores_BHQK: Tensor,
    beta: Tensor | None,
    power: Power,
    visible: Visible = EVERYTHING,
    out_BHQK: Tensor | None = None,
    threshold_BHQ2: Tensor | None = None,
    draws: Draws | None = None,
) -> Tensor:
    """Return weights of the scores (B, H, Q, K); see `headwise.ops.maps.operator`.

    Args:
        scores_BHQK: float32 or bfloat16, contiguous.
        beta: α - 1, float32, broadcastable to (B, H, Q, 1); needed for `Power.ANY`.
        power: the map.
        visible: which keys a row may attend to.
        out_BHQK: receives the weights, may be the scores; None: a new tensor.
        threshold_BHQ2: float32, contiguous; receives the numbers from which
            `backward_from_scores` recomputes the weights.
        draws: dropout, or None.
    """
    weights_BHQK = torch.empty_like(scores_BHQK) if out_BHQK is None else out_BHQK
    problem = problem_of(scores_BHQK, weights_BHQK, beta, power, draws, visible)
    if threshold_BHQ2 is not None:
        problem.threshold = address(threshold_BHQ2, FLOAT, (*scores_BHQK.shape[:3], 2))
    functions().headwise_forward(ctypes.byref(problem))
    return weights_BHQK


def backward(
    weights_BHQK: Tensor, grad_BHQK: Tensor, beta: Tensor | None, power: Power, with_alpha: bool
) -> tuple[Tensor, Tensor]:
    """Return the gradients of the scores and of α per row (B, H, Q, 1); empty if not requested.

    Args:
        weights_BHQK: result of `forward`.
        grad_BHQK: gradient of the weights, same dtype, contiguous.
        beta, power: as in `forward`.
        with_alpha: requires `Power.ANY`.
    """
    grad_scores_BHQK = torch.empty_like(weights_BHQK)
    problem = problem_of(weights_BHQK, grad_scores_BHQK, beta, power)
    problem.grad = address(grad_BHQK, (weights_BHQK.dtype,), weights_BHQK.shape)
    grad_alpha = _row_gradients(problem, weights_BHQK, with_alpha)
    functions().headwise_backward(ctypes.byref(problem))
    return grad_scores_BHQK, grad_alpha


def backward_from_scores(
    scores_BHQK: Tensor,
    threshold_BHQ2: Tensor,
    grad_BHQK: Tensor,
    weights_BHQK: Tensor,
    beta: Tensor | None,
    power: Power,
    visible: Visible,
    draws: Draws | None,
    with_alpha: bool,
) -> Tensor:
    """Compute `backward` from scores and thresholds instead of weights.

    Overwrites the scores with their gradient, and writes the weights after dropout to
    `weights_BHQK`, for the gradient of the values. Returns the gradient of α as `backward` does.
    """
    problem = problem_of(scores_BHQK, scores_BHQK, beta, power, draws, visible)
    dtypes, shape = (scores_BHQK.dtype,), scores_BHQK.shape
    problem.threshold = address(threshold_BHQ2, FLOAT, (*shape[:3], 2))
    problem.grad = address(grad_BHQK, dtypes, shape)
    problem.weights = address(weights_BHQK, dtypes, shape)
    grad_alpha = _row_gradients(problem, scores_BHQK, with_alpha)
    functions().headwise_backward(ctypes.byref(problem))
    return grad_alpha


def _row_gradients(problem: ctypes.Structure, scores_BHQK: Tensor, with_alpha: bool) -> Tensor:
    """Set and return the buffer for the gradient of α per row; empty if not requested."""
    shape = (*scores_BHQK.shape[:3], 1) if with_alpha else (0,)
    grad_alpha = scores_BHQK.new_zeros(shape, dtype=torch.float32)
    if with_alpha:
        problem.grad_alpha = grad_alpha.data_ptr()
    return grad_alpha
