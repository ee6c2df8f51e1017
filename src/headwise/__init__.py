"""headwise: experiments with attention heads in Transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

__version__ = "0.1.0"


def load(run: str | Path, **options: Any) -> Any:
    """Load a trained run with the methods of its task; see `headwise.tasks.load.load`."""
    from headwise.tasks.load import load as load_run

    return load_run(run, **options)


def records(*paths: str | Path) -> Any:
    """Settings, costs and scores of runs as a DataFrame, one row a run; loads no torch.

    Args:
        paths: folders with runs, globs, or archives that `headwise runs export=…` wrote.

    Raises:
        RunError: a folder does not exist, or a file of a run is broken.
    """
    from headwise.runs.listing import frame

    return frame(paths)
