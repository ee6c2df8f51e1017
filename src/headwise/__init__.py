"""headwise: what attention heads do when they are free to be sparse."""

from __future__ import annotations

from pathlib import Path
from typing import Any

__version__ = "0.1.0"


def load(run: str | Path, **options: Any) -> Any:
    """A trained run with what its task can do; see `headwise.tasks.loading.load`."""
    from headwise.tasks.loading import load as load_run

    return load_run(run, **options)
