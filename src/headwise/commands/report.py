"""What `scripts/report.py` does: a paper's tables from runs, or the page or the figures of runs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from headwise.commands.analyze import analyze_folders
from headwise.config_dir import group_choices
from headwise.errors import ConfigError, RunError, require
from headwise.files import write_text
from headwise.report.paper import Paper, Recipe, check_seeds, default_output, read_paper, recipe
from headwise.report.paper_cells import ColumnFigures, Missing, column_figures, judge, missing_cells
from headwise.report.paper_facts import COLUMNS, Fact, facts
from headwise.report.paper_heads import head_facts, head_tables, paper_head_facts
from headwise.report.paper_pruning import PruningReport, pruning_report
from headwise.report.paper_runs import Matching, match
from headwise.report.paper_tables import paper_tables
from headwise.report.tables import TextTable, csv_text, latex, latex_comment
from headwise.runs.folder import find_folders
from headwise.schema import AnalyzeConfig, ReportConfig

ON_REQUEST = {128 + 2, 128 + 15, -2, -15}  # exit codes after SIGINT and SIGTERM
N_UNUSED = 30  # reasons why runs fill no cell; the csv has them all
MAIN = "from headwise.cli import main; main()"


def report_runs(config: ReportConfig) -> None:
    """Write what was asked for.

    Raises:
        ConfigError: neither a paper nor a run, or options that do not go together.
        RunError: no such folder, or a training that was launched has failed.
    """
    _check(config)
    if config.page:
        from headwise.page.write import write_page

        write_page(config, lambda folder: _analyze(config, [folder]))
    if config.paper is not None:
        _report_paper(config)
    elif config.figures:
        given = [config.run] if config.run is not None else config.runs
        _draw(config, find_folders(given), _output(config))


def _check(config: ReportConfig) -> None:
    """Refuse what can be refused before anything is read."""
    if config.paper is None and config.run is None and not (config.runs and config.figures):
        papers = ", ".join(group_choices("paper"))
        raise ConfigError(
            "what shall be reported? paper=NAME runs=[FOLDER,…] makes a paper's tables "
            f"({papers}); run=FOLDER page=true a page of a run's heads, figures=true its figures"
        )
    if config.page and config.run is None:
        raise ConfigError("page=true needs run=FOLDER, whose heads are to be seen")
    if config.page and config.figures and config.output is not None:
        raise ConfigError("output= names a file for page=true and a folder for figures=true")
    if config.run is not None and not (config.page or config.figures):
        raise ConfigError("run=FOLDER needs page=true, figures=true or both")
    if config.run is not None and config.paper is not None:
        raise ConfigError("paper= takes runs=[FOLDER,…], and run= a page or figures; give one")
    for key in ("launch", "heads"):
        if getattr(config, key) and config.paper is None:
            raise ConfigError(f"{key}=true needs paper=NAME, whose cells' runs it is about")
    if config.sentence is not None and not (config.run and config.figures):
        raise ConfigError("sentence=… needs run=FOLDER figures=true, which it is drawn for")
    require(config.n_resamples >= 1, "n_resamples", "at least 1", config.n_resamples)
    if config.seeds is not None:
        check_seeds("seeds", config.seeds)


def _output(config: ReportConfig) -> Path:
    """Where figures of runs go."""
    if config.output is not None:
        return Path(config.output)
    return Path("outputs/reports/figures" if config.run is None else f"{config.run}/figures")


def _draw(config: ReportConfig, folders: Sequence[Path], output: Path) -> None:
    from headwise.report.figures import draw_figures, unanalysed
    from headwise.report.figures_attention import draw_attention

    if not folders:
        raise RunError("there is no run to draw figures of")
    files = draw_figures(folders, output)
    if config.sentence is not None:
        checkpoint, device = config.checkpoint, config.device
        files += draw_attention(folders[0], config.sentence, output, checkpoint, device)
    lacking = unanalysed(folders)
    if lacking:
        print(
            f"{len(lacking)} of {len(folders)} runs have no tables of their heads, which "
            f"scripts/analyze.py makes: {lacking[0]} …"
        )
    print(f"written to {output}: {len(files)} files of figures", flush=True)


# -- a paper's tables -----------------------------------------------------------------------------


def _report_paper(config: ReportConfig) -> None:
    paper = read_paper(config.paper)
    seeds = config.seeds if config.seeds is not None else paper.seeds
    recipes = [recipe(cell, config.overrides) for cell in paper.cells if cell.overrides]
    failed: list[Missing] = []
    if config.launch:
        matching, columns = _filled(paper, recipes, _run_folders(config, paper), seeds)
        failed = _launch(missing_cells(columns, matching))
    gathered = _gather(config, paper, recipes, seeds)
    runs = (run for figures in gathered.columns for run in figures.runs)
    folders = list(dict.fromkeys(run.folder for run in runs))
    output = Path(config.output) if config.output is not None else default_output(paper)
    of_heads: Sequence[Fact] = ()
    if config.heads:
        analyses = _analyses(config, folders)
        tables = head_tables(paper, gathered.columns, analyses)
        gathered = replace(gathered, heads=tables)
        of_heads = [*paper_head_facts(paper), *head_facts(gathered.columns, analyses)]
    text = gathered.markdown(config)
    print(text, flush=True)
    rows = facts(
        paper, gathered.columns, gathered.matching, gathered.missing, gathered.pruning, of_heads
    )
    output.mkdir(parents=True, exist_ok=True)
    for ending, content in (
        ("md", text),
        ("tex", gathered.latex()),
        ("csv", csv_text(COLUMNS, rows)),
    ):
        write_text(output / f"{paper.name}.{ending}", content)
    print(f"written to {output}: {paper.name}.md, .tex and .csv", flush=True)
    if config.figures:
        _draw(config, folders, output / "figures")
    if failed:
        commands = "\n".join(f"  {missing.command}" for missing in failed)
        raise RunError(f"{len(failed)} of the commands launched failed:\n{commands}")


@dataclass(frozen=True)
class _Gathered:
    """A paper and what there is for it."""

    paper: Paper
    columns: list[ColumnFigures]
    matching: Matching
    missing: list[Missing]
    pruning: PruningReport
    heads: Sequence[TextTable] = ()

    @property
    def tables(self) -> list[TextTable]:
        return [*paper_tables(self.paper, self.columns), *self.heads, *self.pruning.tables]

    def markdown(self, config: ReportConfig) -> str:
        parts = [f"# {self.paper.title}"]
        notes = list(self.paper.notes)
        if config.overrides:
            notes.append(f"Every recipe is changed by: {' '.join(config.overrides)}")
        if notes:
            parts.append("\n".join(f"- {note}" for note in notes))
        parts += [table.markdown().strip() for table in self.tables]
        if self.missing:
            named = [_missing_line(self.paper, self.columns, lack) for lack in self.missing]
            parts.append(
                "## Missing\n\nEach command trains what a cell lacks, and goes on with what was "
                "begun; where the text lies, HEADWISE_DATA or data.dir=FOLDER says.\n\n"
                + "\n".join(named)
            )
        if self.pruning.commands:
            commands = "\n".join(f"    {command}" for command in self.pruning.commands)
            parts.append(f"## Pruning tables that are missing\n\nThese make them:\n\n{commands}")
        unused = self._unused()
        if unused:
            parts.append("## Runs not used\n\n" + "\n".join(f"- {line}" for line in unused))
        return "\n\n".join(parts) + "\n"

    def _unused(self) -> list[str]:
        """Runs that fill no cell, those for one reason together, the nearest first."""
        together: dict[str, list[str]] = {}
        for unused in sorted(self.matching.unused, key=lambda unused: unused.n_differing):
            together.setdefault(unused.reason, []).append(f"`{unused.run.folder}`")
        lines = [f"{reason}: {', '.join(runs)}" for reason, runs in together.items()]
        if len(lines) > N_UNUSED:
            lines[N_UNUSED:] = [f"and {len(lines) - N_UNUSED} reasons more, which the csv names"]
        return [*lines, *self.matching.unreadable]

    def latex(self) -> str:
        head = latex_comment(f"{self.paper.title}\nNeeds \\usepackage{{booktabs}}.")
        tables = [table.latex(f"tab:{self.paper.name}-{_slug(table)}") for table in self.tables]
        notes = "".join(f"\\par {latex(note)}\n" for note in self.paper.notes)
        lacking = latex_comment("\n".join(f"missing: {lack.command}" for lack in self.missing))
        return "\n".join([head, *tables, notes, lacking]).rstrip() + "\n"


def _slug(table: TextTable) -> str:
    """A table's title as part of a label."""
    return re.sub(r"[^a-z0-9]+", "-", table.title.lower()).strip("-")


