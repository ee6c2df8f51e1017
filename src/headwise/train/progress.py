"""The progress bar of training: updates, tokens per second, time left."""

from __future__ import annotations

import sys
import time
from types import TracebackType

from tqdm import tqdm


class Progress:
    """A bar on a terminal, a line now and then elsewhere, silence where it is switched off."""

    def __init__(self, done: int, total: int, shown: bool) -> None:
        self._shown = shown
        self._total = total
        self._update = done
        self._notes: dict[str, float] = {}
        self._bar = tqdm(
            total=total,
            initial=done,
            unit="update",
            dynamic_ncols=True,
            disable=not (shown and sys.stderr.isatty()),
        )
        self._began = time.perf_counter()
        self._tokens = 0
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

    def advance(self, n_tokens: int) -> None:
        """One update more."""
        self._tokens += n_tokens
        self._update += 1
        self._bar.update()

    def show(self, **notes: float) -> None:
        """Tell the latest figures."""
        self._notes.update(notes)
        elapsed = max(time.perf_counter() - self._began, 1e-9)
        speed = f"{self._tokens / elapsed:.0f} tokens/s"
        # a bar is one line that has to hold all of it, elsewhere every line has its own news
        news = notes if self._bar.disable else self._notes
        told = ", ".join(f"{name} {value:.3f}" for name, value in news.items())
        if not self._bar.disable:
            self._bar.set_postfix_str(f"{speed}, {told}")
        elif self._shown:
            left = elapsed / max(self._update - self._began_at, 1) * (self._total - self._update)
            print(
                f"update {self._update}/{self._total}, {speed}, {left / 60:.1f} min left, {told}",
                file=sys.stderr,
                flush=True,
            )
