"""Linear maps by the product that is fastest at hand.

On a CPU torch gives products of float32 to MKL, which takes twice the time of oneDNN where the
processor is not Intel's, and copies a bias over the whole result, on one thread, before it
multiplies. oneDNN's linear map does neither; torch's compiler takes it for what it compiles, and
here it is taken without. Everywhere else a map is torch's own.

Letters: N rows, D numbers in, O numbers out.
"""

from __future__ import annotations

import platform
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

# Below as many multiplications oneDNN's preparations cost more than it gains.
MIN_MULTIPLICATIONS = 1 << 21
_IS_KNOWN = platform.machine().lower() in ("x86_64", "amd64") and hasattr(
    torch.ops.mkldnn, "_linear_pointwise"
)


class Linear(nn.Linear):
    """`torch.nn.Linear`, differentiable once where oneDNN takes it."""

    def forward(self, input: Tensor) -> Tensor:
        """(..., D) to (..., O)."""
        return linear(input, self.weight, self.bias)


def linear(values: Tensor, weight_OD: Tensor, bias_O: Tensor | None = None) -> Tensor:
    """`values @ weight.T + bias`, in autocast's type where it is on.

    Args:
        values: (..., D).
        weight_OD: of one type with the bias.
    """
    low = _type_of_product(values, weight_OD)
    if low is None or not _pays(values, weight_OD):
        return nn.functional.linear(values, weight_OD, bias_O)
    found: Tensor = _Linear.apply(values, weight_OD, bias_O, low)  # type: ignore[no-untyped-call]
    return found


def product(left_ND: Tensor, right_OD: Tensor, bias_O: Tensor | None = None) -> Tensor:
    """`left @ right.T + bias`, not differentiable.

    Args:
        left_ND, right_OD: of one type; contiguous, or transposed from what is.
    """
    if not gains(left_ND, right_OD, bias_O):
        return nn.functional.linear(left_ND, right_OD, bias_O)
    found: Tensor = torch.ops.mkldnn._linear_pointwise(left_ND, right_OD, bias_O, "none", [], "")
    return found


def gains(left_ND: Tensor, right_OD: Tensor, bias_O: Tensor | None = None) -> bool:
    """Whether oneDNN's linear map is sooner done than torch's product."""
    is_ours = _is_ours(left_ND) and left_ND.dtype == right_OD.dtype and _pays(left_ND, right_OD)
    return is_ours and (left_ND.dtype is torch.float32 or bias_O is not None)


def _is_ours(values: Tensor) -> bool:
    return (
        _IS_KNOWN
        and values.device.type == "cpu"
        and values.dtype in (torch.float32, torch.bfloat16)
        and bool(torch.backends.mkldnn.enabled)
    )


def _pays(values: Tensor, weight_OD: Tensor) -> bool:
    return values.numel() * len(weight_OD) >= MIN_MULTIPLICATIONS


def _type_of_product(values: Tensor, weight_OD: Tensor) -> torch.dtype | None:
    """What is multiplied here; None: torch's own linear map is to be taken."""
    if torch.compiler.is_compiling() or not (_is_ours(values) and _is_ours(weight_OD)):
        return None
    if not torch.is_autocast_enabled("cpu"):
        return values.dtype if values.dtype == weight_OD.dtype else None
    # without gradients autocast keeps its copies of the weights from one call to the next
    low = torch.get_autocast_dtype("cpu")
    return low if low is torch.bfloat16 and torch.is_grad_enabled() else None


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, values: Tensor, weight_OD: Tensor, bias_O: Tensor | None, low: torch.dtype
    ) -> Tensor:
        values_ND = values.reshape(-1, values.shape[-1]).to(low).contiguous()
        low_OD = weight_OD.to(low).contiguous()
        ctx.save_for_backward(values_ND, low_OD)
        ctx.shape = values.shape
        ctx.types = [None if one is None else one.dtype for one in (values, weight_OD, bias_O)]
        found_NO = product(values_ND, low_OD, None if bias_O is None else bias_O.to(low))
        return found_NO.view(*values.shape[:-1], -1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        values_ND, low_OD = ctx.saved_tensors
        of_values, of_weight, of_bias = ctx.types
        grad_NO = grad.reshape(-1, grad.shape[-1]).to(values_ND.dtype).contiguous()
        found: list[Tensor | None] = [None] * 4
        if ctx.needs_input_grad[0]:
            found[0] = product(grad_NO, low_OD.t()).view(ctx.shape).to(of_values)
        if ctx.needs_input_grad[1]:
            found[1] = product(grad_NO.t(), values_ND.t()).to(of_weight)
        if ctx.needs_input_grad[2]:
            found[2] = grad_NO.sum(0).to(of_bias)
        return tuple(found)
