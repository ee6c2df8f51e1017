"""The scores of the runs of a study or sweep, as one table: row, column, seed, metric, score, …."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from headwise.errors import DataError
from headwise.metrics.metric import Floats, Metric
from headwise.runs.fingerprint import canonical
from headwise.studies.match import Matching, SavedRun, Unused
from headwise.studies.rows import data_settings
from headwise.studies.study import Recipe, Study

ROUNDING = 0.005  # tolerance between a saved score and the score of the saved sums
SCORES = ("row", "column", "test", "seed", "metric", "score", "signature", "run", "saved",
          "recipe_updates", "updates", "stopped_early", "precision", "text",
          "content", "train_pairs", "learned")  # fmt: skip
DIFFERENCES = ("row", "column", "difference", "over_seeds", "over_items", "p_value", "n_seeds",
               "n_runs", "is_known")  # fmt: skip


@dataclass
class Compared:
    """The runs of a study.

    Attributes:
        scores: a row per run and metric, with the columns SCORES; `saved` is the run, and `learned`
            whether it is averaged and compared.
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
                learned = _learned(run, spec.learned, study.compared[name], signs.get(name, 1))
                more = {"recipe_updates": recipe.max_updates, "learned": learned}
                of_run = [row | more for row in scored if row is not None]
                rows += of_run
                if not of_run:
                    missing = f"{spec.test} is not scored in results.json"
                    reason = f"{' × '.join(place)}, seed {run.seed}: {missing}"
                    matching.unused.append(Unused(run, reason))
    signs = {name: signs.get(name, 1) for name in study.columns}
    return Compared(pd.DataFrame(rows, columns=SCORES), signs)


def _learned(run: SavedRun, least: float | None, metric: str, sign: int) -> bool:
    """Return whether a run is at least as good on the validation set as `Column.learned`."""
    if least is None or run.results is None:
        return True
    score = run.results.score(run.settings["data"]["valid"], metric)
    return score is not None and sign * score >= sign * least


def score_row(
    run: SavedRun, row: str, column: str, test: str, metric: str
) -> dict[str, Any] | None:
    """Return a row of `Compared.scores`; None without this score."""
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


def same_items(runs: Sequence[SavedRun], test: str, metric: str) -> bool:
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
