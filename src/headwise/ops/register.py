"""Registration of torch operators: `torch.ops.headwise`.

An operator is one node for torch.compile, checkpointing, tracers and profilers. It has one
autograd.Function, called by torch's dispatcher, thus also within transforms of torch.func, and one
rule for vmap. A gradient registered with `torch.library` would raise under torch.func, and in
forward mode would silently be 0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor
from torch._functorch import autograd_function
from torch.autograd import forward_ad

from headwise.ops.arguments import checker

_library: Any = torch.library  # untyped
_LIBRARY = _library.Library("headwise", "FRAGMENT")
_functorch: Any = autograd_function
_forward_ad: Any = forward_ad
is_transformed: Callable[[], bool] = torch._C._are_functorch_transforms_active


def _save_nothing(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    """Save nothing: a backward pass is not differentiable."""


def raise_second_order(ctx: Any, *grads: Any) -> None:
    """Raise in place of the backward pass of a backward pass."""
    raise RuntimeError("functions of headwise.entmax can be differentiated once, not twice")


def _raise_forward_mode(ctx: Any, *tangents: Any) -> None:
    raise RuntimeError(
        "functions of headwise.entmax have no forward-mode derivative (torch.func.jvp, jacfwd, "
        "dual tensors); use torch.autograd.grad or torch.autograd.functional.jacobian"
    )


def register(
    schema: str,
    compute: Callable[..., Any],
    shapes: Callable[..., Any],
    dtypes: Sequence[torch.dtype],
    save: Callable[..., None] = _save_nothing,
    differentiate: Callable[..., Any] = raise_second_order,
) -> Callable[..., Any]:
    """Register an operator, and return it.

    Args:
        schema: name, arguments and results in torch's notation, with axes and dtypes of tensors,
            see `arguments.checker`.
        compute: arguments -> results.
        shapes: arguments -> results without values, with the same strides.
        dtypes: of tensors whose dtype the schema does not name.
        save, differentiate: `setup_context` and `backward` of autograd; by default the operator is
            a backward pass itself, and double backward raises.
    """
    name, _, rest = schema.partition("(")
    forms, _, results = rest.partition(") -> ")
    arguments = [argument.split() for argument in forms.split(", ")]
    check = checker(arguments, dtypes)
    schema = f"{name}({', '.join(' '.join(words[:2]) for words in arguments)}) -> {results}"
    _LIBRARY.define(schema)
    _LIBRARY.impl(name, _checked(check, compute), "CompositeExplicitAutograd")
    _library.register_fake(f"headwise::{name}", _checked(check, shapes), lib=_LIBRARY)
    operator: Callable[..., Any] = getattr(torch.ops.headwise, name).default
    _library.register_vmap(f"headwise::{name}", _each(operator), lib=_LIBRARY)
    _LIBRARY.impl(name, _derivative(operator, save, differentiate), "Autograd")
    return operator


def _checked(check: Callable[..., None], function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*arguments: Any) -> Any:
        check(*arguments)
        return function(*arguments)

    return call


def _derivative(
    operator: Callable[..., Any], save: Callable[..., None], differentiate: Callable[..., Any]
) -> Callable[..., Any]:
    """Return the operator for torch's key Autograd."""

    def compute(*arguments: Any) -> Any:
        with torch._C._AutoDispatchBelowAutograd():
            return operator(*arguments)

    class Derivative(torch.autograd.Function):
        @staticmethod
        def forward(*arguments: Any) -> Any:
            nested = is_transformed()  # other levels of torch.func may differentiate too
            with torch.set_grad_enabled(nested), _forward_ad._set_fwd_grad_enabled(nested):
                return compute(*arguments)

        setup_context = staticmethod(save)
        backward = staticmethod(differentiate)
        jvp = staticmethod(_raise_forward_mode)

    # Function.apply would read the signature in every call, and refuse one level of torch.func
    apply: Callable[..., Any] = super(torch.autograd.Function, Derivative).apply

    def call(*arguments: Any) -> Any:
        needs_grad = torch.is_grad_enabled() and torch._C._any_requires_grad(*arguments)
        if not needs_grad and _forward_ad._current_level < 0:
            return compute(*arguments)
        # allowed, as the dispatcher calls this once per level
        with _functorch.enable_single_level_autograd_function():
            return apply(*arguments)

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
) -> Callable[..., Any]:
    """Register an operator and its backward pass `…_backward`; return the operator.

    Args:
        name: of the operator.
        tensors, settings: its arguments, as in the schema of `register`.
        grad: axes and dtype of the first result, the only differentiable one.
        saved: the other results. They and all tensors are saved for the backward pass.
        n_gradients: number of differentiable tensors; they come first.
        forward, shapes: (*tensors, *settings) -> results, and the same without values.
        backward, backward_shapes: (gradient of the first result, *tensors, *saved, *settings,
            whether to compute the last gradient) -> gradients, and the same without values.
        dtypes: as for `register`.
    """
    n_tensors = tensors.count("Tensor")
    gradients = ", ".join(["Tensor"] * n_gradients)
    call_backward = register(
        f"{name}_backward(Tensor grad {grad}, {tensors}, {saved}, {settings}, bool with_last)"
        f" -> ({gradients})",
        backward,
        backward_shapes,
        dtypes,
    )

    def save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.save_for_backward(*inputs[:n_tensors], *output[1:])
        ctx.settings = inputs[n_tensors:]
        ctx.mark_non_differentiable(*output[1:])
        ctx.set_materialize_grads(False)

    def differentiate(ctx: Any, grad: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
        needed = ctx.needs_input_grad
        if grad is None:
            return (None,) * len(needed)
        results = call_backward(grad, *ctx.saved_tensors, *ctx.settings, needed[n_gradients - 1])
        pairs = zip_longest((results,) if n_gradients == 1 else results, needed)
        return tuple(gradient if is_needed else None for gradient, is_needed in pairs)

    results = ", ".join(["Tensor"] * (1 + saved.count("Tensor")))
    schema = f"{name}({tensors}, {settings}) -> ({results})"
    return register(schema, forward, shapes, dtypes, save, differentiate)


def _each(operator: Callable[..., Any]) -> Callable[..., Any]:
    """Return the rule of torch.func.vmap: one call per element of the batch."""

    def rule(info: Any, in_dims: tuple[int | None, ...], *arguments: Any) -> tuple[Any, Any]:
        def element(index: int) -> Any:
            pairs = zip(arguments, in_dims, strict=True)
            return operator(*(x if dim is None else x.select(dim, index) for x, dim in pairs))

        batch = [element(index) for index in range(info.batch_size)]
        if isinstance(batch[0], Tensor):
            return torch.stack(batch), 0
        stacked = tuple(torch.stack(results) for results in zip(*batch, strict=True))
        return stacked, (0,) * len(stacked)

    return rule
