"""Which kernel computes, and why: one function an operator family.

torch's dispatcher chooses by device. Whatever else decides stands here: types, compilers that are
missing, verdicts of `verification`, few queries, patterns, an α of each query, and what pays.

A function is handed the float64 reference where a case without a verdict may be verified, and goes
without one inside of operators; what has no verdict is left to torch.

Letters: B batch, H heads, Q and K numbers of queries and keys, E head width, N rows, V classes.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from headwise.compilation import constant_in_graphs
from headwise.kernels import (
    native,
    native_attention,
    triton_attention,
    triton_device,
    verification,
)
from headwise.kernels.problem import POWERS, Power
from headwise.kernels.verification import Case, Reference

CPP, TRITON, TORCH = "C++", "Triton", "torch"
FEW = "C++, few queries"
WEIGHTS = "weights are formed"  # by the maps, and multiplied by torch
SHORT_ROWS = "rows are short"
PADDED_BIAS = "with a bias and padding, torch would need a mask of every head of every sentence"
# Rows of fewer keys, padding counted, are done sooner with their weights kept, unless there is
# dropout to save. The results of both ways differ by rounding.
KEYS_WORTH_IT = 128


class Choice(NamedTuple):
    """A kernel, and the reason for it."""

    kernel: str
    reason: str

    def __str__(self) -> str:
        return f"{self.kernel} ({self.reason})"


def maps(scores: Tensor, power: Power, reference: Reference | None = None) -> Choice:
    """Scores to weights, and gradients: C++, Triton or torch."""
    return _of_rows("maps", scores, power, reference)


def losses(scores_NV: Tensor, alpha: float, reference: Reference | None = None) -> Choice:
    """Losses over rows of classes: C++, Triton or torch."""
    return _of_rows("losses", scores_NV, POWERS.get(alpha, Power.ANY), reference)


def dropout(values: Tensor) -> Choice:
    """Dropout of entries: C++ or torch. Not for operators, as it may verify."""
    if torch.compiler.is_compiling():
        return Choice(TORCH, "a compiled graph has its own")
    if not native.takes(values):
        return Choice(TORCH, _without_cpp(values.device.type, values.dtype))
    case = Case("C++ dropout", "cpu", values.dtype)
    verification.verify(case, None)
    return _if_right(CPP, case, None)


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
    """Attention without weights: C++ of few or many queries, Triton, torch's own, or none.

    Args:
        query_BHQE, key_BHKE, value_BHKE: of one type.
        power: the map.
        dropout: share of the weights that is dropped.
        has_pattern: keys are restricted by more than padding on the right and causality.
        alpha_per_query: α is not one number a head.
        padded_bias: scores have a bias by distance, and sentences padding of their own.
        reference: see above.
    """
    device, dtype, width = query_BHQE.device.type, query_BHQE.dtype, query_BHQE.shape[3]
    if dropout == 0 and native_attention.takes(query_BHQE, key_BHKE, value_BHKE):
        case = Case("C++ attention of few queries", device, dtype, power, width)
        few = _if_right(FEW, case, reference)
        if few.kernel == FEW:
            return few
    instead = TORCH if power is Power.EXP and not padded_bias else WEIGHTS
    reason = _without_cpp(device, dtype)
    if native.takes(query_BHQE):
        reason = SHORT_ROWS
        is_half = dtype is torch.bfloat16  # torch's softmax is slow there, and with dropout
        if dropout > 0 or is_half or (instead == WEIGHTS and _is_long(key_BHKE)):
            case = Case("C++ attention", device, dtype, power, width, dropout > 0)
            return _if_right(CPP, case, reference, instead)
    if power is Power.EXP or (device == "cpu" and not triton_device.is_interpreted()):
        is_refused = padded_bias and power is Power.EXP and device != "cpu"
        return Choice(instead, PADDED_BIAS if is_refused else reason)
    heads = (query_BHQE, key_BHKE, value_BHKE)
    refusal = triton_attention.refusal(*heads, has_pattern, alpha_per_query)
    if refusal is not None:
        return Choice(WEIGHTS, refusal)
    for_streams = "" if triton_attention.holds_rows(key_BHKE) else ", streaming"
    case = Case(f"Triton attention{for_streams}", device, dtype, power, width, dropout > 0)
    return _if_right(TRITON, case, reference, WEIGHTS)


def _is_long(key_BHKE: Tensor) -> bool:
    return key_BHKE.shape[2] >= KEYS_WORTH_IT


def _of_rows(family: str, scores: Tensor, power: Power, reference: Reference | None) -> Choice:
    device, dtype = scores.device.type, scores.dtype
    if native.takes(scores):
        return _if_right(CPP, Case(f"C++ {family}", device, dtype, power), reference)
    if triton_device.takes(scores) and (family, power) != ("maps", Power.EXP):
        return _if_right(TRITON, Case(f"Triton {family}", device, dtype, power), reference)
    return Choice(TORCH, _without_cpp(device, dtype))


def _if_right(kernel: str, case: Case, reference: Reference | None, instead: str = TORCH) -> Choice:
    if torch.compiler.is_compiling():
        refusal = verification.verdict_in_graph(*case)
    else:
        if reference is not None:
            verification.verify(case, reference)
        refusal = verification.verdict(case)
    return Choice(kernel, "verified") if refusal is None else Choice(instead, refusal)


@constant_in_graphs
def _without_cpp(device: str, dtype: torch.dtype) -> str:
    """Why there is no kernel for such rows."""
    if device == "cpu" and dtype in native.TYPES:
        return f"no C++ kernels ({native.reason_without()})"
    if device == "cuda" and dtype in triton_device.TYPES:
        return triton_device.device_refusal(torch.device(device)) or "torch has a kernel of its own"
    return f"no kernels for {str(dtype).removeprefix('torch.')} on {device}"
