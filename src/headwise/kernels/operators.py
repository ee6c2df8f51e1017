"""How what is computed here becomes operators of torch: `torch.ops.headwise`.

An operator is one node to torch.compile, checkpointing, tracers and profilers, whatever stands
behind it. Every call goes through torch's dispatcher, which costs 10 µs without a gradient and
35 µs with one, forward and backward (docs/speed.md). Under the transforms of torch.func that go
backwards (grad, vjp, jacrev) or over a batch (vmap) it is a function with rules for them: a
gradient registered with `torch.library` raises there, and forward mode would silently give 0.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

_library: Any = torch.library  # without types of its own
_LIBRARY = _library.Library("headwise", "FRAGMENT")
_forward_ad: Any = forward_ad
_is_transformed: Callable[[], bool] = torch._C._are_functorch_transforms_active


def register(
    schema: str,
    compute: Callable[..., Any],
    shapes: Callable[..., Any],
    keep: Callable[..., None] | None = None,
    differentiate: Callable[..., Any] | None = None,
    dispatch: str = "CPU",
) -> Callable[..., Any]:
    """Register an operator, and return what calls it.

    Args:
        schema: name, arguments and results in torch's notation.
        compute: the results.
        shapes: the results without values, contiguous as those of `compute` are.
        keep, differentiate: set-up and backward pass of autograd; None: the operator is itself a
            backward pass, and its derivative is refused.
        dispatch: for which devices `compute` is.
    """
    name = schema.partition("(")[0]
    backward = differentiate or _refuse_second
    _LIBRARY.define(schema)
    _LIBRARY.impl(name, compute, dispatch)
    _library.register_fake(f"headwise::{name}", shapes, lib=_LIBRARY)
    _library.register_autograd(f"headwise::{name}", backward, setup_context=keep, lib=_LIBRARY)
    operator = getattr(torch.ops.headwise, name).default

    def call(*arguments: Any) -> Any:
        if _is_transformed() and not torch.compiler.is_compiling():
            return transformed.apply(*arguments)
        _refuse_tangents(arguments)
        return operator(*arguments)

    def forward(*arguments: Any) -> Any:
        return call(*arguments)  # below one transform, where there may be others

    rules = {
        "forward": forward,
        "setup_context": keep or _keep_nothing,
        "backward": backward,
        "vmap": _each(forward),
        "jvp": _refuse_forward_mode,
    }
    static = {rule: staticmethod(function) for rule, function in rules.items()}
    transformed: Any = type(f"headwise_{name}", (torch.autograd.Function,), static)
    return call


def register_pair(
    name: str,
    tensors: str,
    settings: str,
    n_kept: int,
    n_gradients: int,
    forward: Callable[..., Any],
    shapes: Callable[..., Any],
    backward: Callable[..., Any],
    backward_shapes: Callable[..., Any],
    dispatch: str = "CPU",
) -> Callable[..., Any]:
    """Register an operator and its backward pass `…_backward`, and return what calls the first.

    Args:
        name: of the operator.
        tensors, settings: its arguments, in torch's notation.
        n_kept: results beyond the first, which alone is differentiable: they and all tensors are
            kept for the way back.
        n_gradients: first tensors that are differentiable.
        forward, shapes: (*tensors, *settings) -> results, and the same without values.
        backward, backward_shapes: (gradient of the first result, *tensors, *kept, *settings,
            whether the gradient of the last such tensor is wanted) -> gradients; likewise.
        dispatch: as for `register`.
    """
    n_tensors = tensors.count("Tensor")
    kept = "".join(f", Tensor kept_{place}" for place in range(n_kept))
    gradients = ", ".join(["Tensor"] * n_gradients)
    call_backward = register(
        f"{name}_backward(Tensor grad, {tensors}{kept}, {settings}, bool with_last)"
        f" -> ({gradients})",
        backward,
        backward_shapes,
        dispatch=dispatch,
    )

    def keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.save_for_backward(*inputs[:n_tensors], *output[1:])
        ctx.settings = inputs[n_tensors:]
        ctx.mark_non_differentiable(*output[1:])
        ctx.set_materialize_grads(False)

    def differentiate(ctx: Any, grad: Tensor, *_: None) -> tuple[Tensor | None, ...]:
        wanted = ctx.needs_input_grad[:n_gradients]
        found = call_backward(grad, *ctx.saved_tensors, *ctx.settings, wanted[-1])
        found = (found,) if n_gradients == 1 else found
        pairs = zip(found, wanted, strict=True)
        constant = (None,) * (n_tensors - n_gradients + len(ctx.settings))
        return *(one if is_wanted else None for one, is_wanted in pairs), *constant

    results = ", ".join(["Tensor"] * (1 + n_kept))
    schema = f"{name}({tensors}, {settings}) -> ({results})"
    return register(schema, forward, shapes, keep, differentiate, dispatch)


def _each(compute: Callable[..., Any]) -> Callable[..., Any]:
    """The rule of torch.func.vmap: the calls of the batch, one after the other."""

    def rule(info: Any, in_dims: tuple[int | None, ...], *arguments: Any) -> tuple[Any, Any]:
        batch = []
        for place in range(info.batch_size):
            pairs = zip(arguments, in_dims, strict=True)
            one = (value if dim is None else value.select(dim, place) for value, dim in pairs)
            batch.append(compute(*one))
        if isinstance(batch[0], Tensor):
            return torch.stack(batch), 0
        found = tuple(torch.stack(results) for results in zip(*batch, strict=True))
        return found, (0,) * len(found)

    return rule


def _keep_nothing(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    """For a backward pass, which has no derivative."""


def _refuse_tangents(arguments: tuple[Any, ...]) -> None:
    """Forward mode, for which torch would take the derivative of an operator for 0."""
    if _forward_ad._current_level < 0:
        return
    tensors = [one for one in arguments if isinstance(one, Tensor)]
    if any(_forward_ad.unpack_dual(one).tangent is not None for one in tensors):
        _refuse_forward_mode()


def _refuse_forward_mode(*_: Any) -> None:
    raise RuntimeError(
        "what headwise.entmax computes has no forward-mode derivative (torch.func.jvp, jacfwd, "
        "dual tensors); take torch.autograd.grad or torch.autograd.functional.jacobian"
    )


def _refuse_second(ctx: Any, *grads: Any) -> None:
    raise RuntimeError("what headwise.entmax computes can be differentiated once, not twice")
