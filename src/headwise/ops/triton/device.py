"""Availability of the Triton kernels. Triton is imported at the first call."""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import os
import shutil
import sysconfig
from pathlib import Path

import torch
from torch import Tensor

from headwise.compilation import constant_in_graphs
from headwise.ops.arguments import check_tensor

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
HAS_TRITON = importlib.util.find_spec("triton") is not None


def _missing_tool() -> str | None:
    """Return what is missing to compile Triton's launcher, which is written in C, or None."""
    if not (os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")):
        return "no C compiler for Triton: CC is not set, gcc and clang are not found"
    scheme = sysconfig.get_default_scheme()
    # posix_local is Debian's scheme; Triton uses posix_prefix instead
    headers = sysconfig.get_path("include", "posix_prefix" if scheme == "posix_local" else scheme)
    if not Path(headers, "Python.h").is_file():
        return f"no Python.h for Triton in {headers}: install Python's headers"
    return None


MISSING_TOOL = _missing_tool() if HAS_TRITON else None


def is_interpreted() -> bool:
    """Return whether Triton kernels run in its interpreter, on a CPU."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def unavailable_reason(device: torch.device) -> str | None:
    """Return why kernels cannot run on a device, for the log, or None if they can."""
    if not HAS_TRITON:
        return "triton is not installed (pip install 'headwise[triton]')"
    if device.type == "cuda":
        if torch.version.hip is not None:
            return "the kernels are for NVIDIA GPUs"
        if torch.cuda.get_device_capability(device) < (8, 0):
            return "the GPU is older than compute capability 8.0"
        return MISSING_TOOL
    if device.type == "cpu" and is_interpreted():
        return None
    return f"the kernels are for GPUs, the tensors are on {device.type}"


def supports(values: Tensor) -> bool:
    """Return whether kernels of rows support the values: half precision or float32 on a GPU."""
    return values.device.type == "cuda" and values.dtype in DTYPES and _can_run(values.device)


@constant_in_graphs  # takes a device: torch.compile would compute the values of a tensor
def _can_run(device: torch.device) -> bool:
    return unavailable_reason(device) is None


def check(*tensors: Tensor) -> None:
    """Check that the kernels support the tensors.

    Raises:
        TypeError: a dtype is not in `DTYPES`, or a tensor is not contiguous, or on another device.
    """
    device = tensors[0].device
    for values in tensors:
        check_tensor("a tensor of the Triton kernels", values, DTYPES, values.shape, device)
        if not values.is_contiguous():
            raise TypeError(f"the kernels need contiguous tensors, got strides {values.stride()}")


def on_device(tensor: Tensor) -> contextlib.AbstractContextManager[object]:
    """Return a context in which the tensor's GPU is the current device, for launches."""
    if tensor.device.type == "cuda":
        return torch.cuda.device(tensor.device)
    return contextlib.nullcontext()


def power_of_two(number: int, at_least: int = 16) -> int:
    """Return the smallest power of two that is at least `number` and `at_least`."""
    return max(at_least, 1 << (number - 1).bit_length())
