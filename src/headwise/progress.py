"""Progress bars."""

from __future__ import annotations

from typing import NoReturn

from tqdm import tqdm


def progress_bar(
    what: str, shown: bool, total: int | None = None, unit: str = " pairs", delay: float = 0
) -> tqdm[NoReturn]:
    """A progress bar, shown if `shown` and on a terminal, after `delay` seconds."""
    hidden = None if shown else True
    options = {"unit": unit, "unit_scale": True, "leave": False, "delay": delay}
    return tqdm(desc=what, total=total, disable=hidden, **options)
