"""The scores of the runs of a study or sweep, as one table, and rows compared with a baseline.

Rows are compared over runs paired by seed. Runs of a column are averaged and compared only if their
scores have the same signature, and neither their training text nor the scored text differs.
Otherwise the differing runs are listed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pandas as pd

from headwise.errors import DataError, RunError, counted
from headwise.metrics.metric import Floats, Metric
from headwise.metrics.significance import mean_interval, paired_bootstrap
from headwise.runs.folder import canonical
from headwise.studies.match import Missing, Unused, Used
from headwise.studies.record import TaskRecord
from headwise.studies.rows import data_settings
from headwise.studies.study import Column, Recipe, Study

ROUNDING = 0.005  # tolerance between a saved score and the score of the saved sums
SCORES = ("row", "column", "test", "seed", "metric", "score", "signature", "run", "saved",
          "recipe_updates", "updates", "stopped_early", "precision", "text",
          "content", "train_pairs", "learned")  # fmt: skip
DIFFERENCES = ("row", "column", "difference", "over_seeds", "over_items", "p_value", "n_seeds",
               "n_runs", "is_known")  # fmt: skip
MIN_TEXT_SHARE = 0.8  # of the paper's training pairs, for comparable scores
TEXTS = {"text": "training text", "content": "scored text"}  # hashes in SCORES -> what they are of


@dataclass
class StudyRuns:
    """The runs of a study or sweep.

    Attributes:
        scores: a row per run and metric, with the columns SCORES; `saved` is the run, and `learned`
            whether it is averaged and compared.
        signs: column -> 1 if a higher score of its metric is better, else -1.
        unused: other runs, that no cell uses.
        missing: seeds of cells without a run.
        problems: column -> reasons not to average it.
        notes: column -> remarks below the table.
        differences: a row per row and column that is compared, with the columns DIFFERENCES.
    """

    scores: pd.DataFrame
    signs: dict[str, int]
    unused: Sequence[Unused] = ()
    missing: Sequence[Missing] = ()
    problems: dict[str, list[str]] = field(default_factory=dict)
    notes: dict[str, list[str]] = field(default_factory=dict)
    differences: pd.DataFrame = field(default_factory=lambda: pd.DataFrame(columns=DIFFERENCES))

    @property
    def runs(self) -> pd.DataFrame:
        """The scores, with one row for each run and cell."""
        return self.scores.drop_duplicates(["row", "column", "seed"])


def study_runs(
    study: Study, recipes: Sequence[Recipe], used: Used, unused: Sequence[Unused] = ()
) -> StudyRuns:
    """Return the runs of each cell; those without scores of its test set become unused.

    Args:
        used, unused: see `headwise.studies.match.match`.
    """
    rows, signs, others = [], {}, [*unused]
    for name, spec in study.columns.items():
        for recipe in (recipe for recipe in recipes if recipe.cell.column == name):
            if study.compared[name] in recipe.metrics:
                signs[name] = recipe.metrics[study.compared[name]].sign
            place = recipe.cell.row, name
            for run in used[place]:
                scored = (score_row(run, *place, spec.test or "", m) for m in study.metrics)
                learned = _learned(run, spec.learned, study.compared[name], signs.get(name, 1))
                more = {"recipe_updates": recipe.max_updates, "learned": learned}
                of_run = [row | more for row in scored if row is not None]
                rows += of_run
                if not of_run:
                    missing = f"{spec.test} is not scored in results.json"
                    reason = f"{' × '.join(place)}, seed {run.seed}: {missing}"
                    others.append(Unused(run, reason))
    signs = {name: signs.get(name, 1) for name in study.columns}
    return StudyRuns(pd.DataFrame(rows, columns=SCORES), signs, others)


def _learned(run: TaskRecord, least: float | None, metric: str, sign: int) -> bool:
    """Return whether a run is at least as good on the validation set as `Column.learned`."""
    if least is None or run.results is None:
        return True
    score = run.results.score(run.settings["data"]["valid"], metric)
    return score is not None and sign * score >= sign * least


def score_row(
    run: TaskRecord, row: str, column: str, test: str, metric: str
) -> dict[str, Any] | None:
    """Return a row of `StudyRuns.scores`; None without this score."""
    results = run.results
    score = results and results.score(test, metric)
    if results is None or score is None:
        return None
    return {
        **{"row": row, "column": column, "test": test, "seed": run.seed},
        **{"metric": metric, "score": score, "signature": results.signature(test, metric)},
        **{"run": str(run.folder), "saved": run, "updates": run.updates},
        **{"stopped_early": results.stopped_early},
        "precision": run.settings["trainer"]["precision"],
        **{"text": (run.data.get("text") or "")[:16] or None, "content": results.content(test)},
        **{"train_pairs": run.data.get("train", {}).get("pairs")},
        "learned": True,
    }


def saved_items(run: TaskRecord, metric: Metric, test: str) -> Floats:
    """Read the saved statistics of the test items; check that they give the saved score."""
    saved = None if run.results is None else run.results.score(test, metric.name)
    items = run.sums(test, metric.unit)
    if saved is None or items is None:
        file = f"sums/{test}.{metric.unit}.npz"
        raise DataError(f"{run.folder} has no {metric.name if saved is None else file}")
    score = metric.score(items)
    if abs(score - saved) > ROUNDING:
        raise DataError(
            f"the sums in {run.folder} give {score:.2f}, its results.json has {saved:.2f}"
        )
    return items


def same_items(runs: Sequence[TaskRecord], test: str, metric: str) -> bool:
    """Whether finished runs are known to have the same items, so that they can be paired.

    Raises:
        DataError: the items differ (see `Task.contents`); of runs without hashes the references,
            or the settings or the training text of their data.
    """
    folders = {run.results and run.results.items(test, metric): run.folder for run in runs}
    is_known = folders.pop(None, None) is None
    if len(folders) > 1:
        raise DataError(
            f"the items of {test} differ (by their hash: another text, or other windows, masks or "
            f"tokens) in {', '.join(map(str, folders.values()))}"
        )
    if not is_known:
        data = {canonical([data_settings(run), run.data.get("text")]): run.folder for run in runs}
        if len(data) > 1:
            raise DataError(
                f"the scored text of {test} is not known, and the data differs in "
                f"{', '.join(map(str, data.values()))}"
            )
        check_references(runs, test)
    return is_known


def check_references(runs: Sequence[TaskRecord], test: str) -> None:
    """Raise `DataError` unless runs with references of `test` have the same ones."""
    texts: dict[str, TaskRecord] = {}
    for run in runs:
        if run.references:
            name = run.references.format(split=test)
            if (text := run.text(name)) is None:
                raise DataError(f"{run.folder / name} not found")
            texts.setdefault(text, run)
    if len(texts) > 1:
        folders = ", ".join(str(run.folder) for run in texts.values())
        raise DataError(f"the references of {test} differ in {folders}")


# -- comparison ------------------------------------------------------------------------------------


def with_differences(study: Study, runs: StudyRuns, n_resamples: int) -> StudyRuns:
    """Return the runs with problems, notes and differences to the baseline of the study."""
    problems: dict[str, list[str]] = {}
    notes: dict[str, list[str]] = {}
    for name, spec in study.columns.items():
        scores = runs.scores[runs.scores.column == name]
        remarks = [*_remarks(scores, spec, study.compared[name]), *_updates(scores)]
        problems[name], notes[name] = ([*_problems(scores)], remarks) if len(scores) else ([], [])
    runs = replace(runs, problems=problems, notes=notes)
    if study.baseline is None:
        return runs
    is_shown = runs.scores.metric == runs.scores.column.map(study.compared)
    is_sound = ~runs.scores.column.map(lambda name: bool(problems[name])).astype(bool)
    averaged = runs.scores[is_shown & is_sound & runs.scores.learned.astype(bool)]
    return replace(runs, differences=differences(averaged, study.baseline, notes, n_resamples))


def differing_kinds(runs: pd.DataFrame, column: str) -> str | None:
    """Return `A in FOLDER, FOLDER; B in FOLDER` if runs differ in a column, else None."""
    folders = runs.groupby(column, sort=False).run.agg(lambda runs: ", ".join(dict.fromkeys(runs)))
    if len(folders) < 2:
        return None
    return "; ".join(f"{kind} in {names}" for kind, names in folders.items())


def _problems(scores: pd.DataFrame) -> Iterator[str]:
    """Yield in what the runs of a column differ, if that is not their seed or the recipe."""
    for metric, of_metric in scores.groupby("metric", sort=False):
        if kinds := differing_kinds(of_metric, "signature"):
            yield f"{metric} has several signatures: {kinds}"
    for column, text in TEXTS.items():
        if kinds := differing_kinds(scores, column):
            yield f"the {text} differs (by its hash): {kinds}"
    vocabularies = [run.data.get("vocabulary") for run in scores.saved]
    for row, cell in scores.assign(vocabulary=vocabularies).groupby("row", sort=False):
        if kinds := differing_kinds(cell, "vocabulary"):
            yield f"the vocabulary of {row} differs (by its hash): {kinds}"
        if kinds := differing_kinds(cell[~cell.stopped_early.astype(bool)], "updates"):
            yield f"the number of updates of {row} differs: {kinds}"


def _remarks(scores: pd.DataFrame, spec: Column, metric: str) -> Iterator[str]:
    if kinds := differing_kinds(scores, "precision"):
        yield f"runs differ in precision, which the recipe does not set: {kinds}"
    yield from unknown(scores)
    if metric not in set(scores.metric):
        yield f"no run has {metric}: it is not defined for this corpus"
    n_pairs, n_paper = scores.train_pairs.min(), spec.train_pairs
    if n_paper is not None and n_pairs < MIN_TEXT_SHARE * n_paper:
        yield (
            f"OTHER TEXT: ours was trained on {n_pairs:,.0f} pairs, the paper on about "
            f"{n_paper:,}: the scores are not comparable"
        )


def unknown(scores: pd.DataFrame) -> Iterator[str]:
    """Yield which texts of the runs of a column are not known, and thus not compared."""
    for column, text in TEXTS.items():
        if runs := set(scores.run[scores[column].isna()]):
            why = f"no hash of it in {counted(len(runs), 'run')} (scripts/hash_records.py adds it)"
            yield f"{text} not compared: {why}"


def _updates(scores: pd.DataFrame) -> Iterator[str]:
    """Yield the runs that trained for fewer or more updates than the recipe."""
    runs = scores.drop_duplicates("run")
    other = runs[(runs.updates != runs.recipe_updates) & ~runs.stopped_early.astype(bool)]
    for (updates, limit), same in other.groupby(["updates", "recipe_updates"], sort=False):
        yield f"{updates:,} updates instead of the recipe's {limit:,}: {', '.join(same.run)}"


def differences(
    scores: pd.DataFrame, baseline: str, notes: dict[str, list[str]], n_resamples: int
) -> pd.DataFrame:
    """Compare each row with the baseline, in each column, over runs paired by seed.

    Args:
        scores: with the columns SCORES; one metric for each column.
        baseline: a row.
        notes: column -> remarks; reasons why a row is not compared are added.
        n_resamples: of the interval over items.
    """
    rows = []
    for name, of_column in scores.groupby("column", sort=False):
        base = of_column[of_column.row == baseline].drop_duplicates("seed")
        for row, runs in of_column[of_column.row != baseline].groupby("row", sort=False):
            pairs = runs.merge(base, on="seed", suffixes=("", "_of_baseline"))
            if pairs.empty:
                continue
            first = pairs.iloc[0]
            metric = next(m for m in first.saved.task.metrics() if m.name == first.metric)
            try:
                runs_of_both = [*pairs.saved, *pairs.saved_of_baseline]
                is_known = same_items(runs_of_both, first.test, metric.name)
                items = [saved_items(run, metric, first.test) for run in runs_of_both]
                n = len(pairs)
                over_items = paired_bootstrap(items[:n], items[n:], metric, n_resamples)
            except (DataError, RunError) as error:
                notes[name].append(f"{row} is not tested against {baseline}: {error}")
                continue
            by_seed = (pairs.score - pairs.score_of_baseline).tolist()
            bounds = mean_interval(by_seed), (over_items.low, over_items.high)
            sizes = n, max(len(runs), len(base))
            mean = over_items.difference
            is_known &= not pairs[["text", "text_of_baseline"]].isna().any(axis=None)
            rows.append((row, name, mean, *bounds, over_items.p_value, *sizes, is_known))
    return pd.DataFrame(rows, columns=DIFFERENCES)


def supported(over_seeds: tuple[float, float] | None) -> bool:
    """Whether an interval over seeds excludes 0; False with one seed."""
    return over_seeds is not None and not over_seeds[0] <= 0 <= over_seeds[1]
