"""What the runs of each cell come to: means over seeds, and comparisons within a column.

Nothing is averaged or compared before it is known to be of one kind: the BLEU signatures of a
column must be one, and its training text one. Where they are not, the runs are named instead.
"""

from __future__ import annotations

import shlex
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from headwise.errors import DataError
from headwise.metrics.significance import (
    Comparison,
    corpus_bleu,
    paired_bootstrap,
    sentence_statistics,
)
from headwise.report.paper import Cell, Column, Paper, Recipe
from headwise.report.paper_runs import FoundRun, Matching, Unused

PLAIN_BLEU = "bleu"  # sacreBLEU's, on detokenised text
ROUNDING = 0.005  # BLEU computed again from the files may differ by this much


@dataclass
class CellFigures:
    """A cell, its runs, and what they come to.

    Attributes:
        cell: of the paper; None where it has none at this place.
        recipe: of the cell, if it has one.
        runs: those that fill it, by seed.
        missing: seeds that no run has.
        comparison: with the baseline's runs of the same seeds; None where there is none.
        speed: tokens/s in percent of the baseline's: ratio of medians, and the lowest and highest
            ratio of runs of one seed; None where it cannot be compared.
    """

    cell: Cell | None
    recipe: Recipe | None = None
    runs: list[FoundRun] = field(default_factory=list)
    missing: list[int] = field(default_factory=list)
    comparison: Comparison | None = None
    speed: tuple[float, float, float] | None = None


@dataclass
class ColumnFigures:
    """A column with its cells by row.

    Attributes:
        problems: why nothing in it may be averaged.
        notes: what a reader of its numbers must know.
    """

    name: str
    column: Column
    metric: str
    cells: dict[str, CellFigures]
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def scores(self, row: str, metric: str | None = None) -> dict[int, float]:
        """Seed -> score of the runs of a cell, as far as they have this score."""
        found = {}
        for run in self.cells[row].runs:
            score = _score(run, self.column.test, metric or self.metric)
            if score is not None:
                found[run.seed] = float(score["score"])
        return found

    def signatures(self, metric: str) -> dict[str, list[FoundRun]]:
        """Signature -> the runs scored so."""
        found: dict[str, list[FoundRun]] = {}
        for run in self.runs:
            score = _score(run, self.column.test, metric)
            if score is not None:
                found.setdefault(str(score["signature"]), []).append(run)
        return found

    @property
    def runs(self) -> list[FoundRun]:
        """The runs of all cells."""
        return [run for figures in self.cells.values() for run in figures.runs]


def column_figures(
    paper: Paper,
    recipes: Sequence[Recipe],
    matching: Matching,
    seeds: Sequence[int],
) -> list[ColumnFigures]:
    """Every column of a paper with what fills it; runs without the test set become unused."""
    by_place = {(r.cell.row, r.cell.column): r for r in recipes}
    columns = []
    for name, column in paper.columns.items():
        cells = {}
        for row in paper.rows:
            recipe = by_place.get((row, name))
            found = CellFigures(paper.cell(row, name), recipe)
            if recipe is not None:
                found.runs = _scored(matching, (row, name), column.test)
                found.missing = [s for s in seeds if s not in {run.seed for run in found.runs}]
            cells[row] = found
        figures = ColumnFigures(name, column, paper.metric, cells)
        columns.append(figures)
    return columns


def judge(paper: Paper, columns: Sequence[ColumnFigures], n_resamples: int) -> None:
    """Fill in what keeps columns from being averaged, and the comparisons with the baseline."""
    for figures in columns:
        _check(figures)
        _note_updates(figures)
        if paper.baseline is not None and not figures.problems:
            _compare(figures, paper.baseline, n_resamples)
        if paper.baseline is not None:
            _compare_speed(figures, paper.baseline)


def _scored(matching: Matching, place: tuple[str, str], test: str | None) -> list[FoundRun]:
    """The runs of a cell that were scored on its test set."""
    kept = []
    for run in matching.used[place]:
        if _score(run, test, PLAIN_BLEU) is not None:
            kept.append(run)
            continue
        reason = f"{' × '.join(place)}, seed {run.seed}: {test} is not scored in results.json"
        matching.unused.append(Unused(run, reason))
    return kept


