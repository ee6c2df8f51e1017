"""Calls of the C++ kernels through ctypes: structs of the headers, and addresses of tensors.

Axes: B batch, H heads, Q and K numbers of queries and keys.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from headwise.compilation import constant_in_graphs
from headwise.ops.arguments import check_tensor
from headwise.ops.cpp.build import SOURCES, unavailable_reason

DTYPES = (torch.float32, torch.bfloat16)


FLOAT, CPU = (torch.float32,), torch.device("cpu")


def structure(name: str) -> type[ctypes.Structure]:
    """Return a struct as declared in the headers of this folder; unset fields are 0 or null."""
    headers = "".join(header.read_text(encoding="utf-8") for header in sorted(SOURCES.glob("*.h")))
    body = headers.partition(f"struct {name} {{")[2].partition("};")[0]
    body = re.sub(r"//.*|\bconst ", "", body)
    fields: list[tuple[str, Any]] = []
    for c_type, star, names in re.findall(r"(\w+)(\*?) ([^;]+);", body):
        if star:
            field_type: Any = ctypes.c_void_p
        elif c_type == "Problem":
            field_type = Problem
        else:
            field_type = getattr(ctypes, f"c_{c_type.removesuffix('_t')}")
        for field, size in re.findall(r"(\w+)(?:\[(\d+)\])?", names):
            fields.append((field, field_type * int(size) if size else field_type))
    return type(name, (ctypes.Structure,), {"_fields_": fields})


Problem: Any = structure("Problem")


def supports(scores: Tensor) -> bool:
    """Return whether kernels support the scores: float32 or bfloat16 on CPU, with kernels built."""
    return scores.device.type == "cpu" and scores.dtype in DTYPES and _are_available()


@constant_in_graphs
def _are_available() -> bool:
    return unavailable_reason() is None


def address(
    values: Tensor,
    dtypes: Sequence[torch.dtype],
    shape: tuple[int, ...] | None = None,
    is_strided: bool = False,
) -> int:
    """Return the address of the values, after checking that the kernels support them.

    Raises:
        TypeError: another dtype or device, or not contiguous.
        ValueError: another shape, if it is given.
    """
    is_dense = values.is_cpu and values.layout is torch.strided
    if values.dtype not in dtypes or not is_dense or (shape and values.shape != shape):
        check_tensor("a tensor of the C++ kernels", values, dtypes, shape or values.shape, CPU)
    if not (is_strided or values.is_contiguous()):
        raise TypeError(f"the C++ kernels need contiguous values, got strides {values.stride()}")
    return values.data_ptr()


def readable(mask: Tensor) -> Tensor:
    """Return the mask with a last axis that is contiguous or broadcast, as the kernels need."""
    is_readable = mask.shape[-1] == 1 or mask.stride(-1) in (0, 1)
    return mask if is_readable else mask.contiguous()
