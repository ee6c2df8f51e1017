"""Linear layers with the fastest available matmul.

On CPU, torch uses MKL for float32 matmuls. On non-Intel processors it takes up to twice as long as
oneDNN, and it first broadcasts the bias to the output on one thread. oneDNN's linear operator does
neither; torch.compile uses it, and this module uses it without torch.compile. Otherwise torch's
linear layer is used.

Decoding multiplies by the same weights hundreds of times: `packed_weights` reorders them once into
oneDNN's blocked layout. For the few rows of one sentence, `FewRows` uses them as they are.

Axes: N rows, D input width, O output width.
"""

from __future__ import annotations

import ctypes
import functools
import platform
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.autograd.graph import increment_version
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

from headwise.ops.cpp import build
from headwise.ops.cpp.call import DTYPES as CPP_DTYPES
from headwise.ops.cpp.call import FLOAT, address, structure
from headwise.ops.register import is_transformed

# With fewer multiplications oneDNN's overhead exceeds its gain.
MIN_MULTIPLICATIONS = 1 << 21
EXPECTED_ROWS = 160  # of inputs in decoding: a layout for one row is slow for many
# For more rows, packed weights are as fast; in bfloat16 on AMX, which multiplies by tiles, sooner.
MAX_FEW_ROWS = {torch.float32: 10, torch.bfloat16: 5}

LinearProblem: Any = structure("LinearProblem")


def _dtypes() -> tuple[torch.dtype, ...]:
    """Return the dtypes that oneDNN's linear operator supports on this CPU."""
    is_x86 = platform.machine().lower() in ("x86_64", "amd64")
    if not (is_x86 and hasattr(torch.ops.mkldnn, "_linear_pointwise")):
        return ()
    if torch.ops.mkldnn._is_mkldnn_bf16_supported():  # not with AVX2 alone
        return torch.float32, torch.bfloat16
    return (torch.float32,)


@functools.cache  # once: a hook that is removed would disturb steps in other threads
def _raise_versions_after_steps() -> None:
    """From now on, raise `_version` of the parameters that torch's fused steps change: they don't.

    By torch's global hook after every step of all optimizers.
    """

    def raise_versions(optimizer: Optimizer, *_: Any) -> None:
        groups = (group["params"] for group in optimizer.param_groups if group.get("fused"))
        increment_version([p for parameters in groups for p in parameters if p.grad is not None])

    register_optimizer_step_post_hook(raise_versions)


DTYPES = _dtypes()
TRAINING_DTYPES = tuple(dtype for dtype in DTYPES if dtype is not torch.float32)


class Linear(nn.Linear):
    """`torch.nn.Linear`, via oneDNN if supported: without double backward.

    Transforms of torch.func use torch's linear layer.
    """

    _packed: _Packed | None = None

    def forward(self, input: Tensor) -> Tensor:
        """Map (..., D) to (..., O)."""
        # under torch.compile, reading the changing attribute would add guards
        packed = None if torch.compiler.is_compiling() else self._packed
        if packed is not None and packed.applies_to(self.weight, self.bias, input):
            return packed.matmul(input)
        return linear(input, self.weight, self.bias)


@contextmanager
def packed_weights(model: nn.Module) -> Iterator[None]:
    """Within the context, under no_grad, layers of `model` use weights packed for oneDNN.

    Doubles the memory of the weights; pays off after a few dozen calls. Under autocast, weights are
    packed in its dtype. Replacing a parameter or changing it in place is detected, also by an
    optimizer's fused step; changing `.data` is not. Where contexts overlap, as in several threads,
    the first exit ends all: calls are right, but slower. No effect where oneDNN is not used.
    """
    _raise_versions_after_steps()
    layers = [module for module in model.modules() if isinstance(module, Linear)]
    try:
        for layer in layers:
            layer._packed = _pack(layer.weight, layer.bias)
        yield
    finally:
        for layer in layers:
            layer._packed = None


