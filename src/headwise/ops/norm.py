"""Layer norm in front of linear maps in bfloat16, where a residual branch starts.

In training under autocast, torch writes float32, and the next linear layer casts it; backward,
torch casts the gradient, differentiates, and adds the gradient of the residual stream, each in a
pass of its own. The C++ kernel needs one pass forward and one backward. It computes in float32.
Otherwise torch's layer norm is used.

Axes: N rows, D width, P blocks of rows.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from headwise.ops import dispatch
from headwise.ops.cpp import build
from headwise.ops.cpp.call import structure
from headwise.ops.linear import has_hooks, training_dtype

# A block is computed by one thread, and its sums over rows are apart: bits do not depend on the
# number of threads.
ROWS_OF_BLOCK = 64

NormProblem: Any = structure("NormProblem")


def branch(states: Tensor, norm: nn.LayerNorm) -> tuple[Tensor, Tensor]:
    """Return the states (..., D), for the residual sum, and their layer norm.

    The latter is bfloat16 in training under autocast in bfloat16, if the CPU supports it: then no
    double backward.
    """
    if training_dtype() is torch.bfloat16 and type(norm) is nn.LayerNorm and not has_hooks(norm):
        inputs = states, norm.weight, norm.bias
        is_float = all(x is not None and x.is_cpu and x.dtype is torch.float32 for x in inputs)
        fits = is_float and states.shape[-1:] == norm.weight.shape  # else torch raises the error
        if fits and dispatch.cpp_or_torch(states).kernel == dispatch.CPP:
            contiguous = (x.contiguous() for x in inputs)
            stream, normed = Branch.apply(*contiguous, norm.eps)  # type: ignore[no-untyped-call]
            return stream, normed
    return states, norm(states)


class Branch(torch.autograd.Function):
    """The kernel: states, weight and bias, float32 and contiguous, and ε -> states and norm."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[Tensor, Tensor]:
        states, weight_D, bias_D, epsilon = inputs
        normed = torch.empty_like(states, dtype=torch.bfloat16)
        moments_N2 = states.new_empty(states.numel() // len(weight_D), 2)
        _call(states, weight_D, bias_D, moments_N2, normed, epsilon=epsilon)
        ctx.save_for_backward(states, weight_D, bias_D, moments_N2)
        return states, normed

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, stream_grad: Tensor, grad: Tensor) -> tuple[Tensor | None, ...]:
        states, weight_D, _, moments_N2 = saved = ctx.saved_tensors  # once, for recomputation
        n_blocks = -(-len(moments_N2) // ROWS_OF_BLOCK)
        out, parts_P2D = torch.empty_like(states), states.new_zeros(n_blocks, 2, len(weight_D))
        _call(*saved, grad.contiguous(), stream_grad.contiguous(), out, parts_P2D)
        return out, *parts_P2D.sum(0), None


def _call(*tensors: Tensor, epsilon: float = 0.0) -> None:
    """Call the kernel with contiguous tensors in the order of `NormProblem`."""
    problem = NormProblem(*(x.data_ptr() for x in tensors), epsilon=epsilon)
    problem.n_rows, problem.width = len(tensors[3]), len(tensors[1])
    problem.n_block, problem.n_threads = ROWS_OF_BLOCK, torch.get_num_threads()
    build.functions().headwise_norm(ctypes.byref(problem))
