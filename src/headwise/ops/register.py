"""Registration of torch operators: `torch.ops.headwise`.

An operator is one node for torch.compile, checkpointing, tracers and profilers. A call through
torch's dispatcher costs 10 µs without a gradient and up to 35 µs with one, forward and backward
(docs/speed.md). Under torch.func (grad, vjp, jacrev, vmap) an autograd.Function with rules for them
is called instead, as there a gradient registered with `torch.library` raises, and forward mode
would silently return 0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from headwise.ops.arguments import checker

_library: Any = torch.library  # untyped
_LIBRARY = _library.Library("headwise", "FRAGMENT")
_forward_ad: Any = forward_ad
is_transformed: Callable[[], bool] = torch._C._are_functorch_transforms_active


def register(
    schema: str,
    compute: Callable[..., Any],
    shapes: Callable[..., Any],
    dtypes: Sequence[torch.dtype],
    save: Callable[..., None] | None = None,
    differentiate: Callable[..., Any] | None = None,
    dispatch: str = "CPU",
) -> Callable[..., Any]:
    """Register an operator, and return the function that calls it.

    Args:
        schema: name, arguments and results in torch's notation, with axes and dtypes of tensors,
            see `arguments.checker`.
        compute: arguments -> results.
        shapes: arguments -> results without values, with the same strides.
        dtypes: of tensors whose dtype the schema does not name.
        save, differentiate: `setup_context` and `backward` of autograd; None: the operator is a
            backward pass itself, and double backward raises.
        dispatch: dispatch key of `compute`.
    """
    name, _, rest = schema.partition("(")
    forms, _, results = rest.partition(") -> ")
    arguments = [argument.split() for argument in forms.split(", ")]
    check = checker(arguments, dtypes)
    schema = f"{name}({', '.join(' '.join(words[:2]) for words in arguments)}) -> {results}"
    save, backward = save or _save_nothing, differentiate or raise_second_order
    _LIBRARY.define(schema)
    _LIBRARY.impl(name, _checked(check, compute), dispatch)
    _library.register_fake(f"headwise::{name}", _checked(check, shapes), lib=_LIBRARY)
    operator = getattr(torch.ops.headwise, name).default
    _LIBRARY.impl(name, _derivative(operator, save, backward), "Autograd", with_keyset=True)

    def call(*arguments: Any) -> Any:
        if is_transformed() and not torch.compiler.is_compiling():
            return transformed.apply(*arguments)
        _check_tangents(arguments)
        return operator(*arguments)

    def forward(*arguments: Any) -> Any:
        return call(*arguments)  # inside one transform; there may be more

    rules = {
        "forward": forward,
        "setup_context": save,
        "backward": backward,
        "vmap": _each(forward),
        "jvp": _raise_forward_mode,
    }
    static = {rule: staticmethod(function) for rule, function in rules.items()}
    transformed: Any = type(f"headwise_{name}", (torch.autograd.Function,), static)
    return call


def _checked(check: Callable[..., None], function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*arguments: Any) -> Any:
        check(*arguments)
        return function(*arguments)

    return call


def _derivative(
    operator: Any, save: Callable[..., None], backward: Callable[..., Any]
) -> Callable[..., Any]:
    """Return the operator for torch's key Autograd, as `torch.library.register_autograd` makes it.

    torch's own reads the schema in every call for defaults of arguments, which ours do not have:
    100 µs for 17 arguments.
    """

    def compute(*arguments_and_keys: Any) -> Any:
        *arguments, keys = arguments_and_keys
        with torch._C._AutoDispatchBelowAutograd():
            return operator.redispatch(keys & torch._C._after_autograd_keyset, *arguments)

    class Derivative(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *arguments_and_keys: Any) -> Any:
            output = compute(*arguments_and_keys)
            save(ctx, arguments_and_keys[:-1], output)
            return output

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            gradients = backward(ctx, *grads)
            return *(gradients if isinstance(gradients, tuple) else (gradients,)), None

    def call(keys: Any, *arguments: Any) -> Any:
        needs_grad = torch.is_grad_enabled() and torch._C._any_requires_grad(*arguments)
        return (Derivative.apply if needs_grad else compute)(*arguments, keys)

    return call


def register_pair(
    name: str,
    tensors: str,
    settings: str,
    grad: str,
    saved: str,
    n_gradients: int,
    forward: Callable[..., Any],
    shapes: Callable[..., Any],
    backward: Callable[..., Any],
    backward_shapes: Callable[..., Any],
    dtypes: Sequence[torch.dtype],
    dispatch: str = "CPU",
) -> Callable[..., Any]:
    """Register an operator and its backward pass `…_backward`; return the function that calls it.

    Args:
        name: of the operator.
        tensors, settings: its arguments, as in the schema of `register`.
        grad: axes and dtype of the first result, the only differentiable one.
        saved: the other results. They and all tensors are saved for the backward pass.
        n_gradients: number of differentiable tensors; they come first.
        forward, shapes: (*tensors, *settings) -> results, and the same without values.
        backward, backward_shapes: (gradient of the first result, *tensors, *saved, *settings,
            whether to compute the last gradient) -> gradients, and the same without values.
        dtypes, dispatch: as for `register`.
    """
    n_tensors, n_saved = tensors.count("Tensor"), saved.count("Tensor")
    gradients = ", ".join(["Tensor"] * n_gradients)
    call_backward = register(
        f"{name}_backward(Tensor grad {grad}, {tensors}, {saved}, {settings}, bool with_last)"
        f" -> ({gradients})",
        backward,
        backward_shapes,
        dtypes,
        dispatch=dispatch,
    )

    def save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.save_for_backward(*inputs[:n_tensors], *output[1:])
        ctx.settings = inputs[n_tensors:]
        ctx.mark_non_differentiable(*output[1:])
        ctx.set_materialize_grads(False)

    def differentiate(ctx: Any, grad: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
        if grad is None:
            return (None,) * (n_tensors + len(ctx.settings))
        needed = ctx.needs_input_grad[:n_gradients]
        gradients = call_backward(grad, *ctx.saved_tensors, *ctx.settings, needed[-1])
        gradients = (gradients,) if n_gradients == 1 else gradients
        pairs = zip(gradients, needed, strict=True)
        constant = (None,) * (n_tensors - n_gradients + len(ctx.settings))
        return *(gradient if is_needed else None for gradient, is_needed in pairs), *constant

    results = ", ".join(["Tensor"] * (1 + n_saved))
    schema = f"{name}({tensors}, {settings}) -> ({results})"
    return register(schema, forward, shapes, dtypes, save, differentiate, dispatch)


def _each(compute: Callable[..., Any]) -> Callable[..., Any]:
    """Return the rule of torch.func.vmap: one call per element of the batch."""

    def rule(info: Any, in_dims: tuple[int | None, ...], *arguments: Any) -> tuple[Any, Any]:
        batch = []
        for index in range(info.batch_size):
            pairs = zip(arguments, in_dims, strict=True)
            element = (value if dim is None else value.select(dim, index) for value, dim in pairs)
            batch.append(compute(*element))
        if isinstance(batch[0], Tensor):
            return torch.stack(batch), 0
        stacked = tuple(torch.stack(results) for results in zip(*batch, strict=True))
        return stacked, (0,) * len(stacked)

    return rule


def _save_nothing(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    """Save nothing: a backward pass is not differentiable."""


def _check_tangents(arguments: tuple[Any, ...]) -> None:
    """Raise in forward mode, where torch would use a derivative of 0."""
    if _forward_ad._current_level < 0:
        return
    tensors = [x for x in arguments if isinstance(x, Tensor)]
    if any(_forward_ad.unpack_dual(x).tangent is not None for x in tensors):
        _raise_forward_mode()


def _raise_forward_mode(*_: Any) -> None:
    raise RuntimeError(
        "functions of headwise.entmax have no forward-mode derivative (torch.func.jvp, jacfwd, "
        "dual tensors); use torch.autograd.grad or torch.autograd.functional.jacobian"
    )


def raise_second_order(ctx: Any, *grads: Any) -> None:
    """Raise in place of the backward pass of a backward pass."""
    raise RuntimeError("functions of headwise.entmax can be differentiated once, not twice")
