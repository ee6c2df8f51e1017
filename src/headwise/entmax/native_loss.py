"""The entmax losses by the C++ kernels, as an operator of torch: `headwise::entmax_loss`.

Forward reads the scores twice and keeps two numbers a row, the maximum and the threshold; backward
forms the probabilities from them again while it writes the gradient.

Letters: N rows, V classes.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import Tensor

from headwise.entmax import native
from headwise.entmax.native import ALPHAS, POWERS, Power, address
from headwise.entmax.operators import register

NO_CLASS = -1
ALPHA_MIN = 1 + 2**-23  # the next number above 1 in float32: below, 1/β has no value there


class LossProblem(ctypes.Structure):
    """As in csrc/loss.h."""

    _fields_ = (
        ("n_rows", ctypes.c_int64),
        ("n_classes", ctypes.c_int64),
        ("scores", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("threshold", ctypes.c_void_p),
        ("value", ctypes.c_void_p),
        ("support", ctypes.c_void_p),
        ("total", ctypes.c_void_p),
        ("target", ctypes.c_void_p),
        ("grad", ctypes.c_void_p),
        ("left_out", ctypes.c_int64),
        ("alpha", ctypes.c_float),
        ("smoothing", ctypes.c_float),
        ("share", ctypes.c_float),
        ("is_half", ctypes.c_int32),
        ("map", ctypes.c_int32),
        ("n_threads", ctypes.c_int32),
    )


def loss_and_support(
    scores_NV: Tensor, target_N: Tensor, alpha: float, smoothing: float, ignore_index: int | None
) -> tuple[Tensor, Tensor]:
    """As `headwise.entmax.losses.entmax_loss_and_support`.

    Args:
        scores_NV: float32 or bfloat16, on a CPU.
        target_N: int64.
        alpha: in [1, 2].
        smoothing: ε of uniform smoothing.
        ignore_index: targets that do not count, or None.
    """
    target_N = target_N.to(torch.int64).contiguous()
    is_real_N = torch.ones_like(target_N, dtype=torch.bool)
    left_out = NO_CLASS
    if ignore_index is not None:
        is_real_N = target_N != ignore_index
        target_N = target_N.masked_fill(~is_real_N, 0)  # it need not be a class
        if 0 <= ignore_index < scores_NV.shape[1]:
            left_out = ignore_index
    loss_N, support_N, _ = _OPERATOR(scores_NV, target_N, is_real_N, alpha, smoothing, left_out)
    return loss_N, support_N


def cross_entropy_(
    scores_NV: Tensor,
    target_N: Tensor,
    smoothing: float,
    ignore_index: int,
    with_gradient: bool,
) -> tuple[Tensor, Tensor]:
    """Sums of smoothed cross-entropy and of the negative log-likelihood of rows.

    Args:
        scores_NV: float32 or bfloat16, on a CPU, contiguous. With `with_gradient` the gradient of
            the first sum takes their place.
        target_N: int64.
        smoothing: ε; the target distribution is (1-ε)·one-hot + ε/V.
        ignore_index: targets that do not count.
    """
    target_N = target_N.contiguous()
    is_real_N = target_N != ignore_index
    settings = (ALPHAS[Power.EXP], smoothing, NO_CLASS)
    nll_N, loss_N, _, threshold_N2 = _losses(scores_NV, target_N, *settings)
    if with_gradient:
        problem = _problem(scores_NV, threshold_N2, *settings)
        _write_gradient(problem, scores_NV, is_real_N.float(), target_N)
    loss, nll = (one.masked_fill(~is_real_N, 0.0).sum() for one in (loss_N, nll_N))
    return loss, nll


def log_softmax(scores_NV: Tensor) -> Tensor:
    """Logarithm of softmax, float32; not differentiable.

    Args:
        scores_NV: float32 or bfloat16, on a CPU.
    """
    scores_NV = scores_NV.contiguous()
    threshold_N2 = _read(scores_NV, ALPHAS[Power.EXP], 0.0, NO_CLASS)[-1]
    # one after the other: their sum would cost large scores digits
    return scores_NV.sub(threshold_N2[:, :1]).sub_(threshold_N2[:, 1:])


def _problem(
    scores: Tensor, threshold: Tensor, alpha: float, smoothing: float, left_out: int
) -> LossProblem:
    n_rows, n_classes = scores.shape
    return LossProblem(
        n_rows=n_rows,
        n_classes=n_classes,
        scores=address(scores, scores.dtype),
        threshold=address(threshold, torch.float32),
        left_out=left_out,
        alpha=max(alpha, ALPHA_MIN),
        smoothing=smoothing,
        share=smoothing / max(1, n_classes - (left_out != NO_CLASS)),
        is_half=scores.dtype is torch.bfloat16,
        map=POWERS.get(alpha, Power.ANY),
        n_threads=torch.get_num_threads(),
    )


def _read(
    scores: Tensor, alpha: float, smoothing: float, left_out: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Of every row: value and support, the sum of the scores, maximum and threshold (N, 2).

    The sum is there if there is smoothing.
    """
    n_rows = len(scores)
    threshold = scores.new_empty(n_rows, 2, dtype=torch.float32)
    value, support, total = scores.new_empty(3, n_rows, dtype=torch.float32).unbind()
    problem = _problem(scores, threshold, alpha, smoothing, left_out)
    problem.value, problem.support = value.data_ptr(), support.data_ptr()
    if smoothing:
        problem.total = total.data_ptr()
    native.functions().headwise_loss_forward(ctypes.byref(problem))
    return value, support, total, threshold