def _missing_line(paper: Paper, columns: Sequence[ColumnFigures], lack: Missing) -> str:
    label = next(c.column.label for c in columns if c.name == lack.column)
    seeds = ", ".join(map(str, lack.seeds))
    return f"- {paper.rows[lack.row]} × {label}, seed {seeds}: `{lack.command}`"


def _gather(
    config: ReportConfig, paper: Paper, recipes: Sequence[Recipe], seeds: Sequence[int]
) -> _Gathered:
    matching, columns = _filled(paper, recipes, _run_folders(config, paper), seeds)
    judge(paper, columns, config.n_resamples)
    pruning = PruningReport([], [], [])
    if paper.pruning or paper.pruned_runs:
        pruning = pruning_report(paper, matching.runs)
    return _Gathered(paper, columns, matching, missing_cells(columns, matching), pruning)


def _run_folders(config: ReportConfig, paper: Paper) -> list[Path]:
    given = config.runs or paper.runs
    may_lack = config.launch or not config.runs
    # what was launched may stand where no run stood before
    folders = find_folders([*given, *(paper.runs if config.launch else ())], may_lack)
    if not folders:
        print(f"there are no runs below {', '.join(given) or 'any folder: give runs=[FOLDER,…]'}")
    return folders


def _filled(
    paper: Paper, recipes: Sequence[Recipe], folders: Sequence[Path], seeds: Sequence[int]
) -> tuple[Matching, list[ColumnFigures]]:
    """The runs by cell, before anything is averaged or compared."""
    matching = match(recipes, folders, seeds)
    return matching, column_figures(paper, recipes, matching, seeds)


