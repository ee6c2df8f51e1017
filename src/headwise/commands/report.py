"""`scripts/report.py`: tables of a paper, the page of a run, or figures of runs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from headwise.analysis.tables import FOLDER, read_settings
from headwise.commands.analyze import analyze_folders
from headwise.config.folders import group_choices
from headwise.config.schema import AnalyzeConfig, ReportConfig
from headwise.errors import ConfigError, RunError, counted, require
from headwise.files import check_output, write_text
from headwise.runs.folder import RunFolder, find_folders
from headwise.studies.cells import (
    ColumnRuns,
    Missing,
    cell_facts,
    column_runs,
    judge,
    missing_cells,
)
from headwise.studies.heads import head_tables, paper_head_facts
from headwise.studies.match import Matching, match
from headwise.studies.paper import (
    Paper,
    check_metrics,
    check_seeds,
    default_output,
    read_paper,
    recipe,
)
from headwise.studies.paper_tables import paper_tables
from headwise.studies.pruning import PruningReport, pruning_report
from headwise.studies.render import Fact, Table, fact_table, latex, latex_comment

STOP_CODES = {128 + 2, 128 + 15, -2, -15}  # exit codes after SIGINT and SIGTERM
MAX_UNUSED = 30  # listed reasons for unused runs; the csv has all
MAIN = "from headwise.cli import main; main()"


def report_runs(config: ReportConfig) -> None:
    """Write the requested reports.

    Raises:
        ConfigError: neither a paper nor a run, or options that cannot be combined.
        RunError: a folder does not exist, or a launched training failed.
    """
    _check(config)
    if config.page:
        from headwise.page.write import write_page

        write_page(config, lambda folder: _analyze(config, [folder]))
    elif config.compare is not None and config.run is not None:
        _compare(config, config.run, config.compare)
    if config.paper is not None:
        _report_paper(config)
    elif config.figures:
        paths = [config.run] if config.run is not None else config.runs
        _draw(config, find_folders(paths), _output(config))


def _check(config: ReportConfig) -> None:
    """Raise `ConfigError` for invalid options, before anything is read."""
    if config.paper is None and config.run is None and not (config.runs and config.figures):
        papers = ", ".join(group_choices("paper"))
        raise ConfigError(
            "nothing to report: give paper=NAME runs=[FOLDER,…] for the tables of a paper "
            f"({papers}), run=FOLDER page=true for a page of a run, figures=true for its figures"
        )
    if config.page and config.run is None:
        raise ConfigError("page=true needs run=FOLDER")
    if config.page and config.figures and config.output is not None:
        raise ConfigError("output= must be a file for page=true, a folder for figures=true")
    if config.run is not None and not (config.page or config.figures or config.compare):
        raise ConfigError(
            "run=FOLDER needs page=true, figures=true or both; or compare=FOLDER for tests between "
            "two runs"
        )
    if config.run is not None and config.paper is not None:
        raise ConfigError("paper= takes runs=[FOLDER,…], not run=")
    for key in ("launch", "heads"):
        if getattr(config, key) and config.paper is None:
            raise ConfigError(f"{key}=true needs paper=NAME")
    if config.sentence is not None and not (config.run and config.figures):
        raise ConfigError("sentence=… needs run=FOLDER figures=true")
    require(config.n_resamples >= 1, "n_resamples", "at least 1", config.n_resamples)
    if config.seeds is not None:
        check_seeds("seeds", config.seeds)


def _output(config: ReportConfig) -> Path:
    """Output folder of figures."""
    if config.output is not None:
        return Path(config.output)
    return Path("outputs/reports/figures" if config.run is None else f"{config.run}/figures")


def _compare(config: ReportConfig, run: str, other: str) -> None:
    from headwise.studies.paired import paired_tests

    folders = RunFolder.existing(run).path, RunFolder.existing(other, "compare").path
    table = paired_tests(*folders, config.n_resamples)
    print(table, flush=True)
    if config.output is not None:
        check_output(config.output)
        write_text(Path(config.output), f"{table}\n")


def _draw(config: ReportConfig, folders: Sequence[Path], output: Path) -> None:
    from headwise.studies.figures import draw_figures, unanalysed
    from headwise.studies.figures_attention import draw_attention

    if not folders:
        raise RunError("no runs to draw figures of")
    files = draw_figures(folders, output)
    if config.sentence is not None:
        checkpoint, device = config.checkpoint, config.device
        files += draw_attention(folders[0], config.sentence, output, checkpoint, device)
    without_tables = unanalysed(folders)
    if without_tables:
        print(
            f"{len(without_tables)} of {len(folders)} runs have no tables of their heads; run "
            f"scripts/analyze.py for them: {without_tables[0]} …"
        )
    print(f"written to {output}: {len(files)} files of figures", flush=True)


# -- a paper's tables -----------------------------------------------------------------------------


def _report_paper(config: ReportConfig) -> None:
    paper = read_paper(config.paper)
    report, failed = _gather(config, paper), []
    tried: set[tuple[str, str, int]] = set()
    while config.launch and (ready := _ready(report.missing, tried)):
        failed += _launch(ready)
        report = _gather(config, paper)
    judge(paper, report.columns, config.n_resamples)
    folders = list(dict.fromkeys(run.folder for c in report.columns for run in c.runs.run))
    facts, tables = _facts_and_tables(config, report, folders)
    text = _markdown(config, report, tables)
    print(text, flush=True)
    output = Path(config.output) if config.output is not None else default_output(paper)
    output.mkdir(parents=True, exist_ok=True)
    write_text(output / f"{paper.name}.md", text)
    write_text(output / f"{paper.name}.tex", _latex(report, tables))
    write_text(output / f"{paper.name}.csv", facts.to_csv(index=False))
    print(f"written to {output}: {paper.name}.md, .tex and .csv", flush=True)
    if config.figures:
        _draw(config, folders, output / "figures")
    if failed:
        commands = "\n".join(f"  {missing.command}" for missing in failed)
        raise RunError(f"{len(failed)} of the launched commands failed:\n{commands}")


@dataclass(frozen=True)
class _Report:
    """A paper with its matching runs."""

    paper: Paper
    matching: Matching
    columns: list[ColumnRuns]
    missing: list[Missing]
    pruning: PruningReport


def _gather(config: ReportConfig, paper: Paper) -> _Report:
    """The runs by cell, before averaging and comparison."""
    seeds = config.seeds if config.seeds is not None else paper.seeds
    recipes = [recipe(cell, config.overrides) for cell in paper.cells if cell.overrides]
    check_metrics(paper, recipes)
    matching = match(recipes, _run_folders(config, paper), seeds)
    columns = column_runs(paper, recipes, matching)
    has_pruning = paper.pruning or paper.pruned_runs
    return _Report(
        paper=paper,
        matching=matching,
        columns=columns,
        missing=missing_cells(columns, recipes, seeds),
        pruning=pruning_report(paper, matching.runs if has_pruning else []),
    )


def _run_folders(config: ReportConfig, paper: Paper) -> list[Path]:
    paths = config.runs or paper.runs
    missing_ok = config.launch or not config.runs
    # launched runs may be in a new folder
    folders = find_folders([*paths, *(paper.runs if config.launch else ())], missing_ok)
    if not folders:
        print(f"no runs in {', '.join(paths) or 'any folder: give runs=[FOLDER,…]'}")
    return folders


def _facts_and_tables(
    config: ReportConfig, report: _Report, folders: Sequence[Path]
) -> tuple[pd.DataFrame, list[Table]]:
    """All facts of the report, one per row, and its tables."""
    paper = report.paper
    per_cell = list(cell_facts(paper, report.columns, report.missing))
    signs = {column.name: column.sign for column in report.columns}
    tables = paper_tables(paper, fact_table(per_cell), config.n_resamples, signs)
    per_head: list[Fact] = []
    if config.heads:
        per_head = list(paper_head_facts(paper, report.columns, _analyses(config, folders)))
        tables += head_tables(paper, fact_table(per_head))
    unused = [
        {"origin": "ours", "quantity": "unused", "run": str(u.run.folder), "note": u.reason}
        for u in report.matching.unused
    ]
    facts = fact_table([*per_cell, *per_head, *report.pruning.facts, *unused])
    return facts.assign(paper=paper.name), [*tables, *report.pruning.tables]


def _markdown(config: ReportConfig, report: _Report, tables: Sequence[Table]) -> str:
    paper = report.paper
    notes = list(paper.notes)
    if config.overrides:
        notes.append(f"Every recipe is changed by: {' '.join(config.overrides)}")
    parts = [f"# {paper.title}", _bullets(notes), *(table.markdown().strip() for table in tables)]
    if report.missing:
        entries = [
            f"{paper.rows[cell.row]} × {paper.columns[cell.column].label}, seed "
            f"{', '.join(map(str, cell.seeds))}: `{cell.command}`"
            for cell in report.missing
        ]
        hint = (
            "Each command trains a missing run, or resumes it; HEADWISE_DATA or data.dir=FOLDER is "
            "the folder of the text."
        )
        parts.append(f"## Missing\n\n{hint}\n\n{_bullets(entries)}")
    if report.pruning.commands:
        commands = "\n".join(f"    {command}" for command in report.pruning.commands)
        parts.append(f"## Pruning tables not computed\n\nCommands that write them:\n\n{commands}")
    if unused := _unused(report.matching):
        parts.append(f"## Runs not used\n\n{_bullets(unused)}")
    return "\n\n".join(filter(None, parts)) + "\n"


def _bullets(lines: Sequence[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)


def _unused(matching: Matching) -> list[str]:
    """Unused runs grouped by reason, those with the fewest differences first."""
    by_reason: dict[str, list[str]] = {}
    for unused in sorted(matching.unused, key=lambda unused: unused.n_differing):
        by_reason.setdefault(unused.reason, []).append(f"`{unused.run.folder}`")
    lines = [f"{reason}: {', '.join(runs)}" for reason, runs in by_reason.items()]
    if len(lines) > MAX_UNUSED:
        lines[MAX_UNUSED:] = [f"and {len(lines) - MAX_UNUSED} more reasons, listed in the csv"]
    return lines


def _latex(report: _Report, tables: Sequence[Table]) -> str:
    paper = report.paper
    parts = [latex_comment(f"{paper.title}\nNeeds \\usepackage{{booktabs,adjustbox}}.")]
    for table in tables:
        slug = re.sub(r"[^a-z0-9]+", "-", table.title.lower()).strip("-")
        parts.append(table.latex(f"tab:{paper.name}-{slug}"))
    parts.append("".join(f"\\par {latex(note)}\n" for note in paper.notes))
    parts.append(latex_comment("\n".join(f"missing: {m.command}" for m in report.missing)))
    return "\n".join(parts).rstrip() + "\n"


def _analyses(config: ReportConfig, folders: Sequence[Path]) -> dict[Path, Path]:
    """Folder of each run -> folder of its analysis; runs without weights may have none."""
    with_weights = [f for f in folders if any(RunFolder(f).checkpoints.glob("*.pt"))]
    paths = _analyze(config, with_weights) if with_weights else []
    analyses = dict(zip(with_weights, paths, strict=True))
    analyses |= {f: f / FOLDER for f in folders if f not in analyses and read_settings(f / FOLDER)}
    if without := [folder for folder in folders if folder not in analyses]:
        number = counted(len(without), "run")
        print(f"not analysed: {number} without weights, such as {without[0]}", flush=True)
    return analyses


def _analyze(config: ReportConfig, folders: Sequence[Path]) -> list[Path]:
    """Folders of the analyses of runs; missing analyses are computed."""
    runs = list(map(str, folders))
    return analyze_folders(
        AnalyzeConfig(runs=runs, checkpoint=config.checkpoint, device=config.device)
    )


def _ready(missing: Sequence[Missing], tried: set[tuple[str, str, int]]) -> list[Missing]:
    """The cells that can be trained now, added to `tried`; those that were tried are left out."""
    ready = []
    for cell in (cell for cell in missing if cell.waits_for is None):
        keys = {(cell.row, cell.column, seed) for seed in cell.seeds}
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
