"""How what is computed here becomes operators of torch: `torch.ops.headwise`.

An operator is one node to torch.compile and to checkpointing, whatever stands behind it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

_library: Any = torch.library  # without types of its own
_LIBRARY = _library.Library("headwise", "FRAGMENT")


def register(
    schema: str,
    compute: Callable[..., Any],
    shapes: Callable[..., Any],
    keep: Callable[..., None] | None = None,
    differentiate: Callable[..., Any] | None = None,
    dispatch: str = "CPU",
) -> None:
    """Register an operator.

    Args:
        schema: name, arguments and results in torch's notation.
        compute: the results.
        shapes: the results without values, contiguous as those of `compute` are.
        keep, differentiate: set-up and backward pass of autograd; None: the operator is itself a
            backward pass, and its derivative is refused.
        dispatch: for which devices `compute` is.
    """
    name = f"headwise::{schema.partition('(')[0]}"
    _LIBRARY.define(schema)
    _LIBRARY.impl(name.partition("::")[2], compute, dispatch)
    _library.register_fake(name, shapes, lib=_LIBRARY)
    _library.register_autograd(name, differentiate or _refuse, setup_context=keep, lib=_LIBRARY)


def _refuse(ctx: Any, *grads: Any) -> None:
    raise RuntimeError("what headwise.entmax computes can be differentiated once, not twice")
