"""Losses over a vocabulary, including cross-entropy, by the C++ kernels.

Forward reads the scores twice and saves two numbers per row, the maximum and the threshold;
backward recomputes the probabilities from them and writes the gradient.

Axes: N rows, V classes.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import Tensor

from headwise.ops.cpp import build
from headwise.ops.cpp.call import DTYPES, FLOAT, address, structure
from headwise.ops.family import ALPHAS, POWERS, Power

ALPHA_MIN = 1 + 2**-23  # the next float32 above 1: 1/β must be finite


LossProblem: Any = structure("LossProblem")


def read(
    scores_NV: Tensor, alpha: float, with_total: bool
) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
    """Return per row: value, support size, sum of the scores or None, (maximum, threshold) (N, 2).

    The value is <p, z> + H(p) for scores z minus their maximum. All are float32.

    Args:
        scores_NV: float32 or bfloat16, on CPU, contiguous.
        alpha: in [1, 2].
        with_total: whether to return the sums.
    """
    n_rows = len(scores_NV)
    threshold_N2 = scores_NV.new_empty(n_rows, 2, dtype=torch.float32)
    # not views of one tensor: operators must not return views
    value_N, support_N, total_N = (torch.empty_like(threshold_N2[:, 0]) for _ in range(3))
    problem = _problem(scores_NV, threshold_N2, alpha)
    problem.value, problem.support = value_N.data_ptr(), support_N.data_ptr()
    if with_total:
        problem.total = total_N.data_ptr()
    build.functions().headwise_loss_forward(ctypes.byref(problem))
    return value_N, support_N, total_N if with_total else None, threshold_N2


def write_gradient(
    scores_NV: Tensor,
    threshold_N2: Tensor,
    out_NV: Tensor,
    scale_N: Tensor,
    target_N: Tensor,
    alpha: float,
    smoothing: float,
    eps_v: float,
) -> None:
    """Write the gradient of the rows' losses in their scores, times the scale of each row.

    Args:
        scores_NV, threshold_N2, alpha: arguments and result of `read`.
        out_NV: receives the gradient, may be the scores.
        scale_N: float32; a row of scale 0 gets zeros.
        target_N: int64.
        smoothing: ε of uniform smoothing.
        eps_v: ε / V.
    """
    problem = _problem(scores_NV, threshold_N2, alpha)
    problem.smoothing, problem.eps_v = smoothing, eps_v
    problem.out = address(out_NV, (scores_NV.dtype,), scores_NV.shape)
    problem.grad = address(scale_N, FLOAT, scores_NV.shape[:1])
    problem.target = address(target_N, (torch.int64,), scores_NV.shape[:1])
    build.functions().headwise_loss_backward(ctypes.byref(problem))


def log_softmax(scores_NV: Tensor) -> Tensor:
    """Return log-softmax, float32; not differentiable.

    Args:
        scores_NV: float32 or bfloat16, on CPU.
    """
    scores_NV = scores_NV.contiguous()
    threshold_N2 = read(scores_NV, ALPHAS[Power.EXP], with_total=False)[-1]
    # subtract in two steps: their sum would lose digits of large scores
    return scores_NV.sub(threshold_N2[:, :1]).sub_(threshold_N2[:, 1:])


def _problem(scores_NV: Tensor, threshold_N2: Tensor, alpha: float) -> Any:
    n_rows, n_classes = scores_NV.shape
    return LossProblem(
        n_rows=n_rows,
        n_classes=n_classes,
        scores=address(scores_NV, DTYPES),
        threshold=address(threshold_N2, FLOAT, (n_rows, 2)),
        alpha=max(alpha, ALPHA_MIN),
        is_half=scores_NV.dtype is torch.bfloat16,
        map=POWERS.get(alpha, Power.ANY),
        n_threads=torch.get_num_threads(),
    )
