"""Rows of a study or sweep compared with a baseline, over runs paired by seed.

Runs of a column are averaged and compared only if their scores have the same signature, and neither
their training text nor the scored text differs. Otherwise the differing runs are listed.
"""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from headwise.errors import DataError, RunError, counted
from headwise.metrics.significance import mean_interval, paired_bootstrap
from headwise.studies.scores import DIFFERENCES, Compared, same_items, saved_items
from headwise.studies.study import Column, Study

MIN_TEXT_SHARE = 0.8  # of the paper's training pairs, for comparable scores
TEXTS = {"text": "training text", "content": "scored text"}  # hashes in SCORES -> what they are of


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
        averaged = is_shown & is_sound & compared.scores.learned.astype(bool)
        compared.differences = differences(
            compared.scores[averaged], study.baseline, compared.notes, n_resamples
        )


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
            metric = next(m for m in first.saved.metrics if m.name == first.metric)
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
