"""Dropout by the C++ kernel."""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import Tensor

from headwise.ops.cpp import build
from headwise.ops.cpp.call import DTYPES, address, structure
from headwise.ops.draws import Draws

DropoutProblem: Any = structure("DropoutProblem")


def drop(values: Tensor, draws: Draws) -> Tensor:
    """Return the values after dropout.

    The dropped entries depend only on seed, rate and position, not on values or threads.

    Args:
        values: contiguous, and supported by `supports`.
        draws: seed and rate.
    """
    out = torch.empty_like(values)
    problem = DropoutProblem(
        source=address(values, DTYPES),
        out=out.data_ptr(),
        n=values.numel(),
        seed=draws.seed,
        n_kept=draws.n_kept,
        is_half=values.dtype is torch.bfloat16,
        n_threads=torch.get_num_threads(),
    )
    build.functions().headwise_dropout(ctypes.byref(problem))
    return out
