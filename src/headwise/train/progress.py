"""The progress bar of training: updates, tokens per second, time left."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from types import TracebackType

from tqdm import tqdm

from headwise.files import discard


class Progress:
    """A bar on a terminal, a line now and then elsewhere, silence where it is switched off."""

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
        self._began = time.perf_counter()
        self._began_at = done

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.close()

    def advance(self) -> None:
        """One update more."""
        self._update += 1
        self._bar.update()

    def show(self, tokens_per_second: float | None = None, **notes: float) -> None:
        """Tell the latest figures; the speed is that of the updates, without validations."""
        self._notes.update(notes)
        if tokens_per_second is not None:
            self._speed = f"{tokens_per_second:.0f} tokens/s, "
        # a bar is one line that has to hold all of it, elsewhere every line has its own news
        if not self._bar.disable:
            self._bar.set_postfix_str(self._speed + _told(self._notes))
        elif self._shown:
            elapsed = time.perf_counter() - self._began
            left = elapsed / max(self._update - self._began_at, 1) * (self._total - self._update)
            speed = self._speed if tokens_per_second is not None else ""
            line = f"update {self._update}/{self._total}, {speed}{left / 60:.1f} min left, "
            try:
                print(line + _told(notes), file=sys.stderr, flush=True)
            except BrokenPipeError:  # a run does not end because nobody reads its log any more
                discard(sys.stderr.fileno())


def _told(notes: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:.3f}" for name, value in notes.items())
