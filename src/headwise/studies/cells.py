"""The runs of each cell of a paper: which are averaged, how they compare, what is missing.

Runs of a column are averaged and compared only if their scores have the same signature and their
training text is the same. Otherwise the differing runs are listed.
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
from headwise.runs.folder import RunFolder
from headwise.studies.match import Matching, SavedRun, Unused
from headwise.studies.paper import INIT, Column, Paper, Recipe
from headwise.studies.render import Fact

ROUNDING = 0.005  # tolerance between a saved score and the score of the saved sums
MIN_TEXT_SHARE = 0.8  # of the paper's training pairs, for comparable scores
RUN_COLUMNS = ("row", "seed", "folder", "run", "recipe_updates", "updates", "stopped_early",
               "precision", "text", "train_pairs", "machine", "tokens_per_second")  # fmt: skip


@dataclass
class ColumnRuns:
    """A column of a paper and its runs.

    Attributes:
        spec: the column in the paper's yaml.
        metrics: names of the paper's metrics; the first is the one compared.
        runs: one row per run, with RUN_COLUMNS, and each metric with its signature.
        sign: 1 if a higher score of the compared metric is better, else -1.
        problems: reasons not to average the column.
        notes: remarks below the table.
        comparisons: row -> test against the baseline's runs of the same seeds.
        speeds: row -> tokens/s in percent of the baseline's: ratio of medians, and the lowest and
            highest ratio of runs with the same seed.
    """

    name: str
    spec: Column
    metrics: Sequence[str]
    runs: pd.DataFrame
    sign: int = 1
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    comparisons: dict[str, Comparison] = field(default_factory=dict)
    speeds: dict[str, tuple[float, float, float]] = field(default_factory=dict)

    def runs_of(self, row: str) -> pd.DataFrame:
        """The runs of a row in this column."""
        return self.runs[self.runs.row == row]


def column_runs(paper: Paper, recipes: Sequence[Recipe], matching: Matching) -> list[ColumnRuns]:
    """Return every column of a paper with its runs; runs without its test scores become unused."""
    columns = []
    for name, spec in paper.columns.items():
        compared = paper.compared[name]
        metrics = sorted(paper.metrics, key=lambda metric: metric != compared)
        signatures = [f"{metric}_signature" for metric in metrics]
        of_column = [r.metrics for r in recipes if r.cell.column == name and compared in r.metrics]
        sign = of_column[0][compared].sign if of_column else 1
        rows = [
            _run_row(run, recipe, metrics, spec.test)
            for recipe in recipes
            if recipe.cell.column == name
            for run in _scored(matching, recipe, spec.test, metrics)
        ]
        runs = pd.DataFrame(rows, columns=[*RUN_COLUMNS, *metrics, *signatures])
        columns.append(ColumnRuns(name, spec, metrics, runs, sign))
    return columns


def _scored(
    matching: Matching, recipe: Recipe, test: str | None, metrics: Sequence[str]
) -> list[SavedRun]:
    """Return the runs of a cell that were scored on its test set."""
    key = (recipe.cell.row, recipe.cell.column)
    scored = []
    for run in matching.used[key]:
        results = run.results
        if results and any(results.score(test, metric) is not None for metric in metrics):
            scored.append(run)
            continue
        reason = f"{' × '.join(key)}, seed {run.seed}: {test} is not scored in results.json"
        matching.unused.append(Unused(run, reason))
    return scored


def _run_row(
    run: SavedRun, recipe: Recipe, metrics: Sequence[str], test: str | None
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
        "precision": run.settings["trainer"]["precision"],
        "text": run.text and run.text[:8],
        "train_pairs": run.train_pairs,
        "machine": tuple(run.machine.items()),
        "tokens_per_second": run.tokens_per_second,
        **{metric: results.score(test, metric) for metric in metrics},
        **{f"{metric}_signature": results.signature(test, metric) for metric in metrics},
    }


def judge(paper: Paper, columns: Sequence[ColumnRuns], n_resamples: int) -> None:
    """Fill in the problems and notes of the columns, and the comparisons with the baseline."""
    for column in columns:
        if column.runs.empty:
            continue
        _check(column)
        _note_updates(column)
        if paper.baseline is None:
            continue
        for row in (row for row in paper.rows if row != paper.baseline):
            if not column.problems:
                _compare(column, row, paper.baseline, n_resamples)
            _compare_speed(column, row, paper.baseline)


def _kinds(runs: pd.DataFrame, column: str) -> str | None:
    """Return `A in FOLDER, FOLDER; B in FOLDER` if runs differ in a column, else None."""
    folders = runs.groupby(column, sort=False).folder.agg(", ".join)
    if len(folders) < 2:
        return None
    return "; ".join(f"{kind} in {names}" for kind, names in folders.items())


def _check(column: ColumnRuns) -> None:
    """Add problems and notes if the runs of a column differ in metric, text or precision."""
    runs = column.runs
    for metric in column.metrics:
        if kinds := _kinds(runs, f"{metric}_signature"):
            column.problems.append(f"{metric} has several signatures: {kinds}")
    if kinds := _kinds(runs, "text"):
        column.problems.append(f"the training text differs (by its hash): {kinds}")
    if kinds := _kinds(runs, "precision"):
        column.notes.append(f"runs differ in precision, which the recipe does not set: {kinds}")
    if runs[column.metrics[0]].isna().all():
        column.notes.append(f"no run has {column.metrics[0]}: it is not defined for this corpus")
    n_pairs, n_paper = runs.train_pairs.min(), column.spec.train_pairs
    if n_paper is not None and n_pairs < MIN_TEXT_SHARE * n_paper:
        column.notes.append(
            f"OTHER TEXT: ours was trained on {n_pairs:,.0f} pairs, the paper on about "
            f"{n_paper:,}: the scores are not comparable"
        )


def _note_updates(column: ColumnRuns) -> None:
    """Note runs that trained for fewer or more updates than the recipe."""
    runs = column.runs
    other = runs[(runs.updates != runs.recipe_updates) & ~runs.stopped_early.astype(bool)]
    for (updates, limit), same in other.groupby(["updates", "recipe_updates"], sort=False):
        folders = ", ".join(same.folder)
        column.notes.append(f"{updates:,} updates instead of the recipe's {limit:,}: {folders}")


# -- comparisons ----------------------------------------------------------------------------------


def _compare(column: ColumnRuns, row: str, baseline: str, n_resamples: int) -> None:
    """Test the runs of a row against the baseline's of the same seeds."""
    pairs = column.runs_of(row).merge(column.runs_of(baseline), on="seed")
    if pairs.empty:
        return
    run = pairs.run_x[0]
    metric = {m.name: m for m in run.task.metrics()}.get(column.metrics[0])
    if metric is None:  # noted by `_check`
        return
    try:
        check_references([*pairs.run_x, *pairs.run_y], column.spec.test)
        systems, baselines = ([saved_items(run, metric, column.spec.test) for run in pairs[side]]
                              for side in ("run_x", "run_y"))  # fmt: skip
        column.comparisons[row] = paired_bootstrap(systems, baselines, metric, n_resamples)
    except (DataError, RunError) as error:
        column.notes.append(f"{row} is not tested against {baseline}: {error}")


