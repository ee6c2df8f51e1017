"""The kernels that are built together, and so are checked together."""

from __future__ import annotations

from typing import NamedTuple

import torch

from headwise.ops.family import Power

CPP, TRITON = "C++", "Triton"


def matmul_precision() -> str:
    """Return torch's setting for float32 matrix products; of CUDA if it is set by backend."""
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:  # torch.backends.….fp32_precision is set
        return f"{torch.backends.cuda.matmul.fp32_precision} of CUDA"


class Library(NamedTuple):
    """What is built and checked together.

    Attributes:
        kernel: `CPP`, all C++ kernels of this machine, or `TRITON`, those compiled for the
            attributes below.
        device: a GPU, with its index.
        dtype: of the inputs.
        power: the map.
        width: of the heads of attention; 0: maps and losses.
        has_pattern: whether attention has a sparse pattern.
        precision: `matmul_precision()`.
    """

    kernel: str
    device: torch.device = torch.device("cpu")
    dtype: torch.dtype = torch.float32
    power: Power = Power.EXP
    width: int = 0
    has_pattern: bool = False
    precision: str = "highest"

    def __str__(self) -> str:
        if self.kernel == CPP:
            return f"{CPP} kernels"
        more = f", heads of width {self.width}" if self.width else ""
        more += ", pattern" if self.has_pattern else ""
        dtype = str(self.dtype).removeprefix("torch.")
        return f"{TRITON} kernels on {self.device} ({dtype}, {self.power.name}{more})"
