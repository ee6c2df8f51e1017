"""The tables of a study: a paper's numbers and ours, and differences."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from headwise.studies.compare import StudyRuns, supported
from headwise.studies.render import (
    ARROW_NOTE,
    ARROWS,
    DECIMALS,
    EMPTY,
    TextTable,
    interval,
    mean_and_deviation,
    signed,
)
from headwise.studies.study import MARKS, Published, Study

NOT_AVERAGED = "not averaged"
MISSING = "missing"
OVER_SEEDS, OVER_ITEMS, P_VALUE = "95 % over seeds", "95 % over items", "p over items"


def study_tables(study: Study, runs: StudyRuns, n_resamples: int) -> list[TextTable]:
    """Return every table that is not empty.

    Args:
        study: its yaml.
        runs: its runs.
        n_resamples: of the intervals over items.
    """
    tables = [_main(study, runs)] if study.columns else []
    others = [name for name in study.metrics if name not in study.compared.values()]
    for metric in others if len(runs.scores) else ():
        frame = _ours(study, runs, dict.fromkeys(study.columns, metric))
        frame.columns = [study.columns[name].label for name in frame]
        title = f"The same runs in {study.metrics[metric]}"
        tables.append(TextTable(title, frame, _signatures(study, runs, [metric])))
    if study.baseline is not None:
        tables.append(difference_table(study, runs, study.baseline, n_resamples))
    return [table for table in tables if table.frame.size]


def _ours(study: Study, runs: StudyRuns, metrics: Mapping[str, str]) -> pd.DataFrame:
    """Return the means of our runs, with columns by name; `metrics`: column -> its metric."""
    groups = dict(list(runs.scores.groupby(["row", "column", "metric"])))
    trained = set(runs.scores[["row", "column"]].itertuples(index=False, name=None))

    def text(row: str, column: str) -> str:
        if (row, column) not in trained:
            return MISSING
        if runs.problems.get(column):
            return NOT_AVERAGED
        of_cell = groups.get((row, column, metrics[column]), runs.scores[:0])
        scores = of_cell.score[of_cell.learned.astype(bool)].tolist()
        mean = mean_and_deviation(scores, _decimals(study, runs, column)) if scores else EMPTY
        n = f"{len(scores)} of {len(of_cell)}" if len(scores) < len(of_cell) else f"{len(scores)}"
        return f"{mean} ({n})" if len(of_cell) else EMPTY

    texts: dict[str, dict[str, str]] = {}
    for cell in study.cells:
        texts.setdefault(cell.column, {})[cell.row] = text(cell.row, cell.column)
    frame = pd.DataFrame(texts, index=list(study.rows)).fillna(EMPTY)
    return frame.rename(index=study.labels)


def _decimals(study: Study, runs: StudyRuns, column: str) -> int:
    decimals = study.columns[column].decimals
    return DECIMALS[runs.signs[column]] if decimals is None else decimals


def _published(numbers: Published) -> dict[str, str]:
    """Return the texts of a column of a paper, with its digits, and its mark unless it is OK."""
    n_digits, values = _n_digits(numbers), numbers.values.items()
    return {row: f"{value:.{n_digits}f}{_marked(numbers.mark)}" for row, value in values}


def _n_digits(numbers: Published) -> int:
    """Return the number of decimals of a column of a paper."""
    return max(len(f"{value:.10g}".partition(".")[2]) for value in numbers.values.values())


def _main(study: Study, runs: StudyRuns) -> TextTable:
    """Return the main table, with the paper's numbers and ours."""
    ours, columns = _ours(study, runs, study.compared), {}
    is_published = any(column.paper is not None for column in study.columns.values())
    common = _common_metric(study)
    for name, column in study.columns.items():
        label = f"{column.label} ({column.unit})" if column.unit else column.label
        if common is None and not column.unit:
            metric = study.metrics[study.compared[name]]
            label = f"{label}: {metric}{_direction(runs.signs[name])}"
        if column.paper is not None:
            columns[label, "paper"] = pd.Series(_published(column.paper)).rename(study.labels)
        if column.overrides is not None:
            columns[label, "ours" if is_published else ""] = ours[name]
    frame = pd.DataFrame(columns, index=list(study.labels.values())).fillna(EMPTY)
    title = common or "scores"
    if {runs.signs[name] for name, column in study.columns.items() if not column.unit} == {-1}:
        title += _direction(-1)
    title = f"{title[0].upper()}{title[1:]}" + (", the paper's and ours" if is_published else "")
    return TextTable(title, frame, _main_notes(study, runs))


