"""Linear layers with the fastest available matrix product.

On a CPU torch uses MKL for float32 products, which takes up to twice the time of oneDNN on
processors that are not Intel's, and first copies the bias over the whole result on one thread.
oneDNN's linear operator does neither; torch.compile uses it, and this module uses it without
torch.compile. Everywhere else torch's linear layer is used.

Decoding multiplies by the same weights hundreds of times: `packed` reorders them once into the
blocks that oneDNN reads.

Letters: N rows, D input width, O output width.
"""

from __future__ import annotations

import math
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.utils.flop_counter import flop_registry, register_flop_formula

# With fewer multiplications oneDNN's overhead exceeds its gain.
MIN_MULTIPLICATIONS = 1 << 21
ROWS_EXPECTED = 160  # rows in decoding: a layout for one row is slow for many


def _types() -> tuple[torch.dtype, ...]:
    """Return the types that oneDNN's linear operator supports on this processor."""
    is_known = platform.machine().lower() in ("x86_64", "amd64")
    if not (is_known and hasattr(torch.ops.mkldnn, "_linear_pointwise")):
        return ()
    if torch.ops.mkldnn._is_mkldnn_bf16_supported():  # not with AVX2 alone
        return torch.float32, torch.bfloat16
    return (torch.float32,)


TYPES = _types()


class Linear(nn.Linear):
    """`torch.nn.Linear` by oneDNN if supported: then differentiable once, without torch.func."""

    _packed: _Packed | None = None

    def forward(self, input: Tensor) -> Tensor:
        """Map (..., D) to (..., O)."""
        # under torch.compile, reading the changing attribute would add guards
        packed = None if torch.compiler.is_compiling() else self._packed
        if packed is not None and packed.applies_to(self.weight, self.bias, input):
            return packed.product(input)
        return linear(input, self.weight, self.bias)


@contextmanager
def packed(model: nn.Module) -> Iterator[None]:
    """Within the context, without gradients, layers of `model` use weights reordered for oneDNN.

    Needs as much memory as the weights, and is faster from some dozens of calls on. Under autocast
    weights are reordered in its type. Replacing a parameter or changing it in place is detected,
    changing its `data` is not. Contexts must not overlap, in threads either: the first to end
    ends both. Without effect where oneDNN is not used.
    """
    layers = [one for one in model.modules() if isinstance(one, Linear)]
    try:
        for one in layers:
            one._packed = _pack(one.weight, one.bias)
        yield
    finally:
        for one in layers:
            one._packed = None


