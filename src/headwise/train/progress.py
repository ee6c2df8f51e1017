"""The progress of a training: its bar, and warnings if it is slow.

It is slow if its threads wait for processors, or if updates take longer than at first.
"""

from __future__ import annotations

import logging
import math
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from statistics import median

import torch
from tqdm import tqdm

from headwise.files import discard

THREADS = Path("/proc/self/task")
INTERVAL = 5.0  # seconds, at least
MOST = 0.1  # share of the time; 0.01 on a machine without other work, 0.36 beside one busy process
WINDOW = 20  # updates, at least: batches differ in shape
N_FIRST = 5  # windows that later ones are compared with
SLOWER = 3.0  # times, in two windows in succession: one may have compiled something

log = logging.getLogger(__name__)


class Progress:
    """A bar on a terminal, lines in a log; prints nothing unless `shown`."""

    def __init__(self, done: int, total: int, shown: bool) -> None:
        self._shown = shown
        self._total = total
        self._update = done
        self._notes: dict[str, float] = {}
        self._speed = ""
        self._bar = tqdm(
            total=total,
            initial=done,
            unit="update",
            dynamic_ncols=True,
            disable=not (shown and sys.stderr.isatty()),
        )
        self._started = time.perf_counter()
        self._first = done

    def close(self) -> None:
        """Close the bar."""
        self._bar.close()

    def advance(self) -> None:
        """Count one update."""
        self._update += 1
        self._bar.update()

    def show(self, tokens_per_second: float | None = None, **notes: float) -> None:
        """Print the latest values; the speed excludes validations."""
        self._notes.update(notes)
        if tokens_per_second is not None:
            self._speed = f"{tokens_per_second:.0f} tokens/s, "
        # the bar shows all values, a line in a log only the new ones
        if not self._bar.disable:
            self._bar.set_postfix_str(self._speed + _text(self._notes))
        elif self._shown:
            elapsed = time.perf_counter() - self._started
            left = elapsed / max(self._update - self._first, 1) * (self._total - self._update)
            speed = self._speed if tokens_per_second is not None else ""
            line = f"update {self._update}/{self._total}, {speed}{left / 60:.1f} min left, "
            try:
                print(line + _text(notes), file=sys.stderr, flush=True)
            except BrokenPipeError:  # a closed log pipe does not stop the run
                discard(sys.stderr.fileno())


def _text(notes: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:.3f}" for name, value in notes.items())


def waited() -> float:
    """Seconds in which threads of this process could run, but no processor was free.

    Summed over those that are alive; NaN without Linux's `schedstat`, or if one just ended.
    """
    with suppress(OSError):
        stats = [(thread / "schedstat").read_text() for thread in THREADS.iterdir()]
        return sum(int(text.split()[1]) for text in stats) / 1e9
    return math.nan


class ProcessorWatch:
    """Warns, once, if other processes take processors from torch's threads; once, if updates slow.

    Args:
        update, tokens, seconds: where training starts, as for `check_speed`.
    """

    def __init__(self, update: int = 0, tokens: int = 0, seconds: float = 0.0) -> None:
        self._threads = torch.get_num_threads()
        self._since, self._waited = time.perf_counter(), waited()
        # a single thread waits for no other one, and loses little
        self._is_busy, self._is_slow = self._threads == 1, False
        self._window = (update, tokens, seconds, self._since, self._waited)  # its start
        self._costs: list[tuple[float, float]] = []  # seconds per update and per token of windows

    def check(self) -> None:
        """Measure waiting since the last time; called after each update."""
        seconds = time.perf_counter() - self._since
        if self._is_busy or seconds < INTERVAL:
            return
        before, self._waited = self._waited, waited()
        self._since += seconds
        share = (self._waited - before) / (seconds * self._threads)
        self._is_busy = share > MOST
        if self._is_busy:
            log.warning(self._busy(share))

    def check_speed(self, update: int, tokens: int, seconds: float) -> None:
        """Compare the updates since the last time with the first ones; called at each log.

        Batches of other shapes change the time of an update or of a token, a slower machine both.

        Args:
            update: number of updates so far.
            tokens: target tokens so far.
            seconds: of training so far, without validations and checkpoints.
        """
        if self._is_slow or update < self._window[0] + WINDOW:
            return
        start, end = self._window, (update, tokens, seconds, time.perf_counter(), waited())
        self._window = end
        n_updates, n_tokens, passed, time_, wait = (b - a for a, b in zip(start, end, strict=True))
        self._costs.append((passed / n_updates, passed / max(n_tokens, 1)))
        slower = min(min(c[-2:]) / median(c[:N_FIRST]) for c in zip(*self._costs, strict=True))
        self._is_slow = slower > SLOWER
        if self._is_slow:
            share = wait / (time_ * self._threads)
            reason = f": {self._busy(share)}" if share > MOST else ""
            log.warning("updates take %.1f times as long as at first%s", slower, reason)

    def _busy(self, share: float) -> str:
        fewer = f", or lower trainer.threads={self._threads} (last bits will differ)"
        return (
            f"threads of this training waited for processors in {share:.0%} of the time. Stop "
            f"other processes{fewer if self._threads > 1 else ''}"
        )