def saved_items(run: SavedRun, metric: Metric, test: str | None) -> Floats:
    """Read the saved statistics of the test items; check that they give the saved score."""
    saved = None if run.results is None else run.results.score(test, metric.name)
    folder, name = RunFolder(run.folder), test or ""
    items = folder.read_sums(name, metric.unit)
    if saved is None or items is None:
        file = folder.sums_file(name, metric.unit).relative_to(run.folder)
        raise DataError(f"{run.folder} has no {metric.name if saved is None else file}")
    score = metric.score(items)
    if abs(score - saved) > ROUNDING:
        raise DataError(
            f"the sums in {run.folder} give {score:.2f}, its results.json has {saved:.2f}"
        )
    return items


def check_references(runs: Sequence[SavedRun], test: str | None) -> None:
    """Raise `DataError` unless runs with references of `test` have the same ones."""
    texts: dict[bytes, SavedRun] = {}
    for run in runs:
        if run.references:
            path = run.folder / run.references.format(split=test)
            if not path.is_file():
                raise DataError(f"{path} not found")
            texts.setdefault(path.read_bytes(), run)
    if len(texts) > 1:
        folders = ", ".join(str(run.folder) for run in texts.values())
        raise DataError(f"the references of {test} differ in {folders}")


def _compare_speed(column: ColumnRuns, row: str, baseline: str) -> None:
    """Compute ratios of median tokens/s, if all runs were trained on the same kind of machine."""
    runs, base = column.runs_of(row), column.runs_of(baseline)
    if runs.empty or base.empty:
        return
    if pd.concat([runs.machine, base.machine]).nunique() > 1:
        column.notes.append(
            f"tokens/s of {row} and {baseline} are not compared: different machines, or different "
            "numbers of threads or processes"
        )
        return
    pairs = runs.merge(base, on="seed")
    ours, bases = (pairs[f"tokens_per_second_{side}"].astype(float) for side in "xy")
    is_known = ours.notna() & bases.notna()
    if is_known.any():
        ours, bases = ours[is_known], bases[is_known]
        ratios = 100 * ours / bases
        column.speeds[row] = 100 * ours.median() / bases.median(), ratios.min(), ratios.max()


# -- what is missing ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Missing:
    """Seeds of a cell without a finished run, and the command that trains them.

    Attributes:
        waits_for: column whose runs come first, as they are `init_from`; None: it can be run.
    """

    row: str
    column: str
    seeds: tuple[int, ...]
    overrides: tuple[str, ...]
    waits_for: str | None = None

    @property
    def arguments(self) -> list[str]:
        """Arguments for `headwise train`."""
        seeds = f"seed={','.join(map(str, self.seeds))}"
        several = ["-m"] if len(self.seeds) > 1 else []
        return [*several, *self.overrides, seeds]

    @property
    def command(self) -> str:
        """The shell command."""
        return f"headwise train {shlex.join(self.arguments)}"


