"""Layer norm in front of linear maps in bfloat16, where a residual branch starts.

In training under autocast, torch writes float32, and the next linear layer casts it; backward,
torch casts the gradient, differentiates, and adds the gradient of the residual stream, each in a
pass of its own. The C++ kernel needs one pass forward and one backward. It computes in float32.
Otherwise torch's layer norm is used.

Axes: D width.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from headwise.ops import dispatch
from headwise.ops.linear import has_hooks, training_dtype
from headwise.ops.norm.cpu import Branch
from headwise.ops.register import is_transformed


def branch(states: Tensor, norm: nn.LayerNorm) -> tuple[Tensor, Tensor]:
    """Return the states (..., D), for the residual sum, and their layer norm.

    The latter is bfloat16 in training under autocast in bfloat16, if the CPU supports it; it can
    then be differentiated once.
    """
    if not _has_kernel(states, norm):
        return states, norm(states)
    inputs = (x.contiguous() for x in (states, norm.weight, norm.bias))
    stream, normed = Branch.apply(*inputs, norm.eps)  # type: ignore[no-untyped-call]
    return stream, normed


def _has_kernel(states: Tensor, norm: nn.LayerNorm) -> bool:
    if training_dtype() is not torch.bfloat16 or is_transformed():
        return False
    if type(norm) is not nn.LayerNorm or has_hooks(norm) or type(states) is not Tensor:
        return False
    parameters = norm.weight, norm.bias
    if any(type(x) is not nn.Parameter or x.shape != states.shape[-1:] for x in parameters):
        return False
    is_supported = all(x.is_cpu and x.dtype is torch.float32 for x in (states, *parameters))
    return is_supported and dispatch.cpp_or_torch(states).kernel == dispatch.CPP
