"""Dropout by the C++ kernels."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from headwise.entmax import native
from headwise.entmax.native import Draws, address


class DropoutProblem(ctypes.Structure):
    """As in csrc/dropout.h."""

    _fields_ = (
        ("source", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("n", ctypes.c_int64),
        ("seed", ctypes.c_uint64),
        ("n_kept", ctypes.c_uint32),
        ("is_half", ctypes.c_int32),
        ("n_threads", ctypes.c_int32),
    )


def drop(values: Tensor, draws: Draws) -> Tensor:
    """Dropout of a contiguous tensor that `native.takes` says yes to.

    Which entries stay depends on seed, rate and place alone, not on the values or the threads.
    """
    dropped = torch.empty_like(values)
    problem = DropoutProblem(
        source=address(values, values.dtype),
        out=dropped.data_ptr(),
        n=values.numel(),
        seed=draws.seed,
        n_kept=draws.n_kept,
        is_half=values.dtype is torch.bfloat16,
        n_threads=torch.get_num_threads(),
    )
    native.functions().headwise_dropout(ctypes.byref(problem))
    return dropped
