"""The choice of kernel and its reason: a function per family with several kernels.

All criteria are here: device, dtype, missing compilers, failed checks, few queries, patterns, an α
per query, and speed. For torch's dispatcher, an operator is the same on every device.

A built library is checked before its first use (`check.py`), also while a graph is traced. One
whose results differ is off in this process: the reference computes instead, with one warning.

Axes: B batch, H heads, Q and K numbers of queries and keys, E head width, N rows, V classes.
"""

from __future__ import annotations

import logging
import threading
from typing import Any, NamedTuple

import torch
from torch import Tensor

from headwise.compilation import constant_in_graphs, is_for_export
from headwise.ops import library
from headwise.ops import register as operators
from headwise.ops.attention import cpu_few
from headwise.ops.attention import triton as triton_attention
from headwise.ops.cpp import build, call
from headwise.ops.cpp.call import DTYPES
from headwise.ops.family import POWERS, Power
from headwise.ops.library import Library, matmul_precision
from headwise.ops.triton import device as triton_device

log = logging.getLogger(__name__)

CPP, TRITON, TORCH = library.CPP, library.TRITON, "torch"
CPP_FEW = "C++, few queries"
WEIGHTS = "weights are formed"  # by the maps; torch multiplies them by the values
SHORT_ROWS = "rows are short"
SHAPES = "shapes alone, for estimates: other kernels save the same for the backward pass"
PADDED_BIAS = "with a bias and padding or documents, torch would need a mask per head and sentence"
# Minimum number of keys, padding included, from which attention without weights is faster
# without dropout. Results differ by rounding.
MIN_KEYS = 128
MIN_BIASED_KEYS = 1024  # the same for softmax with a bias by distance


class Choice(NamedTuple):
    """A kernel, and the reason for it."""

    kernel: str
    reason: str

    def __str__(self) -> str:
        return f"{self.kernel} ({self.reason})"


_FAILURES: dict[Library, str | None] = {}  # of the check; None: none
_CHECKING = threading.Lock()


def failures() -> dict[Library, str]:
    """Return the libraries that are off, and how their results differed."""
    return {built: reason for built, reason in _FAILURES.items() if reason is not None}


def maps(scores: Tensor, power: Power) -> Choice:
    """Return the kernel of the maps from scores to weights: C++, Triton or torch."""
    return cpp_or_torch(scores) if power is Power.EXP else _row_kernel(scores, power)


def losses(scores_NV: Tensor, alpha: float) -> Choice:
    """Return the kernel of losses over rows of classes: C++, Triton or torch."""
    return _row_kernel(scores_NV, POWERS.get(alpha, Power.ANY))


def _is_traced() -> bool:
    """Return whether torch.compile, an export or torch.func traces this call."""
    return torch.compiler.is_compiling() or is_for_export() or operators.is_transformed()


def dropout(values: Tensor) -> Choice:
    """Return the kernel of dropout: C++ or torch."""
    if _is_traced():
        return Choice(TORCH, "torch.compile generates dropout, torch.func transforms it")
    return cpp_or_torch(values)


def cpp_or_torch(values: Tensor) -> Choice:
    """Return C++ where its kernels support the values, else torch."""
    if not call.supports(values):
        return Choice(TORCH, _without_cpp(values.device.type, values.dtype))
    return _checked(TORCH, CPP)