def missing_cells(
    columns: Sequence[ColumnRuns], recipes: Sequence[Recipe], seeds: Sequence[int]
) -> list[Missing]:
    """Return one entry per cell with a recipe and missing seeds; with `init`, one per seed.

    The command has the data and output folders of the other runs of the column.
    """
    missing, by_name = [], {column.name: column for column in columns}
    for column in columns:
        for recipe in (recipe for recipe in recipes if recipe.cell.column == column.name):
            row, init = recipe.cell.row, recipe.cell.init
            done = set(column.runs_of(row).seed)
            absent = tuple(seed for seed in seeds if seed not in done)
            overrides = (*recipe.overrides, *_folders(recipe, list(column.runs.run)))
            if absent and init is None:
                missing.append(Missing(row, column.name, absent, overrides))
            elif init is not None:
                first = by_name[init].runs_of(row).set_index("seed").folder.to_dict()
                for seed in absent:
                    more = f"{INIT}={first.get(seed, 'RUN')}"
                    waits_for = None if seed in first else init
                    place = row, column.name, (seed,), (*overrides, more)
                    missing.append(Missing(*place, waits_for))
    return missing


def _folders(recipe: Recipe, runs: Sequence[SavedRun]) -> list[str]:
    keys = {override.partition("=")[0] for override in recipe.overrides}
    values_by_key = {
        "data.dir": {run.settings["data"].get("dir") for run in runs},
        "paths.outputs": {_outputs(run.folder) for run in runs},
    }
    common = {key: values.pop() for key, values in values_by_key.items() if len(values) == 1}
    return [f"{key}={value}" for key, value in common.items() if value and key not in keys]


def _outputs(folder: Path) -> str | None:
    """Return the `paths.outputs` of a run folder; None for the default."""
    above = folder.parent.parent
    return None if above.resolve() == Path("outputs").resolve() else str(above)


# -- facts ----------------------------------------------------------------------------------------


def cell_facts(
    paper: Paper, columns: Sequence[ColumnRuns], missing: Sequence[Missing]
) -> Iterator[Fact]:
    """Yield the paper's numbers, ours per run and over seeds, tests, speeds, and missing runs."""
    for column in columns:
        for cell in (cell for cell in paper.cells if cell.column == column.name):
            if cell.paper is not None:
                place = {"row": cell.row, "column": column.name, "test": column.spec.test}
                quantity = column.spec.unit or column.metrics[0]
                number = {"value": cell.paper, "mark": cell.mark}
                yield {**place, "origin": "paper", "quantity": quantity, **number}
        for row in paper.rows:
            place = {"row": row, "column": column.name, "test": column.spec.test, "origin": "ours"}
            yield from ({**place, **fact} for fact in _row_facts(column, row))
        ours = {"column": column.name, "origin": "ours"}
        yield from ({**ours, "quantity": "not_averaged", "note": n} for n in column.problems)
        yield from ({**ours, "quantity": "note", "note": note} for note in column.notes)
        for absent in (cell for cell in missing if cell.column == column.name):
            place = {**ours, "row": absent.row, "quantity": "missing", "note": absent.command}
            yield from ({**place, "seed": seed} for seed in absent.seeds)
    for row, speed in paper.speed.items():
        about = {"quantity": "speed_percent", "value": speed.value, "mark": speed.mark}
        yield {"row": row, "origin": "paper", **about}


def _row_facts(column: ColumnRuns, row: str) -> Iterator[Fact]:
    runs = column.runs_of(row)
    for run in runs.to_dict("records"):
        about = {"seed": run["seed"], "run": run["folder"]}
        for metric in column.metrics:
            if pd.notna(run[metric]):
                score = {"value": round(run[metric], 4), "signature": run[f"{metric}_signature"]}
                yield {**about, "quantity": metric, **score}
        yield {**about, "quantity": "updates", "value": run["updates"], "note": _machine(run)}
        if pd.notna(speed := run["tokens_per_second"]):
            yield {**about, "quantity": "tokens_per_second", "value": round(speed, 1)}
    for metric in () if column.problems else column.metrics:
        scores = runs[metric].dropna().astype(float)
        for name, value in (("mean", scores.mean()), ("sd", scores.std())):
            if pd.notna(value):
                about = {"n_seeds": len(scores), "value": round(value, 4)}
                yield {"quantity": f"{metric}_{name}", **about}
    for name, percent in zip(("", "_low", "_high"), column.speeds.get(row, ()), strict=False):
        yield {"quantity": f"speed_percent{name}", "value": round(percent, 2)}
    if (test := column.comparisons.get(row)) is not None:
        values = test.in_metric(column.sign)
        for name, value in zip(("difference", "low", "high"), values, strict=True):
            about = {"n_seeds": test.n_seeds, "value": round(value, 4)}
            yield {"quantity": f"{column.metrics[0]}_{name}", **about}
        yield {"quantity": "p_value", "n_seeds": test.n_seeds, "value": test.p_value}


def _machine(run: dict[str, Any]) -> str:
    machine = dict(run["machine"])
    gpu, threads = machine.get("gpu"), machine.get("threads") or "unknown"
    return str(gpu) if gpu else f"a CPU, threads {threads}"
