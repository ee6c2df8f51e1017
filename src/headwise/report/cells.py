"""The runs of each cell of a paper: which may be averaged, how they compare, what is missing.

Nothing is averaged or compared before it is known to be of one kind: the signatures of the
scores of a column must be one, and its training text one. Where they are not, the runs are named
instead.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from headwise.errors import DataError, RunError
from headwise.metrics.metric import Floats, Metric
from headwise.metrics.significance import Comparison, paired_bootstrap
from headwise.report.paper import Column, Paper, Recipe
from headwise.report.paper_runs import FoundRun, Matching, Unused
from headwise.report.tables import Fact
from headwise.runs.folder import RunFolder

ROUNDING = 0.005  # a score computed again from the kept sums may differ by this much
LEAST_TEXT = 0.8  # of the paper's training pairs, below which another text is behind a score
RUN_COLUMNS = ("row", "seed", "folder", "run", "recipe_updates", "updates", "stopped_early",
               "precision", "text", "train_pairs", "machine", "tokens_per_second")  # fmt: skip


@dataclass
class ColumnRuns:
    """A column of a paper and what fills it.

    Attributes:
        metrics: names of the paper's, the one that is compared first.
        runs: one row a run: those of RUN_COLUMNS, and each metric with its signature.
        problems: why nothing in it may be averaged.
        notes: what a reader of its numbers must know.
        comparisons: row -> test against the baseline's runs of the same seeds.
        speeds: row -> tokens/s in percent of the baseline's: ratio of medians, and the lowest and
            highest ratio of runs of one seed.
    """

    name: str
    column: Column
    metrics: Sequence[str]
    runs: pd.DataFrame
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    comparisons: dict[str, Comparison] = field(default_factory=dict)
    speeds: dict[str, tuple[float, float, float]] = field(default_factory=dict)

    def of(self, row: str) -> pd.DataFrame:
        """The runs of a cell."""
        return self.runs[self.runs.row == row]


def column_runs(paper: Paper, recipes: Sequence[Recipe], matching: Matching) -> list[ColumnRuns]:
    """Every column of a paper with what fills it; runs without the test set become unused."""
    metrics = list(paper.metrics)
    signatures = [f"{metric}_signature" for metric in metrics]
    columns = []
    for name, column in paper.columns.items():
        rows = [
            _run_row(run, recipe, metrics, column.test)
            for recipe in recipes
            if recipe.cell.column == name
            for run in _scored(matching, recipe, column.test, metrics)
        ]
        runs = pd.DataFrame(rows, columns=[*RUN_COLUMNS, *metrics, *signatures])
        columns.append(ColumnRuns(name, column, metrics, runs))
    return columns


def _scored(
    matching: Matching, recipe: Recipe, test: str | None, metrics: Sequence[str]
) -> list[FoundRun]:
    """The runs of a cell that were scored on its test set."""
    place = (recipe.cell.row, recipe.cell.column)
    kept = []
    for run in matching.used[place]:
        results = run.results
        if results and any(results.score(test, metric) is not None for metric in metrics):
            kept.append(run)
            continue
        reason = f"{' × '.join(place)}, seed {run.seed}: {test} is not scored in results.json"
        matching.unused.append(Unused(run, reason))
    return kept


def _run_row(
    run: FoundRun, recipe: Recipe, metrics: Sequence[str], test: str | None
) -> dict[str, Any]:
    results = run.results
    assert results is not None
    return {
        "row": recipe.cell.row,
        "seed": run.seed,
        "folder": str(run.folder),
        "run": run,
        "recipe_updates": recipe.max_updates,
        "updates": run.updates,
        "stopped_early": results.stopped_early,
        "precision": run.config.trainer.precision,
        "text": run.text and run.text[:8],
        "train_pairs": run.train_pairs,
        "machine": tuple(run.machine.items()),
        "tokens_per_second": run.tokens_per_second,
        **{metric: results.score(test, metric) for metric in metrics},
        **{f"{metric}_signature": results.signature(test, metric) for metric in metrics},
    }


def judge(paper: Paper, columns: Sequence[ColumnRuns], n_resamples: int) -> None:
    """Fill in what keeps columns from being averaged, and the comparisons with the baseline."""
    for found in columns:
        if found.runs.empty:
            continue
        _check(found)
        _note_updates(found)
        if paper.baseline is None:
            continue
        for row in (row for row in paper.rows if row != paper.baseline):
            if not found.problems:
                _compare(found, row, paper.baseline, n_resamples)
            _compare_speed(found, row, paper.baseline)


def _kinds(runs: pd.DataFrame, column: str) -> str | None:
    """`A in FOLDER, FOLDER; B in FOLDER` where runs differ in a column; None where they do not."""
    folders = runs.groupby(column, sort=False).folder.agg(", ".join)
    if len(folders) < 2:
        return None
    return "; ".join(f"{kind} in {names}" for kind, names in folders.items())


def _check(found: ColumnRuns) -> None:
    """Whether the runs of a column may be averaged and compared at all."""
    runs, column = found.runs, found.column
    for metric in found.metrics:
        if kinds := _kinds(runs, f"{metric}_signature"):
            found.problems.append(f"{metric} was computed in several ways: {kinds}")
    if kinds := _kinds(runs, "text"):
        found.problems.append(f"the training text is not the same (by its hash): {kinds}")
    if kinds := _kinds(runs, "precision"):
        found.notes.append(f"runs differ in precision, which the recipe leaves open: {kinds}")
    if runs[found.metrics[0]].isna().all():
        found.notes.append(f"no run has {found.metrics[0]}, which this corpus lacks")
    n_pairs, wanted = runs.train_pairs.min(), column.train_pairs
    if wanted is not None and n_pairs < LEAST_TEXT * wanted:
        found.notes.append(
            f"OTHER TEXT: ours was trained on {n_pairs:,.0f} pairs where the paper has about "
            f"{wanted:,}, so that the two scores do not compare"
        )


def _note_updates(found: ColumnRuns) -> None:
    """Say where runs went on for shorter or longer than the recipe."""
    runs = found.runs
    other = runs[(runs.updates != runs.recipe_updates) & ~runs.stopped_early.astype(bool)]
    for (updates, limit), same in other.groupby(["updates", "recipe_updates"], sort=False):
        folders = ", ".join(same.folder)
        found.notes.append(f"{updates:,} updates where the recipe has {limit:,}: {folders}")


# -- comparisons ----------------------------------------------------------------------------------


def _compare(found: ColumnRuns, row: str, baseline: str, n_resamples: int) -> None:
    """Test a row's runs against the baseline's of the same seeds."""
    pairs = found.of(row).merge(found.of(baseline), on="seed")
    if pairs.empty:
        return
    run = pairs.run_x[0]
    metric = {m.name: m for m in run.task.metrics(run.config)}.get(found.metrics[0])
    if metric is None:  # which is noted of the column
        return
    try:
        _refuse_other_references([*pairs.run_x, *pairs.run_y], found.column.test)
        systems, baselines = ([_items(run, metric, found.column.test) for run in pairs[side]]
                              for side in ("run_x", "run_y"))  # fmt: skip
        found.comparisons[row] = paired_bootstrap(systems, baselines, metric, n_resamples)
    except (DataError, RunError) as error:
        found.notes.append(f"{row} is not tested against {baseline}: {error}")


def _items(run: FoundRun, metric: Metric, test: str | None) -> Floats:
    """The statistics that a run keeps of its test items, which must give the run's own score."""
    saved = None if run.results is None else run.results.score(test, metric.name)
    items = RunFolder(run.folder).read_sums(f"{test}.{metric.unit}.npy")
    if saved is None or items is None:
        lacking = metric.name if saved is None else f"sums/{test}.{metric.unit}.npy"
        raise DataError(f"{run.folder} has no {lacking}")
    again = metric.score(items)
    if abs(again - saved) > ROUNDING:
        raise DataError(
            f"the sums in {run.folder} give {again:.2f}, its results.json says {saved:.2f}"
        )
    return items


