"""How much memory training takes."""

from __future__ import annotations

from pathlib import Path

import torch

from headwise.train.precision import return_free_pages

# Linux: writing 5 sets the high-water mark of the resident pages to what is resident now.
_CLEAR, _STATUS = Path("/proc/self/clear_refs"), Path("/proc/self/status")


class PeakMemory:
    """The most that updates held above what the process held when training began.

    Weights made before are not in it; gradients, moments and activations are. On a GPU it is what
    torch allocated, on Linux the resident pages of the process; elsewhere nothing is measured.

    Attributes:
        bytes: the most seen so far, or None where the system does not tell.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.bytes: int | None = None
        self._base: int | None = None

    def begin(self) -> None:
        """Training begins; what is held now is the base."""
        self._base = self._high_water_mark() if self.restart() else None
        self.bytes = None if self._base is None else 0

    def restart(self) -> bool:
        """Forget the mark that something else than an update has left; whether that is possible."""
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
            return True
        return_free_pages()
        try:
            _CLEAR.write_text("5", encoding="ascii")
        except OSError:  # another system, or a container that forbids it
            return False
        return True

    def look(self) -> None:
        """Take in the mark that the updates since the last call have left."""
        found = self._high_water_mark()
        if self.bytes is not None and self._base is not None and found is not None:
            self.bytes = max(self.bytes, found - self._base)

    def _high_water_mark(self) -> int | None:
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device)
        try:
            status = _STATUS.read_text(encoding="ascii")
        except OSError:
            return None
        marks = [line.split()[1] for line in status.splitlines() if line.startswith("VmHWM:")]
        return int(marks[0]) * 1024 if marks else None