@dataclass(frozen=True)
class _Packed:
    """A weight in oneDNN's layout and its bias, both in the matmul's dtype."""

    packed_OD: Tensor
    cast_O: Tensor | None
    weight_OD: Tensor  # the original parameters
    bias_O: Tensor | None
    version: int

    def applies_to(self, weight_OD: Tensor, bias_O: Tensor | None, values: Tensor) -> bool:
        """Return whether `matmul` is valid for these tensors."""
        is_same = weight_OD is self.weight_OD and bias_O is self.bias_O
        if not is_same or _version(weight_OD, bias_O) != self.version or torch.is_grad_enabled():
            return False
        is_valid = _usable(values) and values.shape[-1] == weight_OD.shape[1]
        return is_valid and (_autocast_dtype() or values.dtype) is self.packed_OD.dtype

    def matmul(self, values: Tensor) -> Tensor:
        """Map (..., D) to (..., O)."""
        cast = values.to(self.packed_OD.dtype)
        return _onednn(cast, self.packed_OD, self.cast_O)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as None: copies of the layer are not packed."""
        return type(None), ()


def _pack(weight_OD: Tensor, bias_O: Tensor | None) -> _Packed | None:
    dtype = _autocast_dtype() or weight_OD.dtype
    if not _usable(weight_OD) or dtype not in DTYPES or weight_OD.numel() == 0:
        return None
    parameters = [p for p in (weight_OD, bias_O) if p is not None]
    if any(p.is_inference() or p.dtype is not weight_OD.dtype for p in parameters):
        return None
    with torch.no_grad():
        packed_OD = torch.ops.mkldnn._reorder_linear_weight(weight_OD.to(dtype), EXPECTED_ROWS)
        cast_O = None if bias_O is None else bias_O.to(dtype)
    return _Packed(packed_OD, cast_O, weight_OD, bias_O, _version(weight_OD, bias_O))


def _version(weight_OD: Tensor, bias_O: Tensor | None) -> int:
    """Return a number that increases when either is changed in place."""
    return weight_OD._version + (0 if bias_O is None else bias_O._version)


def _onednn(values: Tensor, weight_OD: Tensor, bias_O: Tensor | None) -> Tensor:
    bias_O = None if bias_O is None else bias_O.contiguous()  # oneDNN ignores its strides
    out: Tensor = torch.ops.mkldnn._linear_pointwise(values, weight_OD, bias_O, "none", [], "")
    return out


def _autocast_dtype() -> torch.dtype | None:
    """Return the autocast dtype, or None without autocast."""
    return torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None


class FewRows:
    """`values @ weight.T + bias` of few rows by the C++ kernel, prepared for many calls.

    Reads the weight in place, without a copy. Sums are in float32. Not differentiable.

    Args:
        weight_OD: float32 or bfloat16, contiguous.
        bias_O: float32, contiguous.

    Raises:
        TypeError: another dtype or device, or not contiguous.
        ValueError: shapes do not match.
        RuntimeError: no C++ kernels; `dispatch.cpp_or_torch` tells.
    """

    def __init__(self, weight_OD: Tensor, bias_O: Tensor | None = None) -> None:
        n_outputs, width = self._shape = tuple(weight_OD.shape)
        self._kept = weight_OD, bias_O  # the kernel reads their memory
        self._problem = LinearProblem(
            weight=address(weight_OD, CPP_DTYPES),
            bias=None if bias_O is None else address(bias_O, FLOAT, (n_outputs,)),
            width=width,
            n_outputs=n_outputs,
            is_half=weight_OD.dtype is torch.bfloat16,
        )
        self._kernel = build.functions().headwise_linear_of_few

    def __call__(self, values_ND: Tensor) -> Tensor:
        """Map (N, D) to (N, O), both float32 and contiguous."""
        n_outputs, width = self._shape
        n_rows, _ = values_ND.shape
        out_NO = values_ND.new_empty(n_rows, n_outputs)
        problem = LinearProblem.from_buffer_copy(self._problem)  # several threads may call
        problem.values = address(values_ND, FLOAT, (n_rows, width))
        problem.out, problem.n_rows = out_NO.data_ptr(), n_rows
        problem.n_threads = torch.get_num_threads()
        self._kernel(ctypes.byref(problem))
        return out_NO


class PreparedLinear:
    """Linear layers of one input, as one product for inference, in one dtype.

    Up to `MAX_FEW_ROWS` rows are multiplied by `FewRows`. For more, the weights are packed, when
    there are more for the first time. A single contiguous weight of this dtype is not copied.

    Args:
        layers: on a CPU with C++ kernels; their outputs are next to each other.
        dtype: of the products: float32 or bfloat16.
    """

    def __init__(self, layers: Sequence[nn.Linear], dtype: torch.dtype) -> None:
        weights = [layer.weight.detach().to(dtype).contiguous() for layer in layers]
        biases = [layer.bias.detach() for layer in layers if layer.bias is not None]
        self._weight_OD = weights[0] if len(weights) == 1 else torch.cat(weights)
        bias_O = torch.cat(biases) if biases else None
        self._few = FewRows(self._weight_OD, bias_O)
        self._bias_O = None if bias_O is None else bias_O.to(dtype)
        self._packed: _Packed | None = None

    def __call__(self, values_RD: Tensor) -> Tensor:
        """Map (R, D) to (R, O), float32 for few rows, otherwise in the dtype of the products."""
        if len(values_RD) <= MAX_FEW_ROWS[self._weight_OD.dtype]:
            return self._few(values_RD.float())
        self._packed = self._packed or _pack(self._weight_OD, self._bias_O)
        if self._packed is not None:
            return self._packed.matmul(values_RD)
        cast_RD = values_RD.to(self._weight_OD.dtype)  # without oneDNN for this dtype
        return nn.functional.linear(cast_RD, self._weight_OD, self._bias_O)


def linear(values: Tensor, weight_OD: Tensor, bias_O: Tensor | None = None) -> Tensor:
    """Return `values @ weight.T + bias`, under autocast in its dtype.

    Args:
        values: (..., D).
        weight_OD: of the same dtype as the bias.
    """
    is_candidate = not torch.compiler.is_compiling() and _big(values, weight_OD, bias_O)
    dtype = _compute_dtype(values, weight_OD) if is_candidate else None
    if dtype is None:
        return nn.functional.linear(values, weight_OD, bias_O)
    values_ND = values.reshape(-1, values.shape[-1])
    out_NO: Tensor = _Linear.apply(values_ND, weight_OD, bias_O, dtype)  # type: ignore[no-untyped-call]
    return out_NO.view(*values.shape[:-1], len(weight_OD))


def linear_of_each(values: Tensor, *layers: Linear) -> list[Tensor]:
    """Return `layer(values)` of each layer, by one matmul where that is faster.

    That is in training under autocast in a dtype that the CPU supports: the weights are copied
    anyway, `values` are cast once, the matmul is wider, and the gradients in `values` need no sum.
    In float32, copying the weights costs as much.
    """
    is_training = torch.is_grad_enabled() and not torch.compiler.is_compiling()
    dtype = _autocast_dtype() if is_training else None
    if dtype not in TRAINING_DTYPES or not all(_is_cast(layer, values) for layer in layers):
        return [layer(values) for layer in layers]
    weight_OD = torch.cat([layer.weight.to(dtype) for layer in layers])
    bias_O = torch.cat([layer.bias.to(dtype) for layer in layers])
    sizes = [len(layer.weight) for layer in layers]
    return list(linear(values, weight_OD, bias_O).split_with_sizes(sizes, -1))


def _is_cast(layer: Linear, values: Tensor) -> bool:
    """Return whether autocast casts weight and bias, and nothing else changes the layer."""
    if type(layer) is not Linear or layer.bias is None or values.dtype is torch.float64:
        return False
    is_float = layer.weight.dtype is layer.bias.dtype is torch.float32
    is_on_cpu = all(x.device.type == "cpu" for x in (values, layer.weight, layer.bias))
    return is_float and is_on_cpu and not has_hooks(layer)


def has_hooks(module: nn.Module) -> bool:
    """Return whether functions are registered that a call of the module would call."""
    forward = (module._forward_hooks, module._forward_pre_hooks)
    return any((*forward, module._backward_hooks, module._backward_pre_hooks))


def matmul(left_ND: Tensor, right_OD: Tensor, bias_O: Tensor | None = None) -> Tensor:
    """Return `left @ right.T + bias`, not differentiable.

    Args:
        left_ND, right_OD: of one dtype; contiguous, or transposes of contiguous tensors.
    """
    if not gains(left_ND, right_OD, bias_O):
        return nn.functional.linear(left_ND, right_OD, bias_O)
    return _onednn(left_ND, right_OD, bias_O)


def matmul_out(out_NO: Tensor, left_ND: Tensor, right_OD: Tensor) -> None:
    """Write `left @ right.T`, all of one dtype, to `out`."""
    if gains(left_ND, right_OD):
        out_NO.copy_(matmul(left_ND, right_OD))
    else:
        torch.mm(left_ND, right_OD.t(), out=out_NO)


def weight_gradient(grad_NO: Tensor, values_ND: Tensor) -> Tensor:
    """Return `grad.T @ values`: the gradient of the weight (O, D) in `values @ weight.T`.

    The result is contiguous, or the transpose of a contiguous tensor: oneDNN copies a transposed
    first operand but not a transposed second, so the narrower goes first.

    Args:
        grad_NO, values_ND: contiguous, of one dtype.
    """
    (n_rows, n_out), n_in = grad_NO.shape, values_ND.shape[1]
    left_ON, right_DN = grad_NO.t(), values_ND.t()
    n_copied = n_out * n_in  # a transposed result is copied later
    if n_rows * n_in + n_copied < n_rows * n_out and gains(right_DN, left_ON):
        return matmul(right_DN, left_ON).t()
    return matmul(left_ON, right_DN)


def gains(left_ND: Tensor, right_OD: Tensor, bias_O: Tensor | None = None) -> bool:
    """Return whether oneDNN's linear operator is faster than torch's matmul."""
    is_faster = _usable(left_ND) and left_ND.dtype == right_OD.dtype
    is_faster = is_faster and _big(left_ND, right_OD, bias_O)
    return is_faster and (left_ND.dtype is torch.float32 or bias_O is not None)


def _usable(values: Tensor) -> bool:
    is_plain = values.device.type == "cpu" and values.layout is torch.strided
    is_enabled = bool(torch.backends.mkldnn.enabled) and not is_transformed()
    return is_plain and is_enabled and values.dtype in DTYPES


def _big(values: Tensor, weight_OD: Tensor, bias_O: Tensor | None) -> bool:
    # else torch raises the error: oneDNN reads memory of other sizes, types and devices
    fits = weight_OD.dim() == 2 and values.dim() > 0 and values.shape[-1] == weight_OD.shape[1]
    if bias_O is not None:
        fits = fits and bias_O.shape == weight_OD.shape[:1] and bias_O.dtype == weight_OD.dtype
        fits = fits and bias_O.device == weight_OD.device
    return fits and values.numel() * len(weight_OD) >= max(MIN_MULTIPLICATIONS, 1)


def _compute_dtype(values: Tensor, weight_OD: Tensor) -> torch.dtype | None:
    """Return the dtype of oneDNN's matmul, or None to use torch's linear layer."""
    if not (_usable(values) and _usable(weight_OD)):
        return None
    dtype = _autocast_dtype()
    if dtype is None:
        return values.dtype if values.dtype == weight_OD.dtype else None
    # use torch when decoding: autocast caches the cast weight over the layer's hundreds of calls
    return dtype if dtype in DTYPES and torch.is_grad_enabled() else None


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, values_ND: Tensor, weight_OD: Tensor, bias_O: Tensor | None, dtype: torch.dtype
    ) -> Tensor:
        inputs = (values_ND, weight_OD, bias_O)
        ctx.dtype, ctx.dtypes = dtype, [None if x is None else x.dtype for x in inputs]
        cast_ND, cast_OD = values_ND.to(dtype).contiguous(), weight_OD.to(dtype).contiguous()
        needs_values, needs_weight, *_ = ctx.needs_input_grad
        ctx.save_for_backward(cast_ND if needs_weight else None, cast_OD if needs_values else None)
        return matmul(cast_ND, cast_OD, None if bias_O is None else bias_O.to(dtype))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_NO: Tensor) -> tuple[Tensor | None, ...]:
        cast_ND, cast_OD = ctx.saved_tensors
        x_dtype, w_dtype, b_dtype = ctx.dtypes
        grad_NO = grad_NO.to(ctx.dtype).contiguous()
        gradients: list[Tensor | None] = [None] * 4
        if cast_OD is not None:
            gradients[0] = matmul(grad_NO, cast_OD.t()).to(x_dtype)
        if cast_ND is not None:
            gradients[1] = weight_gradient(grad_NO, cast_ND).to(w_dtype).contiguous()
        if ctx.needs_input_grad[2]:
            gradients[2] = grad_NO.sum(0).to(b_dtype)
        return tuple(gradients)
