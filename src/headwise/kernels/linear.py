"""Linear maps by the product that is fastest at hand.

On a CPU torch gives products of float32 to MKL, which takes up to twice the time of oneDNN where
the processor is not Intel's, and copies a bias over the whole result, on one thread, before it
multiplies. oneDNN's linear map does neither; torch's compiler takes it for what it compiles, and
here it is taken without. Everywhere else a map is torch's own.

A search multiplies by the same weights hundreds of times: `packed` lays them out once, in blocks as
oneDNN reads them.

Letters: N rows, D numbers in, O numbers out.
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

# Below as many multiplications oneDNN's preparations cost more than it gains.
MIN_MULTIPLICATIONS = 1 << 21
ROWS_EXPECTED = 160  # of what a search multiplies: a layout for one row is slow for many


def _types() -> tuple[torch.dtype, ...]:
    """What oneDNN's linear map takes on this processor."""
    is_known = platform.machine().lower() in ("x86_64", "amd64")
    if not (is_known and hasattr(torch.ops.mkldnn, "_linear_pointwise")):
        return ()
    if torch.ops.mkldnn._is_mkldnn_bf16_supported():  # not with AVX2 alone
        return torch.float32, torch.bfloat16
    return (torch.float32,)


TYPES = _types()


class Linear(nn.Linear):
    """`torch.nn.Linear`; differentiable once, and without `torch.func`, where oneDNN takes it."""

    _packed: _Packed | None = None

    def forward(self, input: Tensor) -> Tensor:
        """(..., D) to (..., O)."""
        # compilers do not even look at what comes and goes
        laid_out = None if torch.compiler.is_compiling() else self._packed
        if laid_out is not None and laid_out.stands_for(self.weight, self.bias, input):
            return laid_out.product(input)
        return linear(input, self.weight, self.bias)


@contextmanager
def packed(model: nn.Module) -> Iterator[None]:
    """Within, and without gradients, the maps of `model` multiply by weights laid out once.

    Takes as much memory as the weights do, and pays from some dozens of calls on. Under autocast
    they are laid out in its type. A parameter that is replaced or changed in place meanwhile is
    noticed, but not one whose `data` is. Of two that overlap, in threads too, the first to end
    ends both. Where oneDNN does not multiply, nothing changes.
    """
    maps = [one for one in model.modules() if isinstance(one, Linear)]
    try:
        for one in maps:
            one._packed = _pack(one.weight, one.bias)
        yield
    finally:
        for one in maps:
            one._packed = None


@dataclass(frozen=True)
class _Packed:
    """A weight as oneDNN reads it, in a type of products, the bias beside it."""

    blocks_OD: Tensor
    low_O: Tensor | None
    weight_OD: Tensor  # what they were made of
    bias_O: Tensor | None
    version: int

    def stands_for(self, weight_OD: Tensor, bias_O: Tensor | None, values: Tensor) -> bool:
        """Whether the product of these is to be taken by what was laid out."""
        is_same = weight_OD is self.weight_OD and bias_O is self.bias_O
        if not is_same or _version(weight_OD, bias_O) != self.version or torch.is_grad_enabled():
            return False
        is_input = _is_ours(values) and values.shape[-1] == weight_OD.shape[1]
        return is_input and (_type_here() or values.dtype) is self.blocks_OD.dtype

    def product(self, values: Tensor) -> Tensor:
        """(..., D) to (..., O)."""
        low = values.to(self.blocks_OD.dtype)
        return _onednn(low, self.blocks_OD, self.low_O)

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy of the map is without."""
        return type(None), ()


def _pack(weight_OD: Tensor, bias_O: Tensor | None) -> _Packed | None:
    dtype = _type_here() or weight_OD.dtype
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
    """A number that grows when either is changed in place."""
    return weight_OD._version + (0 if bias_O is None else bias_O._version)


def _onednn(values: Tensor, weight_OD: Tensor, bias_O: Tensor | None) -> Tensor:
    bias_O = None if bias_O is None else bias_O.contiguous()  # it is read as if it were
    found: Tensor = torch.ops.mkldnn._linear_pointwise(values, weight_OD, bias_O, "none", [], "")
    return found


def _type_here() -> torch.dtype | None:
    """The type of products under autocast, or None where they keep that of their factors."""
    return torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None


def linear(values: Tensor, weight_OD: Tensor, bias_O: Tensor | None = None) -> Tensor:
    """`values @ weight.T + bias`, in autocast's type where it is on.

    Args:
        values: (..., D).
        weight_OD: of one type with the bias.
    """
    low = _type_of_product(values, weight_OD)
    if low is None or not _pays(values, weight_OD):
        return nn.functional.linear(values, weight_OD, bias_O)
    values_ND = values.reshape(-1, values.shape[-1])
    found: Tensor = _Linear.apply(values_ND, weight_OD, bias_O, low)  # type: ignore[no-untyped-call]
    return found.view(*values.shape[:-1], len(weight_OD))


def product(left_ND: Tensor, right_OD: Tensor, bias_O: Tensor | None = None) -> Tensor:
    """`left @ right.T + bias`, not differentiable.

    Args:
        left_ND, right_OD: of one type; contiguous, or transposed from what is.
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
    """`grad.T @ values`: the gradient of the weight (O, D) in `values @ weight.T`.

    Contiguous, or transposed from what is: oneDNN copies a first factor that is transposed but
    reads such a second one as it lies, so the narrower is the first.

    Args:
        grad_NO, values_ND: contiguous, of one type.
    """
    (n_rows, n_out), n_in = grad_NO.shape, values_ND.shape[1]
    left_ON, right_DN = grad_NO.t(), values_ND.t()
    to_turn = n_out * n_in  # what comes out transposed is copied sooner or later, too
    if n_rows * n_in + to_turn < n_rows * n_out and gains(right_DN, left_ON):
        return product(right_DN, left_ON).t()
    return product(left_ON, right_DN)


