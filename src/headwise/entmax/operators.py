"""How what is computed here becomes operators of torch: `torch.ops.headwise`.

An operator is one node to torch.compile and to checkpointing, whatever stands behind it. On its way
through torch's dispatcher a call costs more than a map of a few thousand scores; where nobody
watches, it goes straight to what computes it. Under the transforms of torch.func that go backwards
(grad, vjp, jacrev) or over a batch (vmap) it is a function with rules for them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

_library: Any = torch.library  # without types of its own
_LIBRARY = _library.Library("headwise", "FRAGMENT")
_forward_ad: Any = forward_ad
_torch: Any = torch._C


def register(
    schema: str,
    compute: Callable[..., Any],
    shapes: Callable[..., Any],
    keep: Callable[..., None] | None = None,
    differentiate: Callable[..., Any] | None = None,
    dispatch: str = "CPU",
) -> Callable[..., Any]:
    """Register an operator, and return what calls it by the shortest way.

    Args:
        schema: name, arguments and results in torch's notation.
        compute: the results.
        shapes: the results without values, contiguous as those of `compute` are.
        keep, differentiate: set-up and backward pass of autograd; None: the operator is itself a
            backward pass, and its derivative is refused.
        dispatch: for which devices `compute` is.
    """
    name = schema.partition("(")[0]
    _LIBRARY.define(schema)
    _LIBRARY.impl(name, compute, dispatch)
    _library.register_fake(f"headwise::{name}", shapes, lib=_LIBRARY)
    _library.register_autograd(
        f"headwise::{name}", differentiate or _refuse, setup_context=keep, lib=_LIBRARY
    )
    operator = getattr(torch.ops.headwise, name)

    def below_autograd(*arguments: Any) -> Any:
        with _torch._AutoDispatchBelowADInplaceOrView():  # as in the dispatcher: no views to track
            return compute(*arguments)

    def forward(ctx: Any, *arguments: Any) -> Any:
        found = below_autograd(*arguments)
        if keep is not None:
            keep(ctx, arguments, found)
        return found

    def forward_below(*arguments: Any) -> Any:
        return call(*arguments)  # below one transform, where there may be others

    steps = {"forward": staticmethod(forward), "backward": staticmethod(differentiate or _refuse)}
    direct: Any = type(f"headwise_{name}", (torch.autograd.Function,), steps)
    # With a set-up of its own a function costs more to call, and can be transformed.
    steps |= {"forward": staticmethod(forward_below), "vmap": staticmethod(_each(forward_below))}
    steps |= {"setup_context": staticmethod(keep or _keep_nothing)}
    transformed: Any = type(f"headwise_{name}", (torch.autograd.Function,), steps)

    def call(*arguments: Any) -> Any:
        tensors = [one for one in arguments if isinstance(one, Tensor)]
        _refuse_tangents(tensors)
        if _torch._are_functorch_transforms_active() and not torch.compiler.is_compiling():
            return transformed.apply(*arguments)
        if not _nobody_watches(tensors):
            return operator(*arguments)
        if torch.is_grad_enabled() and any(one.requires_grad for one in tensors):
            return direct.apply(*arguments)
        return below_autograd(*arguments)

    return call


def _nobody_watches(tensors: list[Tensor]) -> bool:
    """No compiler, tracer, profiler, dispatch mode or tensor of a kind of its own."""
    if torch.compiler.is_compiling() or _torch._get_tracing_state() is not None:
        return False
    if _torch._len_torch_dispatch_stack() or _torch._autograd._profiler_enabled():
        return False
    return all(_is_plain(one) for one in tensors)


def _is_plain(tensor: Tensor) -> bool:
    if type(tensor) not in (Tensor, nn.Parameter) or tensor.is_meta:
        return False
    return not _torch._functorch.is_legacy_batchedtensor(tensor)


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


def _refuse_tangents(tensors: list[Tensor]) -> None:
    """Forward mode, for which torch would take the derivative of an operator for 0."""
    if _forward_ad._current_level < 0:
        return
    try:
        is_dual = any(_forward_ad.unpack_dual(one).tangent is not None for one in tensors)
    except RuntimeError:  # under vmap it does not tell
        is_dual = True
    if is_dual:
        raise RuntimeError(
            "what headwise.entmax computes has no forward-mode derivative (torch.func.jvp, jacfwd, "
            "dual tensors); take torch.autograd.grad or torch.autograd.functional.jacobian"
        )


def _refuse(ctx: Any, *grads: Any) -> None:
    raise RuntimeError("what headwise.entmax computes can be differentiated once, not twice")