def _refuse_other_references(runs: Sequence[FoundRun], test: str | None) -> None:
    texts: dict[bytes, FoundRun] = {}
    for run in runs:
        if run.task.references:
            path = run.folder / run.task.references.format(split=test)
            if not path.is_file():
                raise DataError(f"there is no {path}")
            texts.setdefault(path.read_bytes(), run)
    if len(texts) > 1:
        folders = ", ".join(str(run.folder) for run in texts.values())
        raise DataError(f"the references of {test} are not the same in {folders}")


def _compare_speed(found: ColumnRuns, row: str, baseline: str) -> None:
    """Ratios of medians of tokens/s, where all runs were made on machines of one kind."""
    own, base = found.of(row), found.of(baseline)
    if own.empty or base.empty:
        return
    if pd.concat([own.machine, base.machine]).nunique() > 1:
        found.notes.append(
            f"tokens/s of {row} and {baseline} are not compared: their runs were made on "
            "different machines, or with different numbers of threads or processes"
        )
        return
    pairs = own.merge(base, on="seed")
    mine, theirs = (pairs[f"tokens_per_second_{side}"].astype(float) for side in "xy")
    is_known = mine.notna() & theirs.notna()
    if is_known.any():
        mine, theirs = mine[is_known], theirs[is_known]
        ratios = 100 * mine / theirs
        found.speeds[row] = 100 * mine.median() / theirs.median(), ratios.min(), ratios.max()


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


