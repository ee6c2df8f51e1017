"""Settings of the CPU memory allocator, and the peak memory of training."""

from __future__ import annotations

import ctypes
import sys

import torch

# mallopt's numbers in glibc's malloc.h
_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4
_NEVER = 2**31 - 1

MEASURE_EVERY = 10  # updates between measurements: mallinfo2 may take milliseconds
FIRST_MEASURED = 2  # update; the optimizer's moments do not exist before the first step


def keep_freed_memory() -> None:
    """Make glibc keep freed memory instead of returning it to the system.

    By default each large tensor is mapped, zeroed page by page and unmapped again: a quarter of a
    training step on a CPU (see the journal). Without glibc it does nothing.
    """
    libc = glibc()
    if libc is not None:
        libc.mallopt(_M_MMAP_MAX, 0)
        libc.mallopt(_M_TRIM_THRESHOLD, _NEVER)


def return_free_pages() -> None:
    """Return free memory to the system; called at validations, against fragmentation."""
    libc = glibc()
    if libc is not None:
        libc.malloc_trim(0)


def glibc() -> ctypes.CDLL | None:
    """The C library if it is glibc, else None."""
    if not sys.platform.startswith("linux"):
        return None
    libc = ctypes.CDLL(None)
    return libc if hasattr(libc, "gnu_get_libc_version") else None


class PeakMemory:
    """Peak memory of an update beyond what remains at its end, plus the optimizer's moments.

    On a GPU the peak is torch's maximum of allocated memory. On a CPU it is the memory allocated by
    malloc before the output projection, where the activations of all layers are alive. It excludes
    temporaries of single operations, the chunks of the projection, the gradients of the batch (not
    those of earlier batches with `trainer.accumulate`) and freed memory that malloc keeps. Memory
    that remains at the end of an update, such as weights and imported modules, is subtracted.

    Args:
        device: of the model.
        optimizer: its moments are added; None adds none.

    Attributes:
        bytes: maximum of the measured updates; None before the second update and on a CPU
            without glibc 2.33.
    """

    def __init__(
        self, device: torch.device, optimizer: torch.optim.Optimizer | None = None
    ) -> None:
        self.device = device
        self.optimizer = optimizer
        self.bytes: int | None = None
        self._is_measuring = False
        self._peak: int | None = None  # of this update
        libc = None if device.type == "cuda" else glibc()
        self._mallinfo = getattr(libc, "mallinfo2", None)  # since glibc 2.33
        if self._mallinfo is not None:
            self._mallinfo.restype = _Mallinfo2

    def begin(self, update: int) -> None:
        """Start update number `update`; every `MEASURE_EVERY`-th is measured."""
        self._is_measuring = update % MEASURE_EVERY == FIRST_MEASURED
        self._peak = None
        if self._is_measuring and self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)

    def measure(self) -> None:
        """Measure now, with the activations of all layers of a batch alive."""
        if not self._is_measuring:
            return
        allocated = self._allocated()
        if allocated is not None:
            self._peak = max(self._peak or 0, allocated)

    def end(self) -> None:
        """End the update, after its gradients were freed."""
        if not self._is_measuring:
            return
        peak = self._peak
        if self.device.type == "cuda":
            peak = torch.cuda.max_memory_allocated(self.device)
        allocated = self._allocated()
        if peak is not None and allocated is not None:
            self.bytes = max(self.bytes or 0, peak - allocated + self._moments())

    def _allocated(self) -> int | None:
        if self.device.type == "cuda":
            return torch.cuda.memory_allocated(self.device)
        if self._mallinfo is None:
            return None
        info = self._mallinfo()
        return int(info.uordblks + info.hblkhd)

    def _moments(self) -> int:
        states = self.optimizer.state.values() if self.optimizer is not None else ()
        values = (value for state in states for value in state.values())
        return sum(value.nbytes for value in values if isinstance(value, torch.Tensor))


class _Mallinfo2(ctypes.Structure):
    """`struct mallinfo2` of glibc's malloc.h, in bytes.

    `hblkhd` is allocated by mmap, `uordblks` from the heaps.
    """

    _names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
    _fields_ = tuple((name, ctypes.c_size_t) for name in _names.split())
