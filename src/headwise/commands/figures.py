"""`scripts/figures.py`: figures of one run or of several."""

from __future__ import annotations

from pathlib import Path

from headwise.analysis.tables import HEADS
from headwise.config.commands import FiguresConfig
from headwise.errors import ConfigError, RunError
from headwise.runs.archive import existing_record, find_records
from headwise.studies.figures import draw_figures
from headwise.studies.figures_attention import draw_attention
from headwise.studies.record import TaskRecord


def figures(config: FiguresConfig) -> None:
    """Draw the figures.

    Raises:
        ConfigError: no run, or options that cannot be combined.
        RunError: a folder is no run.
        DataError: the sentence is empty or too long for the model.
    """
    config.check_runs()
    if config.sentence is not None and config.run is None:
        raise ConfigError("sentence=… needs run=FOLDER")
    if config.run is not None:
        runs = [existing_record(config.run, TaskRecord)]
        output = Path(config.output or runs[0].folder / "figures")
    else:
        runs = find_records(config.runs, TaskRecord)
        output = Path(config.output or "outputs/figures")
    if not runs:
        raise RunError("no runs to draw figures of")
    files = draw_figures(runs, output)
    if config.sentence is not None:
        checkpoint, device = config.checkpoint, config.device
        files += draw_attention(runs[0].folder, config.sentence, output, checkpoint, device)
    if without_tables := [run.folder for run in runs if not HEADS.is_in(run)]:
        print(
            f"{len(without_tables)} of {len(runs)} runs have no tables of their heads; run "
            f"scripts/analyze.py for them: {without_tables[0]} …"
        )
    print(f"written to {output}: {len(files)} files of figures", flush=True)