def missing_cells(
    columns: Sequence[ColumnRuns], recipes: Sequence[Recipe], seeds: Sequence[int]
) -> list[Missing]:
    """One entry a cell with a recipe and too few runs.

    The command names the text's folder and the outputs that the other runs of the column used.
    """
    lacking = []
    for found in columns:
        for recipe in (recipe for recipe in recipes if recipe.cell.column == found.name):
            own = [seed for seed in seeds if seed not in set(found.of(recipe.cell.row).seed)]
            if own:
                overrides = (*recipe.overrides, *_whereabouts(recipe, list(found.runs.run)))
                lacking.append(Missing(recipe.cell.row, found.name, tuple(own), overrides))
    return lacking


def _whereabouts(recipe: Recipe, runs: Sequence[FoundRun]) -> list[str]:
    given = {override.partition("=")[0] for override in recipe.overrides}
    places = {
        "data.dir": {getattr(run.config.data, "dir", None) for run in runs},
        "paths.outputs": {_outputs(run.folder) for run in runs},
    }
    common = {key: values.pop() for key, values in places.items() if len(values) == 1}
    return [f"{key}={value}" for key, value in common.items() if value and key not in given]


def _outputs(folder: Path) -> str | None:
    """What `paths.outputs` must be for a run to land beside this one; None for the default."""
    above = folder.parent.parent
    return None if above.resolve() == Path("outputs").resolve() else str(above)


# -- facts ----------------------------------------------------------------------------------------


def cell_facts(
    paper: Paper, columns: Sequence[ColumnRuns], missing: Sequence[Missing]
) -> Iterator[Fact]:
    """The paper's numbers, ours by run and over seeds, tests, speeds, and what is missing."""
    for found in columns:
        for cell in (cell for cell in paper.cells if cell.column == found.name):
            if cell.paper is not None:
                place = {"row": cell.row, "column": found.name, "test": found.column.test}
                quantity = found.column.unit or paper.metric
                number = {"value": cell.paper, "mark": cell.mark}
                yield {**place, "origin": "paper", "quantity": quantity, **number}
        for row in paper.rows:
            place = {"row": row, "column": found.name, "test": found.column.test, "origin": "ours"}
            yield from ({**place, **fact} for fact in _row_facts(found, row))
        ours = {"column": found.name, "origin": "ours"}
        yield from ({**ours, "quantity": "not_averaged", "note": n} for n in found.problems)
        yield from ({**ours, "quantity": "note", "note": note} for note in found.notes)
        for lack in (lack for lack in missing if lack.column == found.name):
            place = {**ours, "row": lack.row, "quantity": "missing", "note": lack.command}
            yield from ({**place, "seed": seed} for seed in lack.seeds)
    for row, speed in paper.speed.items():
        about = {"quantity": "speed_percent", "value": speed.value, "mark": speed.mark}
        yield {"row": row, "origin": "paper", **about}


def _row_facts(found: ColumnRuns, row: str) -> Iterator[Fact]:
    runs = found.of(row)
    for run in runs.to_dict("records"):
        about = {"seed": run["seed"], "run": run["folder"]}
        for metric in found.metrics:
            if pd.notna(run[metric]):
                score = {"value": round(run[metric], 4), "signature": run[f"{metric}_signature"]}
                yield {**about, "quantity": metric, **score}
        yield {**about, "quantity": "updates", "value": run["updates"], "note": _machine(run)}
        if pd.notna(speed := run["tokens_per_second"]):
            yield {**about, "quantity": "tokens_per_second", "value": round(speed, 1)}
    for metric in () if found.problems else found.metrics:
        scores = runs[metric].dropna().astype(float)
        for name, value in (("mean", scores.mean()), ("sd", scores.std())):
            if pd.notna(value):
                about = {"n_seeds": len(scores), "value": round(value, 4)}
                yield {"quantity": f"{metric}_{name}", **about}
    for name, percent in zip(("", "_low", "_high"), found.speeds.get(row, ()), strict=False):
        yield {"quantity": f"speed_percent{name}", "value": round(percent, 2)}
    if (test := found.comparisons.get(row)) is not None:
        for name in ("difference", "low", "high"):
            about = {"n_seeds": test.n_seeds, "value": round(getattr(test, name), 4)}
            yield {"quantity": f"{found.metrics[0]}_{name}", **about}
        yield {"quantity": "p_value", "n_seeds": test.n_seeds, "value": test.p_value}


def _machine(run: dict[str, Any]) -> str:
    machine = dict(run["machine"])
    gpu, threads = machine.get("gpu"), machine.get("threads") or "unknown"
    return str(gpu) if gpu else f"a CPU, threads {threads}"
