"""Dropout by the C++ kernels, alone or fused with ReLU or a residual sum."""

from __future__ import annotations

import ctypes
from enum import IntEnum
from typing import Any

import torch
from torch import Tensor

from headwise.ops.cpp import build
from headwise.ops.cpp.call import DTYPES, address, structure
from headwise.ops.draws import Draws


class Before(IntEnum):
    """The operation before dropout; numbered as in cpp/dropout.h."""

    NOTHING = 0
    RELU = 1
    RELU_BACKWARD = 2


DropoutProblem: Any = structure("DropoutProblem")


def drop(values: Tensor, draws: Draws, dtype: torch.dtype | None = None) -> Tensor:
    """Return the values after dropout, in `dtype`, by default theirs.

    The dropped entries depend only on seed, rate and position, not on values or threads. All
    tensors here must be contiguous and supported by `supports`.
    """
    return _call(values, torch.empty_like(values, dtype=dtype), draws)


def drop_and_add(values: Tensor, added: Tensor, draws: Draws) -> Tensor:
    """Return `added + drop(values)` in the dtype of `added`, rounded once."""
    return _call(values, torch.empty_like(added), draws, added=added)


def drop_relu(values: Tensor, draws: Draws) -> Tensor:
    """Return `drop(relu(values))`."""
    return _call(values, torch.empty_like(values), draws, Before.RELU)


def drop_relu_backward(grad: Tensor, dropped: Tensor, draws: Draws) -> Tensor:
    """Return the gradient of the values, given that of `dropped`, the result of `drop_relu`."""
    return _call(grad, torch.empty_like(grad), draws, Before.RELU_BACKWARD, result=dropped)


def _call(
    values: Tensor,
    out: Tensor,
    draws: Draws,
    before: Before = Before.NOTHING,
    added: Tensor | None = None,
    result: Tensor | None = None,
) -> Tensor:
    problem = DropoutProblem(
        source=address(values, DTYPES),
        out=address(out, DTYPES, values.shape),
        added=None if added is None else address(added, (out.dtype,), values.shape),
        result=None if result is None else address(result, (out.dtype,), values.shape),
        n=values.numel(),
        seed=draws.seed,
        n_kept=draws.n_kept,
        before=before,
        is_source_half=values.dtype is torch.bfloat16,
        is_out_half=out.dtype is torch.bfloat16,
        n_threads=torch.get_num_threads(),
    )
    build.functions().headwise_dropout(ctypes.byref(problem))
    return out
