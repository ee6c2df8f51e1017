"""headwise: what attention heads do when they are free to be sparse."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headwise.tasks.loading import TrainedRun

__version__ = "0.1.0"


def load(run: str | Path, **options: Any) -> TrainedRun:
    """A trained run, ready to translate; see `headwise.tasks.loading.load`."""
    from headwise.tasks.loading import load as load_run

    return load_run(run, **options)
