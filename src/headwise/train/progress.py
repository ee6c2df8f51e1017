"""The progress bar of training: updates, tokens per second, time left."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping

from tqdm import tqdm

from headwise.files import discard


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
