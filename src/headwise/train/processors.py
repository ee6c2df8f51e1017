"""Whether the threads of a training wait for processors that other processes use."""

from __future__ import annotations

import logging
import os
import time
from contextlib import suppress
from pathlib import Path

import torch

THREADS = Path("/proc/self/task")
INTERVAL = 5.0  # seconds, at least
MOST = 0.1  # share of the time; 0.01 on a machine without other work, 0.36 beside one busy process

log = logging.getLogger(__name__)


def waited() -> float | None:
    """Seconds in which threads of this process could run, but no processor was free.

    Summed over those that are alive; None without Linux's `schedstat`, or if one just ended.
    """
    with suppress(OSError):
        stats = [(thread / "schedstat").read_text() for thread in THREADS.iterdir()]
        return sum(int(text.split()[1]) for text in stats) / 1e9
    return None


class ProcessorWatch:
    """Warns, once, if other processes take processors from the threads of torch.

    A single thread waits for no other one, and loses little.
    """

    def __init__(self) -> None:
        self._threads = torch.get_num_threads()
        self._since, self._waited, self._is_done = time.perf_counter(), waited(), self._threads == 1

    def check(self) -> None:
        """Measure since the last time; called after each update."""
        seconds = time.perf_counter() - self._since
        if self._is_done or seconds < INTERVAL:
            return
        before, self._waited = self._waited, waited()
        self._since += seconds
        if before is None or self._waited is None:
            return
        share = (self._waited - before) / (seconds * self._threads)
        self._is_done = share > MOST
        if self._is_done:
            log.warning(
                "other processes keep the %s processors busy: the %d threads of this training "
                "waited for one in %.0f %% of the time. Stop them, or set fewer threads, such as "
                "trainer.threads=%d (last bits of results depend on it)",
                os.cpu_count(), self._threads, 100 * share, self._threads // 2,
            )  # fmt: skip
