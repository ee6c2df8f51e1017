"""How much memory training takes."""

from __future__ import annotations

import ctypes

import torch

from headwise.train.precision import glibc


class PeakMemory:
    """The most that updates held above what the process held when training began.

    Weights made before are not in it; gradients, moments and activations are. On a GPU it is the
    most that torch had allocated. On a CPU it is what malloc had handed out at the end of a
    forward pass, where all activations are alive; the temporaries of single operations are not in
    it, nor is what malloc keeps for later. Without glibc nothing is measured.

    Attributes:
        bytes: the most seen so far, or None where the system does not tell.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.bytes: int | None = None
        self._base = 0

    def begin(self) -> None:
        """Training begins; what is held now is the base."""
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
        held = self._held()
        if held is not None:
            self._base, self.bytes = held, 0

    def look(self) -> None:
        """Called at the end of a forward pass."""
        held = self._held()
        if held is not None and self.bytes is not None:
            self.bytes = max(self.bytes, held - self._base)

    def _held(self) -> int | None:
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device)
        libc = glibc()
        if libc is None or not hasattr(libc, "mallinfo2"):  # before glibc 2.33
            return None
        libc.mallinfo2.restype = _Mallinfo2
        found = libc.mallinfo2()
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
