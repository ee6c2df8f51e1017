"""Checks of tensors before a kernel reads or writes memory at their addresses.

An operator checks its arguments by its schema (`register.register`), before its computation and
before its shape function, so that tracing raises the same errors. The C++ and Triton launchers
check what they address with `check_tensor`, for callers that are no operators.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from headwise.ops.family import Power

BELOW_1 = math.nextafter(1, 0)
# Smallest and greatest values of arguments of operators that are numbers.
BOUNDS = {
    "power": (0, max(Power)),
    "alpha": (1, 2),
    "dropout": (0, BELOW_1),
    "smoothing": (0, BELOW_1),
    **dict.fromkeys(("query_offset", "n_prefix"), (0, math.inf)),
}


def check_tensor(
    name: str,
    values: Tensor,
    dtypes: Sequence[torch.dtype],
    shape: Sequence[int | None],
    device: torch.device,
    broadcasts: bool = False,
) -> None:
    """Check dtype, device, layout and shape.

    Args:
        name: of the argument, for the message.
        values: the argument.
        dtypes: allowed ones.
        shape: sizes of all axes; None: any.
        device: of all tensors of the call.
        broadcasts: whether axes of size 1 are allowed too.

    Raises:
        TypeError: another dtype, device or layout.
        ValueError: another shape.
    """
    if values.dtype not in dtypes or values.device != device or values.layout is not torch.strided:
        names = " or ".join(str(dtype) for dtype in dtypes)
        raise TypeError(
            f"{name} must be {names} on {device}, got {values.dtype} on {values.device} "
            f"({values.layout}): convert it with .to()"
        )
    if values.dim() != len(shape) or any(
        whole is not None and size != whole and not (broadcasts and size == 1)
        for size, whole in zip(values.shape, shape, strict=True)
    ):
        sizes = ", ".join("any" if whole is None else str(whole) for whole in shape)
        verb = "broadcast to" if broadcasts else "have"
        raise ValueError(f"{name} must {verb} shape ({sizes}), got {tuple(values.shape)}")


def checker(words: Sequence[Sequence[str]], dtypes: Sequence[torch.dtype]) -> Callable[..., None]:
    """Return a function that checks the arguments of an operator; errors as in `check_tensor`.

    Args:
        words: of each argument: type, name, and for a tensor its axes and dtypes. Equal letters are
            equal sizes, a digit is a size, `-` no axis; with `*` the tensor broadcasts.
        dtypes: of tensors without a dtype, which share one.
    """
    index_of = {name: index for index, (_, name, *_) in enumerate(words)}
    power, alpha, dropout = (index_of.get(name, 0) for name in ("power", "alpha", "dropout"))
    draws = index_of.get("seed", index_of.get("row_keys", 0))
    tensors, numbers = [], []
    for index, (_, name, *form) in enumerate(words):
        if form:
            named = [getattr(torch, dtype) for dtype in form[1:]]
            tensors.append((index, name, form[0].strip("*-"), named, form[0][0] == "*"))
        elif name in BOUNDS:
            numbers.append((index, name, *BOUNDS[name]))

    def check(*values: Any) -> None:
        for index, name, low, high in numbers:
            if not low <= values[index] <= high:
                raise ValueError(f"{name} must be in [{low}, {high}], got {values[index]}")
        if words[alpha][0] == "Tensor?" and (values[power] == Power.ANY) == (values[alpha] is None):
            raise ValueError(f"alpha is needed for power {Power.ANY}, and only for it")
        if dropout and values[dropout] > 0 and values[draws] is None:
            raise ValueError("dropout needs random numbers")
        sizes, device, shared = {"1": 1, "2": 2, "4": 4}, values[0].device, dtypes
        for index, name, axes, named, broadcasts in tensors:
            tensor = values[index]
            if tensor is None:
                continue
            shape, allowed, dtype = tensor.shape, named or shared, tensor.dtype
            fits = len(shape) == len(axes) and dtype in allowed and tensor.device == device
            for axis, size in zip(axes, shape):  # noqa: B905 - faster
                # not compared with a size of 1, as a size may depend on values while tracing
                is_one = broadcasts and size == 1
                fits = fits and (is_one or sizes.setdefault(axis, size) == size)
            if not fits or tensor.layout is not torch.strided:
                whole = [sizes.get(axis) for axis in axes]
                check_tensor(name, tensor, allowed, whole, device, broadcasts)
            if not named:
                shared = (dtype,)

    return check