def _main_notes(study: Study, runs: StudyRuns) -> list[str]:
    notes = []
    if len(runs.scores):
        notes.append(
            "Ours: mean ± standard deviation over seeds (number of seeds); of one seed the mean "
            "alone."
        )
    marks = {c.paper.mark for c in study.columns.values() if c.paper is not None}
    notes += [f"({mark}): {MARKS[mark]}." for mark in sorted(marks - {"OK"})]
    remarks: dict[str, list[str]] = {}  # with the columns that share each
    for column in study.columns.values():
        if column.overrides is not None:
            note = f"; {column.note}" if column.note else ""
            if column.learned is not None:
                note += f"; of the runs that reach {column.learned:g} on the validation set"
            remarks.setdefault(f"scored on {column.test}{note}", []).append(column.label)
    for name, column in study.columns.items():
        problems = [f"NOT AVERAGED, NOT COMPARED: {p}" for p in runs.problems.get(name, ())]
        for text in (*problems, *runs.notes.get(name, ())):
            remarks.setdefault(text, []).append(column.label)
    for text, labels in remarks.items():
        whole = 1 < len(labels) == len(study.columns)
        notes.append(f"{'All columns' if whole else '; '.join(labels)}: {text}.")
    return notes + _signatures(study, runs, list(dict.fromkeys(study.compared.values())))


def _common_metric(study: Study) -> str | None:
    """Return the label of the metric of all columns with scores; None if they differ."""
    names = {study.compared[name] for name, column in study.columns.items() if not column.unit}
    return study.metrics[names.pop()] if len(names) == 1 else None


def _direction(sign: int) -> str:
    return "" if sign > 0 else " (lower is better)"


def _marked(mark: str) -> str:
    return "" if mark == "OK" else f" ({mark})"


def _signatures(study: Study, runs: StudyRuns, metrics: list[str]) -> list[str]:
    of_metrics = runs.scores[runs.scores.metric.isin(metrics)]
    pairs = of_metrics[["metric", "signature"]].dropna().drop_duplicates()
    pairs = pairs.sort_values("metric", key=lambda names: names.map(metrics.index), kind="stable")
    return [
        f"Signature of {study.metrics[metric]}: {signature}."
        for metric, signature in pairs.itertuples(index=False, name=None)
    ]


def difference_table(study: Study, runs: StudyRuns, baseline: str, n_resamples: int) -> TextTable:
    """Return a table of the difference of each row to the baseline, over seeds and over items."""
    tested = {(row.column, row.row): row for row in runs.differences.itertuples()}
    cells, bold = {}, []
    for name in (name for name, column in study.columns.items() if column.unit is None):
        for row in (row for row in study.rows if row != baseline):
            published, ours = _paper_difference(study, row, baseline, name), tested.get((name, row))
            texts = {"paper": published} if published else {}
            if ours is not None:
                texts |= _difference_texts(ours, _decimals(study, runs, name), n_resamples)
            if texts:
                label = f"{study.columns[name].label} {ARROWS[runs.signs[name]]}"
                cells[f"{label}, {study.labels[row]}"] = texts
                bold.append(ours is not None and ours.is_known and supported(ours.over_seeds))
    frame = pd.DataFrame.from_dict(cells, orient="index").fillna(EMPTY)
    notes = [ARROW_NOTE]
    if len(runs.differences):
        notes += [
            "Ours: mean over the n seeds that both rows have (n; n of m if a row has m seeds, and "
            "thus another mean in the table above).",
            "Over seeds: Student's t interval of the differences of runs paired by seed; bold: it "
            "excludes 0, and training and scored text are known to be the same (by their hashes). "
            "It is not corrected for the number of cells.",
            "Over items: paired bootstrap over the items of the test set (Koehn 2004), "
            f"{n_resamples:,} draws, the same items for both rows and all seeds; of windows of one "
            "text, blocks of neighbours.",
            "p is two-sided, over the items, with these seeds fixed; only the interval over seeds "
            "is about other seeds. ≤ marks the smallest p-value that this many draws can give.",
        ]
    unit = _common_metric(study) or "the metric of each column"
    is_ours = np.isin(frame.columns, ["ours", OVER_SEEDS])
    marks = np.outer(np.array(bold, dtype=bool), is_ours)
    return TextTable(f"Difference to {study.labels[baseline]}, in {unit}", frame, notes, bold=marks)


def _difference_texts(row: Any, decimals: int, n_resamples: int) -> dict[str, str]:
    """Return the texts of a row of `headwise.studies.compare.differences`."""
    total = f" of {row.n_runs}" if row.n_runs > row.n_seeds else ""
    smallest = 1 / (n_resamples + 1)
    shown_p = f"{row.p_value:.{3 if row.p_value >= 0.001 else 4}f}"
    return {
        "ours": f"{signed(row.difference, decimals)} ({row.n_seeds}{total})",
        OVER_SEEDS: interval(row.over_seeds, decimals),
        OVER_ITEMS: interval(row.over_items, decimals),
        P_VALUE: shown_p if row.p_value > smallest else f"≤ {smallest:.1g}",
    }


def _paper_difference(study: Study, row: str, baseline: str, name: str) -> str:
    """Return the difference of two numbers of the paper; empty if it compares with other work."""
    column = study.columns[name]
    numbers = {} if column.paper is None else column.paper.values
    is_of_others = column.overrides is not None and study.rows[row].overrides is None
    if column.paper is None or not {row, baseline} <= numbers.keys() or is_of_others:
        return ""
    difference = signed(numbers[row] - numbers[baseline], _n_digits(column.paper))
    return difference + _marked(column.paper.mark)
