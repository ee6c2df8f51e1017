"""How the CPU's memory is handed out, and how much of it training takes."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch

# mallopt's numbers in glibc's malloc.h
_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4
_NEVER = 2**31 - 1


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


class PeakMemory:
    """The most that updates held above what the process held before.

    Made when the weights are there and the optimizer has nothing yet: moments and activations
    are in it, weights are not. On a GPU it is the most that torch had allocated. On a CPU it is
    what malloc had handed out before the output projection, where the activations of all layers
    are alive: temporaries of single operations, the chunks of the projection and gradients are not
    in it, nor what malloc keeps for later.

    Attributes:
        bytes: the most seen so far; None before the first look, and on a CPU without glibc 2.33.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.bytes: int | None = None
        libc = None if device.type == "cuda" else glibc()
        self._ask = getattr(libc, "mallinfo2", None)  # since glibc 2.33
        if self._ask is not None:
            self._ask.restype = _Mallinfo2
        self._restart()
        self._base = self._held()

    @contextmanager
    def aside(self) -> Iterator[None]:
        """For what is no update, such as a validation: what it takes and leaves is not counted."""
        before = self._held()
        yield
        self._restart()
        after = self._held()
        if self.device.type != "cuda" and before is not None and after is not None:
            assert self._base is not None
            self._base += after - before

    def _restart(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)

    def look(self) -> None:
        """Called where the activations of all layers are alive, on a GPU at any time after it."""
        held = self._held()
        if held is not None and self._base is not None:
            self.bytes = max(self.bytes or 0, held - self._base)

    def _held(self) -> int | None:
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device)
        if self._ask is None:
            return None
        found = self._ask()
        return int(found.uordblks + found.hblkhd)


class _Mallinfo2(ctypes.Structure):
    """`struct mallinfo2` of glibc's malloc.h, in bytes."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",  # in regions mapped for one block each
            "usmblks",
            "fsmblks",
            "uordblks",  # handed out of the heaps
            "fordblks",
            "keepcost",
        )
    )
