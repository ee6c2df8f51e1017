"""The runs of a study or sweep as one table, and rows of it compared with a baseline.

The table has a row for each run and metric: row, column, seed, metric, score and so on. Runs of a
column are averaged and compared only if their scores have the same signature and their training
text is the same. Otherwise the differing runs are listed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from headwise.errors import DataError, RunError, counted
from headwise.metrics.metric import Floats, Metric
from headwise.metrics.significance import mean_interval, paired_bootstrap
from headwise.studies.match import Matching, SavedRun, Unused
from headwise.studies.study import Column, Recipe, Study

ROUNDING = 0.005  # tolerance between a saved score and the score of the saved sums
MIN_TEXT_SHARE = 0.8  # of the paper's training pairs, for comparable scores
SCORES = ("row", "column", "test", "seed", "metric", "score", "signature", "run", "saved",
          "recipe_updates", "updates", "stopped_early", "precision", "text",
          "train_pairs")  # fmt: skip
DIFFERENCES = ("row", "column", "difference", "over_seeds", "over_items", "p_value", "n_seeds",
               "n_runs")  # fmt: skip


@dataclass
class Compared:
    """The runs of a study.

    Attributes:
        scores: a row per run and metric, with the columns SCORES; `saved` is the run.
        signs: column -> 1 if a higher score of its metric is better, else -1.
        problems: column -> reasons not to average it.
        notes: column -> remarks below the table.
        differences: a row per row and column that is compared, with the columns DIFFERENCES.
    """

    scores: pd.DataFrame
    signs: dict[str, int]
    problems: dict[str, list[str]] = field(default_factory=dict)
    notes: dict[str, list[str]] = field(default_factory=dict)
    differences: pd.DataFrame = field(default_factory=lambda: pd.DataFrame(columns=DIFFERENCES))

    @property
    def runs(self) -> pd.DataFrame:
        """The scores, with one row for each run and cell."""
        return self.scores.drop_duplicates(["row", "column", "seed"])


def gathered(study: Study, recipes: Sequence[Recipe], matching: Matching) -> Compared:
    """Return the runs of each cell; those without scores of its test set become unused."""
    rows, signs = [], {}
    for name, spec in study.columns.items():
        for recipe in (recipe for recipe in recipes if recipe.cell.column == name):
            if study.compared[name] in recipe.metrics:
                signs[name] = recipe.metrics[study.compared[name]].sign
            place = recipe.cell.row, name
            for run in list(matching.used[place]):
                scored = (score_row(run, *place, spec.test or "", m) for m in study.metrics)
                updates = {"recipe_updates": recipe.max_updates}
                of_run = [row | updates for row in scored if row is not None]
                rows += of_run
                if not of_run:
                    missing = f"{spec.test} is not scored in results.json"
                    reason = f"{' × '.join(place)}, seed {run.seed}: {missing}"
                    matching.unused.append(Unused(run, reason))
    signs = {name: signs.get(name, 1) for name in study.columns}
    return Compared(pd.DataFrame(rows, columns=SCORES), signs)


def score_row(
    run: SavedRun, row: str, column: str, test: str, metric: str
) -> dict[str, Any] | None:
    """Return a row of `Compared.scores`; None without this score."""
    results = run.results
    score = results and results.score(test, metric)
    if results is None or score is None:
        return None
    text = run.data.get("text")
    return {
        **{"row": row, "column": column, "test": test, "seed": run.seed},
        **{"metric": metric, "score": score, "signature": results.signature(test, metric)},
        **{"run": str(run.folder), "saved": run, "updates": run.updates},
        **{"stopped_early": results.stopped_early},
        "precision": run.settings["trainer"]["precision"],
        **{"text": text and text[:8], "train_pairs": run.data.get("train", {}).get("pairs")},
    }


def judge(study: Study, compared: Compared, n_resamples: int) -> None:
    """Fill in problems, notes and differences."""
    for name, spec in study.columns.items():
        scores = compared.scores[compared.scores.column == name]
        problems, notes = (of.setdefault(name, []) for of in (compared.problems, compared.notes))
        if not scores.empty:
            problems += _problems(scores)
            notes += _remarks(scores, spec, study.compared[name])
            notes += _updates(scores)
    is_shown = compared.scores.metric == compared.scores.column.map(study.compared)
    is_sound = ~compared.scores.column.map(lambda name: bool(compared.problems[name])).astype(bool)
    if study.baseline is not None:
        compared.differences = differences(
            compared.scores[is_shown & is_sound], study.baseline, compared.notes, n_resamples
        )


def _kinds(runs: pd.DataFrame, column: str) -> str | None:
    """Return `A in FOLDER, FOLDER; B in FOLDER` if runs differ in a column, else None."""
    folders = runs.groupby(column, sort=False).run.agg(lambda runs: ", ".join(dict.fromkeys(runs)))
    if len(folders) < 2:
        return None
    return "; ".join(f"{kind} in {names}" for kind, names in folders.items())


def _problems(scores: pd.DataFrame) -> Iterator[str]:
    for metric, of_metric in scores.groupby("metric", sort=False):
        if kinds := _kinds(of_metric, "signature"):
            yield f"{metric} has several signatures: {kinds}"
    if kinds := _kinds(scores, "text"):
        yield f"the training text differs (by its hash): {kinds}"


def _remarks(scores: pd.DataFrame, spec: Column, metric: str) -> Iterator[str]:
    if kinds := _kinds(scores, "precision"):
        yield f"runs differ in precision, which the recipe does not set: {kinds}"
    if unknown := set(scores.run[scores.text.isna()]):
        yield f"training text not compared: no data.json in {counted(len(unknown), 'run')}"
    if metric not in set(scores.metric):
        yield f"no run has {metric}: it is not defined for this corpus"
    n_pairs, n_paper = scores.train_pairs.min(), spec.train_pairs
    if n_paper is not None and n_pairs < MIN_TEXT_SHARE * n_paper:
        yield (
            f"OTHER TEXT: ours was trained on {n_pairs:,.0f} pairs, the paper on about "
            f"{n_paper:,}: the scores are not comparable"
        )


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
            metric = next(m for m in first.saved.metrics if m.name == first.metric)
            try:
                runs_of_both = [*pairs.saved, *pairs.saved_of_baseline]
                check_references(runs_of_both, first.test)
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
            rows.append((row, name, mean, *bounds, over_items.p_value, *sizes))
    return pd.DataFrame(rows, columns=DIFFERENCES)


def supported(over_seeds: tuple[float, float] | None) -> bool:
    """Whether an interval over seeds excludes 0; False with one seed."""
    return over_seeds is not None and not over_seeds[0] <= 0 <= over_seeds[1]


def saved_items(run: SavedRun, metric: Metric, test: str) -> Floats:
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


def check_references(runs: Sequence[SavedRun], test: str) -> None:
    """Raise `DataError` unless runs with references of `test` have the same ones."""
    texts: dict[str, SavedRun] = {}
    for run in runs:
        if run.references:
            name = run.references.format(split=test)
            if (text := run.text(name)) is None:
                raise DataError(f"{run.folder / name} not found")
            texts.setdefault(text, run)
    if len(texts) > 1:
        folders = ", ".join(str(run.folder) for run in texts.values())
        raise DataError(f"the references of {test} differ in {folders}")
