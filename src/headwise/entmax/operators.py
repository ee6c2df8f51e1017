"""How what is computed here becomes operators of torch: `torch.ops.headwise`.

An operator is one node to torch.compile and to checkpointing, whatever stands behind it. On its way
through torch's dispatcher a call costs more than a map of a few thousand scores; where nobody
watches, it goes straight to what computes it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

_library: Any = torch.library  # without types of its own
_LIBRARY = _library.Library("headwise", "FRAGMENT")
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

    class Direct(torch.autograd.Function):
        """The operator to autograd, without the dispatcher."""

        @staticmethod
        def forward(ctx: Any, *arguments: Any) -> Any:
            found = below_autograd(*arguments)
            if keep is not None:
                keep(ctx, arguments, found)
            return found

        @staticmethod
        def backward(ctx: Any, *grads: Tensor) -> Any:
            return (differentiate or _refuse)(ctx, *grads)

    def below_autograd(*arguments: Any) -> Any:
        with _torch._AutoDispatchBelowAutograd():
            return compute(*arguments)

    def call(*arguments: Any) -> Any:
        if not _nobody_watches(arguments):
            return operator(*arguments)
        tensors = (one for one in arguments if isinstance(one, Tensor))
        if torch.is_grad_enabled() and any(one.requires_grad for one in tensors):
            return Direct.apply(*arguments)  # type: ignore[no-untyped-call]
        return below_autograd(*arguments)

    return call


def _nobody_watches(arguments: tuple[Any, ...]) -> bool:
    """Neither a compiler nor a mode nor a kind of tensor that wants to see the operator."""
    if torch.compiler.is_compiling() or _torch._len_torch_dispatch_stack():
        return False
    if _torch._are_functorch_transforms_active():
        return False
    tensors = (one for one in arguments if isinstance(one, Tensor))
    return all(type(one) in (Tensor, nn.Parameter) and not one.is_meta for one in tensors)


def _refuse(ctx: Any, *grads: Any) -> None:
    raise RuntimeError("what headwise.entmax computes can be differentiated once, not twice")