def _losses(
    scores: Tensor, target: Tensor, alpha: float, smoothing: float, left_out: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Of every row: the loss without and with smoothing, the support, maximum and threshold."""
    value, support, total, threshold = _read(scores, alpha, smoothing, left_out)
    gold = scores.gather(1, target[:, None])[:, 0].float()
    # rounding may leave a loss of 0 just below it
    plain = loss = (value + (threshold[:, 0] - gold)).clamp_min_(0.0)
    if smoothing:
        n_counted = scores.shape[1]
        if left_out != NO_CLASS:
            n_counted -= 1
            total = total - scores[:, left_out]
        loss = plain + smoothing * (gold - total / max(1, n_counted))
    return plain, loss, support, threshold


def _forward(
    scores: Tensor, target: Tensor, is_real: Tensor, alpha: float, smoothing: float, left_out: int
) -> tuple[Tensor, Tensor, Tensor]:
    _, loss, support, threshold = _losses(scores.contiguous(), target, alpha, smoothing, left_out)
    is_out = ~is_real
    return loss.masked_fill_(is_out, 0.0), support.masked_fill(is_out, 0.0), threshold


def _backward(
    grad: Tensor, scores: Tensor, target: Tensor, is_real: Tensor, threshold: Tensor,
    alpha: float, smoothing: float, left_out: int,
) -> Tensor:  # fmt: skip
    scores = scores.contiguous()
    out = torch.empty_like(scores)
    scale = grad.masked_fill(~is_real, 0.0).float().contiguous()
    problem = _problem(scores, threshold, alpha, smoothing, left_out)
    _write_gradient(problem, out, scale, target)
    return out


def _write_gradient(problem: LossProblem, out: Tensor, scale: Tensor, target: Tensor) -> None:
    """The gradient of the rows' losses, each times its scale; it may overwrite the scores."""
    problem.out, problem.grad = address(out, out.dtype), address(scale, torch.float32)
    problem.target = address(target, torch.int64)
    native.functions().headwise_loss_backward(ctypes.byref(problem))


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    scores, target, is_real, *ctx.settings = inputs
    ctx.save_for_backward(scores, target, is_real, output[2])
    ctx.mark_non_differentiable(output[1], output[2])


def _differentiate(ctx: Any, grad: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
    found = _BACKWARD(grad, *ctx.saved_tensors, *ctx.settings)
    return found, None, None, None, None, None


def _fake(scores: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
    n_rows = scores.shape[0]
    loss = scores.new_empty(n_rows, dtype=torch.float32)
    return loss, torch.empty_like(loss), loss.new_empty(n_rows, 2)


def _fake_backward(grad: Tensor, scores: Tensor, *rest: Any) -> Tensor:
    return torch.empty_like(scores, memory_format=torch.contiguous_format)


_ROWS = "Tensor target, Tensor is_real"
_SETTINGS = "float alpha, float smoothing, int left_out"
_OPERATOR = register(
    f"entmax_loss(Tensor scores, {_ROWS}, {_SETTINGS}) -> (Tensor, Tensor, Tensor)",
    _forward,
    _fake,
    _keep,
    _differentiate,
)
_BACKWARD = register(
    f"entmax_loss_backward(Tensor grad, Tensor scores, {_ROWS}, Tensor threshold, {_SETTINGS})"
    " -> Tensor",
    _backward,
    _fake_backward,
)
