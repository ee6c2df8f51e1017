"""The choice of kernel and its reason: a function per family with several kernels.

All criteria for kernels are here: device, dtype, missing compilers, failed checks, few queries,
patterns, an α per query, and speed. For torch, an operator is the same on every device.

A built library is checked before its first use (`check.py`), also while a graph is traced. One
whose results differ is off in this process: the reference computes instead, with one warning.

Axes: B batch, H heads, Q and K numbers of queries and keys, E head width, N rows, V classes.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from headwise.compilation import constant_in_graphs, is_for_export, is_traced
from headwise.ops import library
from headwise.ops.attention import cpu_few
from headwise.ops.attention import triton as triton_attention
from headwise.ops.cpp import build, call
from headwise.ops.cpp.call import DTYPES
from headwise.ops.family import POWERS, Power
from headwise.ops.library import Library, matmul_precision
from headwise.ops.triton import device as triton_device
from headwise.ops.visible import Visible

log = logging.getLogger(__name__)

CPP, TRITON, TORCH = library.CPP, library.TRITON, "torch"
CPP_FEW = "C++, few queries"
WEIGHTS = "weights are formed"  # by the maps; torch multiplies them by the values
CHECKED = "checked"
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


# Whether a condition holds, and then the kernel and the reason; the first case that holds is taken.
Case = tuple[bool, str, str | None]

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


def dropout(values: Tensor) -> Choice:
    """Return the kernel of dropout: C++ or torch."""
    if is_traced():
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
    visible: Visible,
    *,
    dropout: float = 0.0,
    alpha_per_query: bool = False,
    has_bias: bool = False,
) -> Choice:
    """Return the kernel of attention: C++ for few or many queries, Triton, torch, or weights.

    Args:
        query_BHQE, key_BHKE, value_BHKE: of one dtype.
        power: the map.
        visible: which keys.
        dropout: rate on the weights.
        alpha_per_query: whether α differs by query.
        has_bias: whether scores have a bias by distance.
    """
    heads, device, dtype = (query_BHQE, key_BHKE, value_BHKE), query_BHQE.device, query_BHQE.dtype
    is_softmax, n_keys = power is Power.EXP, key_BHKE.shape[2]
    has_padded_bias = has_bias and not visible.is_equal_in_batch
    fallback = TORCH if is_softmax and not has_padded_bias else WEIGHTS

    def choices() -> Iterator[Case]:
        yield is_for_export(), WEIGHTS, "an exported model runs without headwise"
        yield device.type == "meta", CPP, SHAPES
        has_cpp = call.supports(query_BHQE)
        is_few = dropout == 0 and cpu_few.supports(*heads)
        yield is_few and _failure(CPP) is None, CPP_FEW, CHECKED
        # torch's softmax is slow with dropout, in bfloat16, and for long rows with a bias, of which
        # it forms the matrix
        is_biased = has_bias and n_keys >= MIN_BIASED_KEYS
        is_slow = dropout > 0 or dtype is torch.bfloat16 or is_biased
        if has_cpp and (is_slow or (fallback == WEIGHTS and n_keys >= MIN_KEYS)):
            yield from _if_right(fallback, CPP)
        yield is_softmax and has_padded_bias and device.type != "cpu", WEIGHTS, PADDED_BIAS
        no_triton = device.type == "cpu" and not triton_device.is_interpreted()
        if is_softmax or no_triton:
            yield True, fallback, SHORT_ROWS if has_cpp else _without_cpp(device.type, dtype)
        reason = triton_attention.unsupported_reason(*heads, visible, alpha_per_query)
        yield reason is not None, WEIGHTS, reason
        settings = device, dtype, power, _width(*heads), visible.window is not None
        yield from _if_right(WEIGHTS, TRITON, *settings)

    return _first(choices())


def sparse_attention(
    query_BHNE: Tensor, value_BHNE: Tensor, power: Power, *,
    alpha_per_query: bool = False,
) -> Choice:  # fmt: skip
    """Return the kernel of block-sparse attention: C++, Triton or weights."""
    heads, device, dtype = (query_BHNE, query_BHNE, value_BHNE), query_BHNE.device, query_BHNE.dtype

    def choices() -> Iterator[Case]:
        yield is_traced(), WEIGHTS, "a pattern under torch.compile, export or torch.func"
        if call.supports(query_BHNE):
            yield from _if_right(WEIGHTS, CPP)
        if device.type == "cpu" and not triton_device.is_interpreted():
            yield True, WEIGHTS, _without_cpp(device.type, dtype)
        reason = triton_attention.unsupported_reason(*heads, alpha_per_query=alpha_per_query)
        yield reason is not None, WEIGHTS, reason
        yield from _if_right(WEIGHTS, TRITON, device, dtype, power, _width(*heads), True)

    return _first(choices())


def _first(cases: Iterable[Case]) -> Choice:
    """Return the kernel and the reason of the first case whose condition holds."""
    for holds, kernel, reason in cases:
        if holds:
            return Choice(kernel, str(reason))
    raise AssertionError("the last case always holds")


def _if_right(fallback: str, kernel: str, *settings: Any) -> Iterator[Case]:
    """Yield the kernel, and before it the fallback if the kernel's library failed the check."""
    failure = _failure(kernel, *settings)
    yield failure is not None, fallback, failure
    yield True, kernel, CHECKED


def _width(query: Tensor, key: Tensor, value: Tensor) -> int:
    """Return the width of heads for Triton: the narrower ones are padded."""
    return max(query.shape[3], value.shape[3])


def _row_kernel(scores: Tensor, power: Power) -> Choice:
    if not call.supports(scores) and triton_device.supports(scores):
        return _checked(TORCH, TRITON, scores.device, scores.dtype, power)
    return cpp_or_torch(scores)


def _checked(fallback: str, kernel: str, *settings: Any) -> Choice:
    """Return the kernel, or the fallback if its library failed the check."""
    return _first(_if_right(fallback, kernel, *settings))


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
