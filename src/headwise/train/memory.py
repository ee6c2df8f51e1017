"""Settings of the CPU memory allocator, and memory of this process."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from pathlib import Path

import torch

# mallopt's numbers in glibc's malloc.h
_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4
_NEVER = 2**31 - 1

_STATUS, _RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def keep_freed_memory() -> None:
    """Make glibc keep freed memory instead of returning it to the system.

    By default each large tensor is mapped, zeroed page by page and unmapped again: a quarter of a
    training step on a CPU. Without glibc it does nothing.
    """
    libc = _glibc()
    if libc is not None:
        libc.mallopt(_M_MMAP_MAX, 0)
        libc.mallopt(_M_TRIM_THRESHOLD, _NEVER)


def return_free_pages() -> None:
    """Return free memory to the system; called at validations, against fragmentation."""
    libc = _glibc()
    if libc is not None:
        libc.malloc_trim(0)


def _glibc() -> ctypes.CDLL | None:
    """The C library if it is glibc, else None."""
    if not sys.platform.startswith("linux"):
        return None
    libc = ctypes.CDLL(None)
    return libc if hasattr(libc, "gnu_get_libc_version") else None


def peak_memory(device: torch.device) -> Callable[[], int | None]:
    """Reset the peak memory of this process; return a function that reads it, in bytes.

    On CUDA it is the memory that torch allocated on the device, else the resident set of the
    process, with its libraries; None without Linux's /proc.
    """
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return lambda: torch.cuda.max_memory_allocated(device)
    return_free_pages()  # of earlier runs in this process
    try:
        _RESET.write_text("5")  # sets VmHWM to VmRSS
    except OSError:
        return lambda: None
    return lambda: resident_bytes("VmHWM")


def resident_bytes(field: str) -> int | None:
    """The resident set, `VmRSS`, or its peak, `VmHWM`, in bytes; None without Linux's /proc."""
    try:
        lines = _STATUS.read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(field)), None)
