"""How the CPU's memory is handed out, and how much of it training takes."""

from __future__ import annotations

import ctypes
import sys

import torch

# mallopt's numbers in glibc's malloc.h
_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4
_NEVER = 2**31 - 1

LOOK_EVERY = 10  # updates between looks at the memory: malloc may take milliseconds to tell
LOOK_AT = 2  # the first that is looked at: there are no moments before


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
    """The most that an update holds and lets go of by its end, and what the optimizer keeps.

    On a GPU it is the most that torch had allocated. On a CPU it is what malloc had handed out
    before the output projection, where the activations of all layers are alive: temporaries of
    single operations, the chunks of the projection and the gradients of the batch are not in it
    (with `trainer.accumulate` those of the batches before are), nor what malloc keeps for later.
    What is there at the end of an update, such as weights, modules that it was the first to
    import, and whatever else the process does, is not the update's; the optimizer's moments are,
    and are added by their sizes.

    Args:
        device: of the model.
        optimizer: whose moments are counted; None leaves them out.

    Attributes:
        bytes: the most seen so far; None before the first look, at the second update, and on a
            CPU without glibc 2.33.
    """

    def __init__(
        self, device: torch.device, optimizer: torch.optim.Optimizer | None = None
    ) -> None:
        self.device = device
        self.optimizer = optimizer
        self.bytes: int | None = None
        self._is_looking = False
        self._most: int | None = None  # held in this update
        libc = None if device.type == "cuda" else glibc()
        self._ask = getattr(libc, "mallinfo2", None)  # since glibc 2.33
        if self._ask is not None:
            self._ask.restype = _Mallinfo2

    def begin(self, update: int) -> None:
        """Update number `update` begins; not every one is looked at."""
        self._is_looking = update % LOOK_EVERY == LOOK_AT
        self._most = None
        if self._is_looking and self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)

    def all_alive(self) -> None:
        """The activations of all layers are alive, for one of the batches of the update."""
        if not self._is_looking:
            return
        held = self._held()
        if held is not None:
            self._most = max(self._most or 0, held)

    def end(self) -> None:
        """The update is over, and its gradients are gone."""
        if not self._is_looking:
            return
        most = self._most
        if self.device.type == "cuda":
            most = torch.cuda.max_memory_allocated(self.device)
        held = self._held()
        if most is not None and held is not None:
            self.bytes = max(self.bytes or 0, most - held + self._moments())

    def _held(self) -> int | None:
        if self.device.type == "cuda":
            return torch.cuda.memory_allocated(self.device)
        if self._ask is None:
            return None
        found = self._ask()
        return int(found.uordblks + found.hblkhd)

    def _moments(self) -> int:
        states = self.optimizer.state.values() if self.optimizer is not None else ()
        kept = (value for state in states for value in state.values())
        return sum(value.nbytes for value in kept if isinstance(value, torch.Tensor))


class _Mallinfo2(ctypes.Structure):
    """`struct mallinfo2` of glibc's malloc.h, in bytes.

    `hblkhd` is in regions mapped for one block each, `uordblks` handed out of the heaps.
    """

    _names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
    _fields_ = tuple((name, ctypes.c_size_t) for name in _names.split())