def attention(
    query_BHQE: Tensor,
    key_BHKE: Tensor,
    value_BHKE: Tensor,
    power: Power,
    dropout: float,
    has_pattern: bool,
    alpha_per_query: bool,
    has_bias: bool,
    has_padding: bool,
) -> Choice:
    """Return the kernel of attention: C++ for few or many queries, Triton, torch, or weights.

    Args:
        query_BHQE, key_BHKE, value_BHKE: of one dtype.
        power: the map.
        dropout: rate on the weights.
        has_pattern: whether keys are restricted beyond padding on the right and causality.
        alpha_per_query: whether α differs by query.
        has_bias: whether scores have a bias by distance.
        has_padding: whether the masks of sentences differ.
    """
    device, dtype = query_BHQE.device.type, query_BHQE.dtype
    if is_for_export():
        return Choice(WEIGHTS, "an exported model runs without headwise")
    if device == "meta":
        return Choice(CPP, SHAPES)
    if dropout == 0 and cpu_few.supports(query_BHQE, key_BHKE, value_BHKE):
        few = _checked(TORCH, CPP)
        if few.kernel == CPP:
            return few._replace(kernel=CPP_FEW)
    padded_bias = has_bias and has_padding
    fallback = TORCH if power is Power.EXP and not padded_bias else WEIGHTS
    reason = _without_cpp(device, dtype)
    if call.supports(query_BHQE):
        reason = SHORT_ROWS
        is_half = dtype is torch.bfloat16
        # torch's softmax is slow with dropout, in bfloat16, and for long rows with a bias, of which
        # it forms the matrix
        is_biased = has_bias and key_BHKE.shape[2] >= MIN_BIASED_KEYS
        is_slow = dropout > 0 or is_half or is_biased
        if is_slow or (fallback == WEIGHTS and _is_long(key_BHKE)):
            return _checked(fallback, CPP)
    if power is Power.EXP or (device == "cpu" and not triton_device.is_interpreted()):
        needs_mask = padded_bias and power is Power.EXP and device != "cpu"
        return Choice(fallback, PADDED_BIAS if needs_mask else reason)
    heads = (query_BHQE, key_BHKE, value_BHKE)
    unsupported = triton_attention.unsupported_reason(*heads, has_pattern, alpha_per_query)
    if unsupported is not None:
        return Choice(WEIGHTS, unsupported)
    return _checked(WEIGHTS, TRITON, query_BHQE.device, dtype, power, _width(*heads))


def sparse_attention(
    query_BHNE: Tensor, value_BHNE: Tensor, power: Power, alpha_per_query: bool,
    has_documents: bool,
) -> Choice:  # fmt: skip
    """Return the kernel of block-sparse attention: C++, Triton or weights."""
    device, dtype = query_BHNE.device, query_BHNE.dtype
    if _is_traced():
        return Choice(WEIGHTS, "a pattern under torch.compile, export or torch.func")
    if call.supports(query_BHNE):
        return _checked(WEIGHTS, CPP)
    if device.type == "cpu" and not triton_device.is_interpreted():
        return Choice(WEIGHTS, _without_cpp(device.type, dtype))
    heads = (query_BHNE, query_BHNE, value_BHNE)
    unsupported = triton_attention.unsupported_reason(*heads, has_documents, alpha_per_query)
    if unsupported is not None:
        return Choice(WEIGHTS, unsupported)
    return _checked(WEIGHTS, TRITON, device, dtype, power, _width(*heads), True)


def _width(query: Tensor, key: Tensor, value: Tensor) -> int:
    """Return the width of heads for Triton: the narrower ones are padded."""
    return max(query.shape[3], value.shape[3])


def _is_long(key_BHKE: Tensor) -> bool:
    return key_BHKE.shape[2] >= MIN_KEYS


def _row_kernel(scores: Tensor, power: Power) -> Choice:
    if not call.supports(scores) and triton_device.supports(scores):
        return _checked(TORCH, TRITON, scores.device, scores.dtype, power)
    return cpp_or_torch(scores)


def _checked(fallback: str, kernel: str, *settings: Any) -> Choice:
    """Return the kernel, or the fallback if its library failed the check."""
    failure = _failure(kernel, *settings)
    return Choice(kernel, "checked") if failure is None else Choice(fallback, failure)


@constant_in_graphs
def _failure(*fields: Any) -> str | None:
    """Return how the results of a library differ from the reference, or None if they do not."""
    built = Library(*fields)._replace(precision=matmul_precision())
    if built not in _FAILURES:
        from headwise.ops import check  # it imports all kernels

        with _CHECKING:
            if built not in _FAILURES:
                _FAILURES[built] = check.failure(built)
                if _FAILURES[built] is not None:
                    log.warning("%s are off, torch computes instead: %s", built, _FAILURES[built])
    return _FAILURES[built]


@constant_in_graphs
def _without_cpp(device: str, dtype: torch.dtype) -> str:
    """Return why there is no kernel for rows of this dtype on this device."""
    if device == "cpu" and dtype in DTYPES:
        return f"no C++ kernels ({build.unavailable_reason()})"
    if device == "cuda" and dtype in triton_device.DTYPES:
        return (
            triton_device.unavailable_reason(torch.device(device)) or "torch's own kernel is used"
        )
    return f"no kernels for {str(dtype).removeprefix('torch.')} on {device}"
