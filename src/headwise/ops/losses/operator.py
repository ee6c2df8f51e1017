"""The losses as a torch operator, `headwise::entmax_loss`: the choice of kernel, and gradients.

Saved for the backward pass are two numbers per row, from which probabilities are recomputed.

Axes: N rows, V classes.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from headwise.ops import dispatch
from headwise.ops.losses import cpu as cpu_losses
from headwise.ops.losses import reference
from headwise.ops.losses import triton as triton_losses
from headwise.ops.register import register_pair
from headwise.ops.triton import device as triton_device


def loss_and_support(
    scores_NV: Tensor, target_N: Tensor, alpha: float, smoothing: float
) -> tuple[Tensor, Tensor]:
    """Compute `headwise.entmax.losses.entmax_loss_and_support`.

    Args:
        scores_NV: float32, float64, or half precision.
        target_N: int64.
        alpha: in [1, 2].
        smoothing: ε of uniform smoothing.
    """
    loss_N, support_N, _ = _OPERATOR(scores_NV, target_N, alpha, smoothing)
    return loss_N, support_N


def sums_(
    scores_NV: Tensor, target_N: Tensor, alpha: float, smoothing: float, with_gradient: bool
) -> tuple[Tensor, ...]:
    """Return sums over rows: loss without smoothing, loss with smoothing, support.

    Args:
        scores_NV: as in `loss_and_support`, contiguous. With `with_gradient` the
            gradient of the loss with smoothing overwrites them.
        target_N: int64.
        alpha, smoothing: as in `loss_and_support`.
    """
    target_N = target_N.contiguous()
    *row_values, threshold = _losses(scores_NV, target_N, alpha, smoothing)
    if with_gradient:
        scale = torch.ones_like(threshold[:, 0])
        _write_gradient(scores_NV, threshold, scores_NV, scale, target_N, alpha, smoothing)
    return tuple(values.sum() for values in row_values)


def _losses(
    scores: Tensor, target: Tensor, alpha: float, smoothing: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return per row: loss without and with smoothing, support, (maximum, threshold)."""
    value, support, total, threshold = _kernels(scores, alpha).read(scores, alpha, smoothing > 0)
    plain, loss = losses_of(scores, target, value, threshold[:, 0], total, smoothing)
    return plain, loss, support, threshold


def losses_of(
    scores_NV: Tensor, target_N: Tensor, value_N: Tensor, top_N: Tensor,
    total_N: Tensor | None, smoothing: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return the losses of rows without and with smoothing.

    Raises ValueError for a target that is no class, on a CPU.

    Args:
        scores_NV, target_N, smoothing: as in `loss_and_support`.
        value_N: <p, z> + H(p) for scores z minus `top_N`.
        total_N: sums of the scores; None without smoothing.
    """
    try:
        gold_N = scores_NV.gather(1, target_N[:, None])[:, 0].to(value_N.dtype)
    except RuntimeError as error:
        if "out of bounds" not in str(error):
            raise
        raise ValueError(f"a target is no class: {error}") from error
    # rounding may make a loss of 0 slightly negative
    plain_N = (value_N + (top_N - gold_N)).clamp_min_(0.0)
    if total_N is None:
        return plain_N, plain_N
    return plain_N, plain_N + smoothing * (gold_N - total_N / scores_NV.shape[1])


def _kernels(scores: Tensor, alpha: float) -> ModuleType:
    """Return the module that computes the losses of such scores."""
    kernels = {dispatch.CPP: cpu_losses, dispatch.TRITON: triton_losses}
    return kernels.get(dispatch.losses(scores, alpha).kernel, reference)


def _write_gradient(
    scores: Tensor, threshold: Tensor, out: Tensor, scale: Tensor, target: Tensor,
    alpha: float, smoothing: float,
) -> None:  # fmt: skip
    tensors = (scores, threshold, out, scale, target)
    eps_v = smoothing / max(scores.shape[1], 1)
    _kernels(scores, alpha).write_gradient(*tensors, alpha, smoothing, eps_v)


def _forward(
    scores: Tensor, target: Tensor, alpha: float, smoothing: float
) -> tuple[Tensor, Tensor, Tensor]:
    _, loss, support, threshold = _losses(scores.contiguous(), target, alpha, smoothing)
    return loss, support, threshold


def _backward(
    grad: Tensor, scores: Tensor, target: Tensor, _support: Tensor, threshold: Tensor,
    alpha: float, smoothing: float, _with_last: bool,
) -> Tensor:  # fmt: skip
    scores, threshold, scale, target = (x.contiguous() for x in (scores, threshold, grad, target))
    out = torch.empty_like(scores)
    _write_gradient(scores, threshold, out, scale, target, alpha, smoothing)
    return out


def _fake(scores: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
    n_rows = scores.shape[0]
    loss = scores.new_empty(n_rows, dtype=torch.promote_types(scores.dtype, torch.float32))
    return loss, torch.empty_like(loss), loss.new_empty(n_rows, 2)


def _fake_backward(grad: Tensor, scores: Tensor, *rest: Any) -> Tensor:
    return torch.empty_like(scores, memory_format=torch.contiguous_format)


_OPERATOR = register_pair(
    "entmax_loss",
    "Tensor scores NV, Tensor target N int64",
    "float alpha, float smoothing",
    "N float32 float64",
    "Tensor support N float32 float64, Tensor threshold N2 float32 float64",
    1,
    _forward,
    _fake,
    _backward,
    _fake_backward,
    (*triton_device.DTYPES, torch.float64),
)