def _score(run: FoundRun, test: str | None, metric: str) -> Mapping[str, Any] | None:
    return None if run.results is None else run.results.scores.get(test or "", {}).get(metric)


def _check(figures: ColumnFigures) -> None:
    """Whether the runs of a column may be averaged and compared at all."""
    for metric in dict.fromkeys((figures.metric, PLAIN_BLEU)):
        signatures = figures.signatures(metric)
        if len(signatures) > 1:
            kinds = "; ".join(f"{s} in {_names(runs)}" for s, runs in signatures.items())
            figures.problems.append(f"{metric} was computed in several ways: {kinds}")
    texts: dict[str, list[FoundRun]] = {}
    for run in figures.runs:
        if run.text is not None:
            texts.setdefault(run.text[:8], []).append(run)
    if len(texts) > 1:
        kinds = "; ".join(f"{text} in {_names(runs)}" for text, runs in texts.items())
        figures.problems.append(f"the training text is not the same (by its hash): {kinds}")
    precisions = _by_value(figures.runs, lambda run: run.config.trainer.precision)
    if len(precisions) > 1:
        kinds = "; ".join(f"{name} in {_names(runs)}" for name, runs in precisions.items())
        figures.notes.append(f"runs differ in precision, which the recipe leaves open: {kinds}")
    if figures.runs and not any(figures.scores(row) for row in figures.cells):
        figures.notes.append(f"no run has {figures.metric}, which this target language lacks")


def _note_updates(figures: ColumnFigures) -> None:
    """Say where runs went on for shorter or longer than others, or than the recipe."""
    short: dict[str, list[FoundRun]] = {}
    for found in figures.cells.values():
        for run in found.runs:
            limit = found.recipe.max_updates if found.recipe else 0
            stopped = run.results is not None and run.results.stopped_early
            if run.updates != limit and not stopped:
                text = f"{run.updates:,} updates where the recipe has {limit:,}"
                short.setdefault(text, []).append(run)
    figures.notes += [f"{text}: {_names(runs)}" for text, runs in short.items()]
    updates = _by_value(figures.runs, lambda run: f"{run.updates:,}")
    if len(updates) > 1:
        kinds = "; ".join(f"{n} in {_names(runs)}" for n, runs in updates.items())
        figures.notes.append(f"runs of different numbers of updates stand side by side: {kinds}")


def _by_value(
    runs: Sequence[FoundRun], value: Callable[[FoundRun], str]
) -> dict[str, list[FoundRun]]:
    found: dict[str, list[FoundRun]] = {}
    for run in runs:
        found.setdefault(value(run), []).append(run)
    return found


def _names(runs: Sequence[FoundRun]) -> str:
    return ", ".join(str(run.folder) for run in runs)


# -- comparisons ----------------------------------------------------------------------------------


def _compare(figures: ColumnFigures, baseline: str, n_resamples: int) -> None:
    """Test each row's runs against the baseline's of the same seeds."""
    base = {run.seed: run for run in figures.cells[baseline].runs}
    known: dict[Path, np.ndarray] = {}

    def counts(run: FoundRun) -> np.ndarray:
        if run.folder not in known:
            known[run.folder] = _sentence_counts(run, figures)
        return known[run.folder]

    for row, found in figures.cells.items():
        pairs = [(run, base[run.seed]) for run in found.runs if run.seed in base]
        if row == baseline or not pairs:
            continue
        try:
            _refuse_other_references(pairs, figures.column.test)
            found.comparison = paired_bootstrap(
                [counts(run) for run, _ in pairs],
                [counts(other) for _, other in pairs],
                n_resamples,
            )
        except DataError as error:
            figures.notes.append(f"{row} is not tested against {baseline}: {error}")


def _sentence_counts(run: FoundRun, figures: ColumnFigures) -> np.ndarray:
    """Sentence statistics from the hypothesis files, which must give the run's own score."""
    hypotheses, references = (
        _lines(run.folder / "hypotheses" / f"{figures.column.test}{end}")
        for end in (".txt", ".ref.txt")
    )
    score = _score(run, figures.column.test, figures.metric)
    if score is None:
        raise DataError(f"{run.folder} has no {figures.metric}")
    language = run.config.data.target
    counts = sentence_statistics(hypotheses, references, figures.metric, language)
    again, told = corpus_bleu(counts.sum(0)), float(score["score"])
    if abs(again - told) > ROUNDING:
        raise DataError(
            f"the translations in {run.folder} score {again:.2f}, its results.json says {told:.2f}"
        )
    return counts


