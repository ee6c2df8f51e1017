"""Which numbers a run multiplies, and how the CPU's memory is handed out."""

from __future__ import annotations

import ctypes
import os
import sys
from contextlib import AbstractContextManager, nullcontext

import torch

from headwise.errors import refuse

PRECISIONS = ("auto", "fp32", "bf16")

# mallopt's numbers in glibc's malloc.h
_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4
_NEVER = 2**31 - 1


def resolve_precision(name: str, device: torch.device) -> str:
    """`auto` is bf16 where the device multiplies it natively, else fp32.

    Autocast keeps weights, softmax, entmax, norms and the loss in float32.
    """
    if name not in PRECISIONS:
        raise refuse("trainer.precision", name, PRECISIONS)
    if name != "auto":
        return name
    return "bf16" if multiplies_bf16(device) else "fp32"


def multiplies_bf16(device: torch.device) -> bool:
    """Whether matrix products in bf16 run on units of their own."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    ask = getattr(torch.cpu, "get_capabilities", dict)  # older versions cannot tell
    capabilities: dict[str, object] = ask()
    return bool(capabilities.get("avx512_bf16") or capabilities.get("amx_bf16"))


def autocast(device: torch.device, precision: str) -> AbstractContextManager[object]:
    """The context of the forward pass."""
    if precision == "bf16":
        return torch.autocast(device.type, torch.bfloat16)
    return nullcontext()


def ask_for_same_bits(device: torch.device) -> None:
    """Have a GPU take deterministic kernels where it has them; a CPU's are so by themselves."""
    if device.type == "cuda":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True, warn_only=True)


def keep_freed_memory() -> None:
    """Have glibc keep what tensors free instead of giving it back after every operation.

    By default each large tensor is mapped, zeroed page by page and unmapped again: a quarter of a
    training step on a CPU (the journal has the figures). Elsewhere nothing happens.
    """
    libc = glibc()
    if libc is not None:
        libc.mallopt(_M_MMAP_MAX, 0)
        libc.mallopt(_M_TRIM_THRESHOLD, _NEVER)


def return_free_pages() -> None:
    """Give back what `keep_freed_memory` kept; now and then, as kept memory fragments."""
    libc = glibc()
    if libc is not None:
        libc.malloc_trim(0)


def glibc() -> ctypes.CDLL | None:
    """The C library, where it is glibc."""
    if not sys.platform.startswith("linux"):
        return None
    libc = ctypes.CDLL(None)
    return libc if hasattr(libc, "gnu_get_libc_version") else None