def gains(left_ND: Tensor, right_OD: Tensor, bias_O: Tensor | None = None) -> bool:
    """Whether oneDNN's linear map is sooner done than torch's product."""
    is_ours = _is_ours(left_ND) and left_ND.dtype == right_OD.dtype and _pays(left_ND, right_OD)
    return is_ours and (left_ND.dtype is torch.float32 or bias_O is not None)


def _is_ours(values: Tensor) -> bool:
    is_taken = values.device.type == "cpu" and values.dtype in TYPES
    return is_taken and bool(torch.backends.mkldnn.enabled)


def _pays(values: Tensor, weight_OD: Tensor) -> bool:
    n_multiplications = values.numel() * len(weight_OD)
    fits = values.shape[-1] == weight_OD.shape[1]  # what does not is for torch to refuse
    return fits and n_multiplications >= max(MIN_MULTIPLICATIONS, 1)


def _type_of_product(values: Tensor, weight_OD: Tensor) -> torch.dtype | None:
    """What is multiplied here; None: torch's own linear map is to be taken."""
    if torch.compiler.is_compiling() or not (_is_ours(values) and _is_ours(weight_OD)):
        return None
    low = _type_here()
    if low is None:
        return values.dtype if values.dtype == weight_OD.dtype else None
    # a search calls a map hundreds of times: torch's own keeps its copy of the weight meanwhile
    return low if low in TYPES and torch.is_grad_enabled() else None


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, values_ND: Tensor, weight_OD: Tensor, bias_O: Tensor | None, low: torch.dtype
    ) -> Tensor:
        inputs = (values_ND, weight_OD, bias_O)
        ctx.low, ctx.types = low, [None if one is None else one.dtype for one in inputs]
        low_ND, low_OD = values_ND.to(low).contiguous(), weight_OD.to(low).contiguous()
        wants_values, wants_weight, *_ = ctx.needs_input_grad
        ctx.save_for_backward(low_ND if wants_weight else None, low_OD if wants_values else None)
        return product(low_ND, low_OD, None if bias_O is None else bias_O.to(low))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_NO: Tensor) -> tuple[Tensor | None, ...]:
        low_ND, low_OD = ctx.saved_tensors
        of_values, of_weight, of_bias = ctx.types
        grad_NO = grad_NO.to(ctx.low).contiguous()
        found: list[Tensor | None] = [None] * 4
        if low_OD is not None:
            found[0] = product(grad_NO, low_OD.t()).to(of_values)
        if low_ND is not None:
            found[1] = weight_gradient(grad_NO, low_ND).to(of_weight).contiguous()
        if ctx.needs_input_grad[2]:
            found[2] = grad_NO.sum(0).to(of_bias)
        return tuple(found)


def _flops(values: Any, weight_OD: Any, *_: Any, out_shape: Any = None, **__: Any) -> int:
    """For torch's counter: two operations a multiply-add."""
    return int(2 * math.prod(values) * weight_OD[0])


if TYPES and torch.ops.mkldnn._linear_pointwise not in flop_registry:
    register_flop_formula(torch.ops.mkldnn._linear_pointwise)(_flops)