@dataclass(frozen=True)
class _Packed:
    """A weight in the layout of oneDNN and the bias, both in the type of the product."""

    blocks_OD: Tensor
    low_O: Tensor | None
    weight_OD: Tensor  # the original parameters
    bias_O: Tensor | None
    version: int

    def applies_to(self, weight_OD: Tensor, bias_O: Tensor | None, values: Tensor) -> bool:
        """Return whether `product` computes the layer with these tensors."""
        is_same = weight_OD is self.weight_OD and bias_O is self.bias_O
        if not is_same or _version(weight_OD, bias_O) != self.version or torch.is_grad_enabled():
            return False
        is_input = _is_ours(values) and values.shape[-1] == weight_OD.shape[1]
        return is_input and (_autocast_type() or values.dtype) is self.blocks_OD.dtype

    def product(self, values: Tensor) -> Tensor:
        """Map (..., D) to (..., O)."""
        low = values.to(self.blocks_OD.dtype)
        return _onednn(low, self.blocks_OD, self.low_O)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as None: copies of the layer are not packed."""
        return type(None), ()


def _pack(weight_OD: Tensor, bias_O: Tensor | None) -> _Packed | None:
    dtype = _autocast_type() or weight_OD.dtype
    if not _is_ours(weight_OD) or dtype not in TYPES or weight_OD.numel() == 0:
        return None
    parameters = [one for one in (weight_OD, bias_O) if one is not None]
    if any(one.is_inference() or one.dtype is not weight_OD.dtype for one in parameters):
        return None
    with torch.no_grad():
        blocks_OD = torch.ops.mkldnn._reorder_linear_weight(weight_OD.to(dtype), ROWS_EXPECTED)
        low_O = None if bias_O is None else bias_O.to(dtype)
    return _Packed(blocks_OD, low_O, weight_OD, bias_O, _version(weight_OD, bias_O))


def _version(weight_OD: Tensor, bias_O: Tensor | None) -> int:
    """Return a number that increases when either is changed in place."""
    return weight_OD._version + (0 if bias_O is None else bias_O._version)


def _onednn(values: Tensor, weight_OD: Tensor, bias_O: Tensor | None) -> Tensor:
    bias_O = None if bias_O is None else bias_O.contiguous()  # oneDNN ignores its strides
    out: Tensor = torch.ops.mkldnn._linear_pointwise(values, weight_OD, bias_O, "none", [], "")
    return out


def _autocast_type() -> torch.dtype | None:
    """Return the type of products under autocast, or None without autocast."""
    return torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None


def linear(values: Tensor, weight_OD: Tensor, bias_O: Tensor | None = None) -> Tensor:
    """Return `values @ weight.T + bias`, under autocast in its type.

    Args:
        values: (..., D).
        weight_OD: of the same type as the bias.
    """
    low = _type_of_product(values, weight_OD)
    if low is None or not _pays(values, weight_OD):
        return nn.functional.linear(values, weight_OD, bias_O)
    values_ND = values.reshape(-1, values.shape[-1])
    out_NO: Tensor = _Linear.apply(values_ND, weight_OD, bias_O, low)  # type: ignore[no-untyped-call]
    return out_NO.view(*values.shape[:-1], len(weight_OD))


def product(left_ND: Tensor, right_OD: Tensor, bias_O: Tensor | None = None) -> Tensor:
    """Return `left @ right.T + bias`, not differentiable.

    Args:
        left_ND, right_OD: of one type; contiguous, or transposes of contiguous tensors.
    """
    if not gains(left_ND, right_OD, bias_O):
        return nn.functional.linear(left_ND, right_OD, bias_O)
    return _onednn(left_ND, right_OD, bias_O)


def product_into(out_NO: Tensor, left_ND: Tensor, right_OD: Tensor) -> None:
    """Write `left @ right.T`, all of one type, to `out`."""
    if gains(left_ND, right_OD):
        out_NO.copy_(product(left_ND, right_OD))
    else:
        torch.mm(left_ND, right_OD.t(), out=out_NO)


def weight_gradient(grad_NO: Tensor, values_ND: Tensor) -> Tensor:
    """Return `grad.T @ values`: the gradient of the weight (O, D) in `values @ weight.T`.

    The result is contiguous, or the transpose of a contiguous tensor: oneDNN copies a transposed
    first factor but not a transposed second one, so the narrower one is first.

    Args:
        grad_NO, values_ND: contiguous, of one type.
    """
    (n_rows, n_out), n_in = grad_NO.shape, values_ND.shape[1]
    left_ON, right_DN = grad_NO.t(), values_ND.t()
    n_copied = n_out * n_in  # a transposed result is copied later
    if n_rows * n_in + n_copied < n_rows * n_out and gains(right_DN, left_ON):
        return product(right_DN, left_ON).t()
    return product(left_ON, right_DN)


def gains(left_ND: Tensor, right_OD: Tensor, bias_O: Tensor | None = None) -> bool:
    """Return whether oneDNN's linear operator is faster than torch's product."""
    is_ours = _is_ours(left_ND) and left_ND.dtype == right_OD.dtype and _pays(left_ND, right_OD)
    return is_ours and (left_ND.dtype is torch.float32 or bias_O is not None)


def _is_ours(values: Tensor) -> bool:
    is_supported = values.device.type == "cpu" and values.dtype in TYPES
    return is_supported and bool(torch.backends.mkldnn.enabled)


def _pays(values: Tensor, weight_OD: Tensor) -> bool:
    n_multiplications = values.numel() * len(weight_OD)
    fits = values.shape[-1] == weight_OD.shape[1]  # else torch raises the error
    return fits and n_multiplications >= max(MIN_MULTIPLICATIONS, 1)


def _type_of_product(values: Tensor, weight_OD: Tensor) -> torch.dtype | None:
    """Return the type of the product, or None if torch's linear layer is to be used."""
    if torch.compiler.is_compiling() or not (_is_ours(values) and _is_ours(weight_OD)):
        return None
    low = _autocast_type()
    if low is None:
        return values.dtype if values.dtype == weight_OD.dtype else None
    # decoding calls a layer hundreds of times: torch caches its copy of the weight under autocast
    return low if low in TYPES and torch.is_grad_enabled() else None


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, values_ND: Tensor, weight_OD: Tensor, bias_O: Tensor | None, low: torch.dtype
    ) -> Tensor:
        inputs = (values_ND, weight_OD, bias_O)
        ctx.low, ctx.types = low, [None if one is None else one.dtype for one in inputs]
        low_ND, low_OD = values_ND.to(low).contiguous(), weight_OD.to(low).contiguous()
        needs_values, needs_weight, *_ = ctx.needs_input_grad
        ctx.save_for_backward(low_ND if needs_weight else None, low_OD if needs_values else None)
        return product(low_ND, low_OD, None if bias_O is None else bias_O.to(low))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_NO: Tensor) -> tuple[Tensor | None, ...]:
        low_ND, low_OD = ctx.saved_tensors
        of_values, of_weight, of_bias = ctx.types
        grad_NO = grad_NO.to(ctx.low).contiguous()
        gradients: list[Tensor | None] = [None] * 4
        if low_OD is not None:
            gradients[0] = product(grad_NO, low_OD.t()).to(of_values)
        if low_ND is not None:
            gradients[1] = weight_gradient(grad_NO, low_ND).to(of_weight).contiguous()
        if ctx.needs_input_grad[2]:
            gradients[2] = grad_NO.sum(0).to(of_bias)
        return tuple(gradients)


def _flops(values: Any, weight_OD: Any, *_: Any, out_shape: Any = None, **__: Any) -> int:
    """Return the FLOPs for torch's counter: 2 per multiply-add."""
    return int(2 * math.prod(values) * weight_OD[0])


if TYPES and torch.ops.mkldnn._linear_pointwise not in flop_registry:
    register_flop_formula(torch.ops.mkldnn._linear_pointwise)(_flops)
