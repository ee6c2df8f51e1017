"""Layer norm that writes bfloat16, and its gradient, by the C++ kernel.

Axes: N rows, D width, P blocks of rows.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from headwise.ops.cpp import build
from headwise.ops.cpp.call import FLOAT, address, structure

# One thread computes a block and its sums over rows: bits do not depend on the number of threads.
ROWS_OF_BLOCK = 64

NormProblem: Any = structure("NormProblem")


class Branch(torch.autograd.Function):
    """States, weight and bias, float32 and contiguous, and ε -> states, and norm in bfloat16."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[Tensor, Tensor]:
        states, weight_D, bias_D, epsilon = inputs
        normed = torch.empty_like(states, dtype=torch.bfloat16)
        moments_N2 = states.new_empty(states.numel() // len(weight_D), 2)
        problem = _problem(states, weight_D, moments_N2)
        problem.bias, problem.epsilon = address(bias_D, FLOAT, weight_D.shape), epsilon
        problem.normed = normed.data_ptr()
        build.functions().headwise_norm_forward(ctypes.byref(problem))
        ctx.save_for_backward(states, weight_D, moments_N2)
        return states, normed

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, stream_grad: Tensor, grad: Tensor) -> tuple[Tensor | None, ...]:
        states, weight_D, moments_N2 = ctx.saved_tensors  # a checkpoint gives them once
        grad, stream_grad = grad.contiguous(), stream_grad.contiguous()
        values_grad = torch.empty_like(states)
        n_blocks = -(-len(moments_N2) // ROWS_OF_BLOCK)
        parts_P2D = states.new_zeros(n_blocks, 2, len(weight_D))
        problem = _problem(states, weight_D, moments_N2)
        problem.grad = address(grad, (torch.bfloat16,), states.shape)
        problem.stream_grad = address(stream_grad, FLOAT, states.shape)
        problem.values_grad, problem.parts = values_grad.data_ptr(), parts_P2D.data_ptr()
        build.functions().headwise_norm_backward(ctypes.byref(problem))
        return values_grad, *parts_P2D.sum(0), None


def _problem(states: Tensor, weight_D: Tensor, moments_N2: Tensor) -> ctypes.Structure:
    problem: ctypes.Structure = NormProblem(
        values=address(states, FLOAT),
        weight=address(weight_D, FLOAT, states.shape[-1:]),
        moments=address(moments_N2, FLOAT),
        n_rows=len(moments_N2),
        width=len(weight_D),
        n_block=ROWS_OF_BLOCK,
        n_threads=torch.get_num_threads(),
    )
    return problem
