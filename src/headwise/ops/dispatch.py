"""The choice of kernel and its reason: one function per operator family.

torch's dispatcher chooses by device. All other criteria are here: dtypes, missing compilers,
verdicts of `verification`, few queries, patterns, an α per query, and speed.

With a float64 `reference`, cases without a verdict are verified. Operators have no reference: there
torch computes cases without a verdict.

Axes: B batch, H heads, Q and K numbers of queries and keys, E head width, N rows, V classes.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from headwise.compilation import constant_in_graphs
from headwise.ops import register as operators
from headwise.ops import verification
from headwise.ops.attention import cpu_few
from headwise.ops.attention import triton as triton_attention
from headwise.ops.checks import Case, Reference
from headwise.ops.cpp import build, call
from headwise.ops.cpp.call import DTYPES
from headwise.ops.family import POWERS, Power
from headwise.ops.triton import device as triton_device

CPP, TRITON, TORCH = "C++", "Triton", "torch"
CPP_FEW = "C++, few queries"
WEIGHTS = "weights are formed"  # by the maps; torch multiplies them by the values
SHORT_ROWS = "rows are short"
PADDED_BIAS = "with a bias and padding or documents, torch would need a mask per head and sentence"
# Minimum number of keys, padding included, from which attention without weights is faster
# without dropout. Results differ by rounding.
MIN_KEYS = 128


class Choice(NamedTuple):
    """A kernel, and the reason for it."""

    kernel: str
    reason: str

    def __str__(self) -> str:
        return f"{self.kernel} ({self.reason})"


def maps(scores: Tensor, power: Power, reference: Reference | None = None) -> Choice:
    """Return the kernel of the maps from scores to weights: C++, Triton or torch."""
    return _row_kernel("maps", scores, power, reference)


def losses(scores_NV: Tensor, alpha: float, reference: Reference | None = None) -> Choice:
    """Return the kernel of losses over rows of classes: C++, Triton or torch."""
    return _row_kernel("losses", scores_NV, POWERS.get(alpha, Power.ANY), reference)


def dropout(values: Tensor) -> Choice:
    """Return the kernel of dropout: C++ or torch. Verifies, so do not call it in operators."""
    if torch.compiler.is_compiling():
        return Choice(TORCH, "torch.compile generates dropout")
    if not call.supports(values):
        return Choice(TORCH, _without_cpp(values.device.type, values.dtype))
    case = Case("C++ dropout", "cpu", values.dtype)
    verification.verify(case, None)
    return _verified(CPP, case, None)


def attention(
    query_BHQE: Tensor,
    key_BHKE: Tensor,
    value_BHKE: Tensor,
    power: Power,
    dropout: float,
    has_pattern: bool,
    alpha_per_query: bool,
    padded_bias: bool,
    reference: Reference | None = None,
) -> Choice:
    """Return the kernel of attention: C++ for few or many queries, Triton, torch, or weights.

    Args:
        query_BHQE, key_BHKE, value_BHKE: of one dtype.
        power: the map.
        dropout: rate on the weights.
        has_pattern: whether keys are restricted beyond padding on the right and causality.
        alpha_per_query: whether α differs by query.
        padded_bias: whether scores have a bias by distance, and masks of sentences differ.
        reference: see the module docstring.
    """
    device, dtype = query_BHQE.device.type, query_BHQE.dtype
    widths = query_BHQE.shape[3], value_BHKE.shape[3]
    if dropout == 0 and cpu_few.supports(query_BHQE, key_BHKE, value_BHKE):
        case = Case("C++ attention of few queries", device, dtype, power, *widths)
        few = _verified(CPP_FEW, case, reference)
        if few.kernel == CPP_FEW:
            return few
    fallback = TORCH if power is Power.EXP and not padded_bias else WEIGHTS
    reason = _without_cpp(device, dtype)
    if call.supports(query_BHQE):
        reason = SHORT_ROWS
        is_half = dtype is torch.bfloat16  # torch's softmax is slow for it, and with dropout
        if dropout > 0 or is_half or (fallback == WEIGHTS and _is_long(key_BHKE)):
            case = Case("C++ attention", device, dtype, power, *widths, dropout > 0)
            return _verified(CPP, case, reference, fallback)
    if power is Power.EXP or (device == "cpu" and not triton_device.is_interpreted()):
        needs_mask = padded_bias and power is Power.EXP and device != "cpu"
        return Choice(fallback, PADDED_BIAS if needs_mask else reason)
    heads = (query_BHQE, key_BHKE, value_BHKE)
    unsupported = triton_attention.unsupported_reason(*heads, has_pattern, alpha_per_query)
    if unsupported is not None:
        return Choice(WEIGHTS, unsupported)
    width = max(widths)  # the narrower heads are padded
    suffix = "" if triton_attention.is_resident(key_BHKE, width) else ", streaming"
    case = Case(f"Triton attention{suffix}", device, dtype, power, width, width, dropout > 0)
    return _verified(TRITON, case, reference, WEIGHTS)


def sparse_attention(
    query_BHNE: Tensor, value_BHNE: Tensor, power: Power, dropout: float, alpha_per_query: bool,
    has_documents: bool, reference: Reference | None = None,
) -> Choice:  # fmt: skip
    """Return the kernel of block-sparse attention: C++, Triton or weights. Not in operators."""
    device, dtype = query_BHNE.device.type, query_BHNE.dtype
    if torch.compiler.is_compiling() or operators.is_transformed():
        return Choice(WEIGHTS, "a pattern under torch.compile or torch.func")
    kernel, widths = CPP, (query_BHNE.shape[3], value_BHNE.shape[3])
    if not call.supports(query_BHNE):
        if device == "cpu" and not triton_device.is_interpreted():
            return Choice(WEIGHTS, _without_cpp(device, dtype))
        heads = (query_BHNE, query_BHNE, value_BHNE)
        unsupported = triton_attention.unsupported_reason(*heads, has_documents, alpha_per_query)
        if unsupported is not None:
            return Choice(WEIGHTS, unsupported)
        kernel, widths = TRITON, (max(widths),) * 2  # the narrower heads are padded
    case = Case(f"{kernel} sparse attention", device, dtype, power, *widths, dropout > 0)
    return _verified(kernel, case, reference, WEIGHTS)


def _is_long(key_BHKE: Tensor) -> bool:
    return key_BHKE.shape[2] >= MIN_KEYS


def _row_kernel(family: str, scores: Tensor, power: Power, reference: Reference | None) -> Choice:
    device, dtype = scores.device.type, scores.dtype
    if call.supports(scores):
        return _verified(CPP, Case(f"C++ {family}", device, dtype, power), reference)
    if triton_device.supports(scores) and (family, power) != ("maps", Power.EXP):
        return _verified(TRITON, Case(f"Triton {family}", device, dtype, power), reference)
    return Choice(TORCH, _without_cpp(device, dtype))


def _verified(
    kernel: str, case: Case, reference: Reference | None, fallback: str = TORCH
) -> Choice:
    if torch.compiler.is_compiling():
        wrong = verification.verdict_in_graph(reference, *case)
    else:
        if reference is not None:
            verification.verify(case, reference)
        wrong = verification.verdict(case)
    return Choice(kernel, "verified") if wrong is None else Choice(fallback, wrong)


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
