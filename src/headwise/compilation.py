"""Functions that torch.compile must not trace, and tensors of traces that must not be kept.

The decorators of `torch.compiler` import all of it (about two seconds), even in programs that
compile nothing.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar, cast

import torch

_Mode = torch._C._TorchDispatchModeKey
TRACES = _Mode.FAKE, _Mode.PROXY, _Mode.FUNCTIONAL
P = ParamSpec("P")
T = TypeVar("T")


def outside_graphs(function: Callable[P, T]) -> Callable[P, T]:
    """Run in Python even when compiled: `torch.compiler.disable`, applied when compiling."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        if not torch.compiler.is_compiling():
            return function(*args, **kwargs)
        disabled = torch.compiler.disable(function)  # type: ignore[no-untyped-call]
        return cast("T", disabled(*args, **kwargs))

    return call


def may_keep_tensors() -> bool:
    """Return whether a tensor that is made now may be kept for later calls.

    Not while torch.export or make_fx trace, torch.func transforms, or FakeTensorMode is active: it
    is of their kind then. torch.compile keeps real ones by itself.
    """
    if torch.compiler.is_dynamo_compiling():
        return True
    traces = any(torch._C._get_dispatch_mode(key) is not None for key in TRACES)
    return not (traces or torch._C._are_functorch_transforms_active())


def constant_in_graphs(function: Callable[P, T]) -> Callable[P, T]:
    """Run while tracing; the result is a constant of the graph.

    Sets the same attribute as `torch.compiler.assume_constant_result`.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


def is_traced() -> bool:
    """Return whether a call is compiled, exported or transformed, so that values are not there."""
    return torch.compiler.is_compiling() or is_for_export() or not may_keep_tensors()


def is_for_export() -> bool:
    """Return whether torch.export or torch.jit.trace, thus torch.onnx too, traces a model."""
    return torch.compiler.is_exporting() or torch._C._get_tracing_state() is not None