def _analyses(config: ReportConfig, folders: Sequence[Path]) -> dict[Path, Path]:
    """Analyses of the runs that fill cells; those that are missing are made."""
    if not folders:
        return {}
    return dict(zip(folders, _analyze(config, folders), strict=True))


def _analyze(config: ReportConfig, folders: Sequence[Path]) -> list[Path]:
    runs = list(map(str, folders))
    return analyze_folders(
        AnalyzeConfig(runs=runs, checkpoint=config.checkpoint, device=config.device)
    )


def _launch(missing: Sequence[Missing]) -> list[Missing]:
    """Run each command in a process of its own, one after another; returns those that failed.

    Raises:
        KeyboardInterrupt: one was stopped on request.
    """
    failed = []
    for number, lack in enumerate(missing, start=1):
        print(f"[{number}/{len(missing)}] {lack.command}", flush=True)
        command = [sys.executable, "-c", MAIN, "train", *_config_dirs(), *lack.arguments]
        done = subprocess.run(command, env=os.environ, check=False)
        if done.returncode in ON_REQUEST:
            raise KeyboardInterrupt
        if done.returncode:
            failed.append(lack)
            print(f"failed with exit code {done.returncode}: {lack.command}", flush=True)
    return failed


def _config_dirs() -> list[str]:
    """`--config-dir` as this command was given it."""
    from hydra.core.hydra_config import HydraConfig

    if not HydraConfig.initialized():
        return []
    sources = HydraConfig.get().runtime.config_sources
    found = [source.path for source in sources if source.provider == "command-line"]
    return [argument for path in found for argument in ("--config-dir", path)]
