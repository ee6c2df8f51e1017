"""`scripts/page.py`: the HTML page of a run."""

from __future__ import annotations

from headwise.commands.analyze import analyze_folders
from headwise.config.commands import AnalyzeConfig, PageConfig
from headwise.page.write import write_page


def page(config: PageConfig) -> None:
    """Write the page of a run; see `write_page`. A run without an analysis is analysed first."""
    write_page(
        config,
        lambda folder: analyze_folders(
            AnalyzeConfig(runs=[str(folder)], checkpoint=config.checkpoint, device=config.device)
        ),
    )