def _refuse_other_references(pairs: Sequence[tuple[FoundRun, FoundRun]], test: str | None) -> None:
    texts: dict[str, FoundRun] = {}
    for run in {id(r): r for pair in pairs for r in pair}.values():
        path = run.folder / "hypotheses" / f"{test}.ref.txt"
        texts.setdefault("\n".join(_lines(path)), run)
    if len(texts) > 1:
        raise DataError(f"the references of {test} are not the same in {_names([*texts.values()])}")


def _lines(path: Path) -> list[str]:
    if not path.is_file():
        raise DataError(f"there is no {path}")
    # only \n ends a line here: other characters that split lines may stand in a sentence
    return path.read_bytes().decode("utf-8").removesuffix("\n").split("\n")


def _compare_speed(figures: ColumnFigures, baseline: str) -> None:
    """Ratios of medians of tokens/s, where all runs were made on machines of one kind."""
    base = figures.cells[baseline].runs
    for row, found in figures.cells.items():
        if row == baseline or not found.runs or not base:
            continue
        machines = {tuple(run.machine.items()) for run in (*found.runs, *base)}
        if len(machines) > 1:
            figures.notes.append(
                f"tokens/s of {row} and {baseline} are not compared: their runs were made on "
                "different machines, or with different numbers of threads or processes"
            )
            continue
        speeds = _speeds(base)
        own = {seed: speed for seed, speed in _speeds(found.runs).items() if seed in speeds}
        if own:
            medians = [statistics.median(s[seed] for seed in own) for s in (own, speeds)]
            ratios = [100 * own[seed] / speeds[seed] for seed in own]
            found.speed = 100 * medians[0] / medians[1], min(ratios), max(ratios)


def _speeds(runs: Sequence[FoundRun]) -> dict[int, float]:
    """Seed -> tokens/s of training."""
    found = {run.seed: run.tokens_per_second for run in runs}
    return {seed: speed for seed, speed in found.items() if speed}


# -- what is missing ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Missing:
    """Seeds of a cell that no finished run has, and the command that trains them."""

    row: str
    column: str
    seeds: tuple[int, ...]
    overrides: tuple[str, ...]

    @property
    def arguments(self) -> list[str]:
        """Arguments for `headwise train`."""
        seeds = f"seed={','.join(map(str, self.seeds))}"
        several = ["-m"] if len(self.seeds) > 1 else []
        return [*several, *self.overrides, seeds]

    @property
    def command(self) -> str:
        """Ready to be typed."""
        return f"headwise train {shlex.join(self.arguments)}"


def missing_cells(columns: Sequence[ColumnFigures], matching: Matching) -> list[Missing]:
    """One entry a cell with a recipe and too few runs.

    The command names the text's folder and the outputs that the other runs of the column used.
    """
    lacking = []
    for figures in columns:
        runs = figures.runs
        for row, found in figures.cells.items():
            if found.recipe is None or not found.missing:
                continue
            overrides = (*found.recipe.overrides, *_whereabouts(found.recipe, runs))
            lacking.append(Missing(row, figures.name, tuple(found.missing), overrides))
    return lacking


def _whereabouts(recipe: Recipe, runs: Sequence[FoundRun]) -> list[str]:
    given = {override.partition("=")[0] for override in recipe.overrides}
    places = {
        "data.dir": {run.config.data.dir for run in runs},
        "paths.outputs": {_outputs(run.folder) for run in runs},
    }
    common = {key: values.pop() for key, values in places.items() if len(values) == 1}
    return [f"{key}={value}" for key, value in common.items() if value and key not in given]


def _outputs(folder: Path) -> str | None:
    """What `paths.outputs` must be for a run to land beside this one; None for the default."""
    above = folder.parent.parent
    return None if above.resolve() == Path("outputs").resolve() else str(above)
