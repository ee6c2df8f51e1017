"""What torch.compile is to leave alone, said without importing the compiler.

The decorators of `torch.compiler` import all of it (about two seconds) where they are written, in
programs that compile nothing too.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar, cast

import torch

P = ParamSpec("P")
T = TypeVar("T")


def outside_graphs(function: Callable[P, T]) -> Callable[P, T]:
    """Run by Python, in a compiled program too: `torch.compiler.disable`, asked for when needed."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        if not torch.compiler.is_compiling():
            return function(*args, **kwargs)
        kept = torch.compiler.disable(function)  # type: ignore[no-untyped-call]
        return cast("T", kept(*args, **kwargs))

    return call


def constant_in_graphs(function: Callable[P, T]) -> Callable[P, T]:
    """Run when a graph is made, its result a part of the graph.

    This is the mark that `torch.compiler.assume_constant_result` leaves.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function
