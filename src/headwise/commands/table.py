"""`headwise table`: the tables of a study or of a sweep, as Markdown, LaTeX and CSV."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pandas as pd

from headwise.analysis.tables import read_settings
from headwise.commands.analyze import analyze_folders
from headwise.commands.sweep import Sweep
from headwise.config.commands import AnalyzeConfig, Batching, TableConfig
from headwise.config.register import group_choices
from headwise.errors import ConfigError, RunError, counted, refuse, unset
from headwise.files import write_text
from headwise.runs.archive import find_records
from headwise.runs.folder import RunFolder
from headwise.studies.compare import StudyRuns, study_runs, with_differences
from headwise.studies.heads import head_tables
from headwise.studies.match import Missing, Unused, match, missing_cells
from headwise.studies.record import TaskRecord
from headwise.studies.render import TextTable, latex, latex_comment
from headwise.studies.study import (
    Study,
    check_metrics,
    check_seeds,
    read_study,
    recipes,
    selected,
)
from headwise.studies.sweep import sweep_tables
from headwise.studies.tables import study_tables

STOP_CODES = {128 + 2, 128 + 15, -2, -15}  # exit codes after SIGINT and SIGTERM
MAX_UNUSED = 10  # listed reasons for unused runs; the csv has all
MAIN = "from headwise.cli import main; main()"
OF_A_STUDY = ("rows", "columns", "seeds", "overrides", "launch", "heads")


def table(config: TableConfig) -> None:
    """Write the tables.

    Raises:
        ConfigError: neither a study nor runs, or options that cannot be combined.
        RunError: a folder does not exist, or a launched training failed.
    """
    if config.study is not None:
        _study(config)
        return
    if not config.runs:
        raise unset("study", f" ({', '.join(group_choices('study'))}) or runs=[FOLDER,…]")
    if needless := [key for key in OF_A_STUDY if getattr(config, key)]:
        raise ConfigError(f"{needless[0]}=… needs study=NAME")
    _sweep(config)


def _write(
    output: Path, name: str, text: str, tex: str, frames: Mapping[str, pd.DataFrame]
) -> None:
    """Write NAME.md and NAME.tex, and frames as NAME.csv or NAME-FRAME.csv."""
    output.mkdir(parents=True, exist_ok=True)
    contents = {f"{name}.md": text, f"{name}.tex": tex}
    for key, frame in frames.items():
        if len(frame) or not key:
            shown = frame.drop(columns="saved", errors="ignore")
            contents["-".join(filter(None, (name, key))) + ".csv"] = shown.to_csv(index=False)
    for file, content in contents.items():
        write_text(output / file, content)
    print(f"{text}\nwritten to {output}: {', '.join(contents)}", flush=True)


def _sweep(config: TableConfig) -> None:
    """Write the table of the runs in folders, or of the jobs of a sweep."""
    jobs: list[Mapping[str, Any]] = []
    for path in config.runs:
        folder = Path(path)
        records = Sweep(folder.name, folder).jobs()
        jobs += records or [{"run": run} for run in find_records([path], TaskRecord)]
    if not jobs:
        raise RunError(f"no runs in {', '.join(config.runs)}")
    scores, tables = sweep_tables(jobs, config.n_resamples, config.baseline)
    name = Path(config.runs[0]).resolve().name if len(config.runs) == 1 else "runs"
    output = Path(config.output or "outputs/tables")
    text = "\n".join(table.markdown() for table in tables)
    _write(output, name, text, _latex(name, name, tables), {"": scores})


def _latex(name: str, title: str, tables: Sequence[TextTable]) -> str:
    parts = [latex_comment(f"{title}\nNeeds \\usepackage{{booktabs,adjustbox}}.")]
    for shown in tables:
        slug = re.sub(r"[^a-z0-9]+", "-", shown.title.lower()).strip("-")
        parts.append(shown.latex("-".join(filter(None, (f"tab:{name}", slug)))))
    return "\n".join(parts).rstrip() + "\n"


# -- a study --------------------------------------------------------------------------------------


def _study(config: TableConfig) -> None:
    if config.seeds is not None:
        check_seeds("seeds", config.seeds)
    study = read_study(config.study)
    study.baseline = config.baseline or study.baseline
    if study.baseline not in (None, *study.rows):
        raise refuse("baseline", study.baseline, study.rows)
    study = selected(study, config.rows, config.columns)
    runs, failed = _gather(config, study), []
    tried: set[tuple[tuple[str, ...], int]] = set()
    while config.launch and (ready := _ready(runs.missing, tried)):
        failed += _launch(ready)
        runs = _gather(config, study)
    runs = with_differences(study, runs, config.n_resamples)
    tables = study_tables(study, runs, config.n_resamples)
    unused = [{"run": str(unused.run.folder), "reason": unused.reason} for unused in runs.unused]
    frames = {
        "": runs.scores,
        "differences": runs.differences,
        "unused": pd.DataFrame(unused, columns=["run", "reason"]),
    }
    if config.heads:
        analysed = _analysed(config, [*runs.runs.saved])
        frames["heads"], of_heads = head_tables(study, runs.runs, analysed)
        tables += of_heads
    tex = _latex(study.name, study.title, tables)
    tex += "".join(f"\\par {latex(note)}\n" for note in study.notes)
    tex += latex_comment("\n".join(f"missing: {m.command}" for m in runs.missing))
    output = Path(config.output or f"outputs/tables/{study.name}")
    _write(output, study.name, _markdown(config, study, runs, tables), tex, frames)
    if failed:
        commands = "\n".join(f"  {cell.command}" for cell in failed)
        raise RunError(f"{len(failed)} of the launched commands failed:\n{commands}")


def _gather(config: TableConfig, study: Study) -> StudyRuns:
    """The runs by cell, before averaging and comparison."""
    seeds = config.seeds if config.seeds is not None else study.seeds
    of_cells = recipes(study.cells, config.overrides)
    check_metrics(study, of_cells)
    runs = study_runs(study, of_cells, *match(of_cells, _runs(config, study), seeds))
    return replace(runs, missing=missing_cells(runs.runs, of_cells, seeds))


def _runs(config: TableConfig, study: Study) -> list[TaskRecord]:
    paths = config.runs or study.runs
    missing_ok = config.launch or not config.runs
    # launched runs may be in a new folder
    of_all = [*paths, *(study.runs if config.launch else ())]
    runs = find_records(of_all, TaskRecord, missing_ok)
    if not runs:
        print(f"no runs in {', '.join(paths) or 'any folder: give runs=[FOLDER,…]'}")
    return runs


def _markdown(
    config: TableConfig, study: Study, runs: StudyRuns, tables: Sequence[TextTable]
) -> str:
    notes = list(study.notes)
    if config.overrides:
        notes.append(f"Every recipe is changed by: {' '.join(config.overrides)}")
    parts = [f"# {study.title}", _bullets(notes), *(shown.markdown().strip() for shown in tables)]
    if runs.missing:
        entries = [
            f"{study.labels[cell.row]} × {study.columns[cell.column].label}, seed "
            f"{', '.join(map(str, cell.seeds))}: `{cell.command}`"
            for cell in runs.missing
        ]
        hint = (
            "Each command trains a missing run, or resumes it; HEADWISE_DATA or data.dir=FOLDER is "
            "the folder of the text."
        )
        parts.append(f"## Missing\n\n{hint}\n\n{_bullets(entries)}")
    if runs.unused:
        parts.append(f"## Runs not used\n\n{_bullets(_unused(runs.unused))}")
    return "\n\n".join(filter(None, parts)) + "\n"


def _bullets(lines: Sequence[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)


def _unused(others: Sequence[Unused]) -> list[str]:
    """Unused runs grouped by reason, those with the fewest differences first."""
    by_reason: dict[str, list[str]] = {}
    for unused in sorted(others, key=lambda unused: unused.n_differing):
        by_reason.setdefault(unused.reason, []).append(f"`{unused.run.folder}`")
    lines = [
        f"{reason}: {runs[0]}" + (f" and {len(runs) - 1} more" if len(runs) > 1 else "")
        for reason, runs in by_reason.items()
    ]
    if len(lines) > MAX_UNUSED:
        lines[MAX_UNUSED:] = [f"and {len(lines) - MAX_UNUSED} more reasons, listed in the csv"]
    return lines


def _analysed(config: TableConfig, runs: Sequence[TaskRecord]) -> set[Path]:
    """Folders of the runs with an analysis; runs without weights may have none."""
    folders = dict.fromkeys(run.folder for run in runs)
    with_weights = [str(f) for f in folders if any(RunFolder(f).checkpoints.glob("*.pt"))]
    if with_weights:
        shared = {field.name: getattr(config, field.name) for field in fields(Batching)}
        analyze_folders(AnalyzeConfig(runs=with_weights, **shared))
    analysed = {run.folder for run in runs if read_settings(run)}
    if without := [folder for folder in folders if folder not in analysed]:
        number = counted(len(without), "run")
        print(f"not analysed: {number} without weights, such as {without[0]}", flush=True)
    return analysed


def _ready(missing: Sequence[Missing], tried: set[tuple[tuple[str, ...], int]]) -> list[Missing]:
    """The cells that can be trained now, added to `tried`; those that were tried are left out.

    A run that several columns score is trained once.
    """
    ready = []
    for cell in (cell for cell in missing if cell.waits_for is None):
        keys = {(cell.overrides, seed) for seed in cell.seeds}
        if not keys <= tried:
            ready.append(cell)
            tried |= keys
    return ready


def _launch(missing: Sequence[Missing]) -> list[Missing]:
    """Run the commands in sequence, each in a new process; returns those that failed.

    Raises:
        KeyboardInterrupt: a command was stopped by SIGINT or SIGTERM.
    """
    failed = []
    for number, cell in enumerate(missing, start=1):
        print(f"[{number}/{len(missing)}] {cell.command}", flush=True)
        command = [sys.executable, "-c", MAIN, "train", *_config_dirs(), *cell.arguments]
        process = subprocess.run(command, env=os.environ, check=False)
        if process.returncode in STOP_CODES:
            raise KeyboardInterrupt
        if process.returncode:
            failed.append(cell)
            print(f"failed with exit code {process.returncode}: {cell.command}", flush=True)
    return failed


def _config_dirs() -> list[str]:
    """The `--config-dir` options of this command."""
    from hydra.core.hydra_config import HydraConfig

    if not HydraConfig.initialized():
        return []
    sources = HydraConfig.get().runtime.config_sources
    paths = [source.path for source in sources if source.provider == "command-line"]
    return [argument for path in paths for argument in ("--config-dir", path)]
