"""The tables of a paper, pivoted from facts: its numbers and ours, differences, speeds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pandas as pd

from headwise.studies.paper import MARKS, Paper
from headwise.studies.render import (
    ARROW_NOTE,
    ARROWS,
    EMPTY,
    Table,
    mean_and_deviation,
    pivot,
    select,
    signed,
)

NOT_AVERAGED = "not averaged"
MISSING = "missing"
OURS = "ours [95 %]"


def paper_tables(
    paper: Paper, facts: pd.DataFrame, n_resamples: int, signs: Mapping[str, int]
) -> list[Table]:
    """Return every table that is not empty.

    Args:
        paper: its yaml.
        facts: from `headwise.studies.cells.cell_facts`.
        n_resamples: of the comparisons.
        signs: column -> 1 if a higher score is better, else -1.
    """
    tables = [_main(paper, facts, signs)] if paper.columns else []
    ours = facts[facts.origin == "ours"]
    others = [name for name in paper.metrics if name not in paper.compared.values()]
    for name in others if "updates" in set(facts.quantity) else ():
        frame = _scores(paper, ours, dict.fromkeys(paper.columns, name))
        title = f"The same runs in {paper.metrics[name]}"
        tables.append(
            Table(title, frame.droplevel(1, axis="columns"), _signatures(paper, facts, [name]))
        )
    if paper.baseline is not None:
        tables += [_differences(paper, facts, paper.baseline, n_resamples, signs)]
        tables += [_speeds(paper, facts, paper.baseline)] if paper.speed else []
    tables += [_contexts(paper, name, scores) for name, scores in paper.contexts.items()]
    return [table for table in tables if table.frame.size]


def _contexts(paper: Paper, name: str, scores: Mapping[int, float]) -> Table:
    """Return the paper's scores by minimum context (Child et al. 2019, table 3)."""
    label = paper.columns[name].label if name in paper.columns else name
    frame = pd.DataFrame({"paper": {n: f"{score:.4f}" for n, score in scores.items()}})
    contexts = ",".join(map(str, scores))
    note = (
        f"Ours, as table and figure: `headwise evaluate run=… 'decode.min_context=[{contexts}]'`."
    )
    return Table(f"{label} by minimum context of the scored tokens", frame, [note])


def _scores(paper: Paper, facts: pd.DataFrame, metrics: Mapping[str, str]) -> pd.DataFrame:
    """Return a table of rows by columns, with the paper's numbers and ours.

    `metrics`: column -> metric of its scores.
    """
    units = [column.unit for column in paper.columns.values() if column.unit]
    cells = select(facts, quantity=[*set(metrics.values()), "missing", "updates", *units])
    not_averaged = set(facts[facts.quantity == "not_averaged"].column)

    def cell_text(cell: pd.DataFrame) -> str:
        first = cell.iloc[0]
        if first.origin == "paper":
            return f"{first.value:.{paper.columns[first.column].decimals}f}{_marked(first.mark)}"
        has_runs = (cell.quantity == "updates").any()
        if first.column in not_averaged or not has_runs:
            return NOT_AVERAGED if has_runs else MISSING
        scores = cell[cell.quantity == metrics[first.column]].value
        text = mean_and_deviation(scores, paper.columns[first.column].our_decimals)
        return f"{text} ({len(scores)})" if len(scores) else EMPTY

    frame = pivot(cells, "row", ["column", "origin"], cell_text, paper.rows)
    labels = {
        name: column.label + (f" ({column.unit})" if column.unit else "")
        for name, column in paper.columns.items()
    }
    return frame.rename(index=paper.rows).rename(columns=labels, level=0)


def _main(paper: Paper, facts: pd.DataFrame, signs: Mapping[str, int]) -> Table:
    """Return the main table, with the paper's numbers and ours."""
    frame = _scores(paper, facts, paper.compared)
    metric = _common_metric(paper) or "scores"
    if {signs[name] for name, column in paper.columns.items() if not column.unit} == {-1}:
        metric += " (lower is better)"
    title = f"{metric[0].upper()}{metric[1:]}"
    if _common_metric(paper) is None:
        labels = {paper.columns[n].label: _with_metric(paper, n, signs[n]) for n in paper.columns}
        frame = frame.rename(columns=labels, level=0)
    if any(cell.paper is not None for cell in paper.cells):
        title = f"{title}, the paper's and ours"
    else:
        frame = frame.droplevel(1, axis="columns")
    notes = []
    if (facts.quantity == "updates").any():
        notes.append(
            "Ours: mean ± standard deviation over seeds (number of seeds); of one seed the mean "
            "alone."
        )
    notes += mark_notes(cell.mark for cell in paper.cells if cell.paper is not None)
    scored: dict[str, list[str]] = {}
    for name, column in paper.columns.items():
        if column.test is not None and any(c.overrides for c in paper.cells if c.column == name):
            note = f"; {column.note}" if column.note else ""
            scored.setdefault(f"scored on {column.test}{note}.", []).append(column.label)
    for text, of_columns in scored.items():
        whole = 1 < len(of_columns) == len(paper.columns)
        notes.append(f"{'All columns' if whole else '; '.join(of_columns)}: {text}")
    for name, column in paper.columns.items():
        for fact in select(facts, column=name, quantity=["not_averaged", "note"]).itertuples():
            is_excluded = fact.quantity == "not_averaged"
            kind = "NOT AVERAGED, NOT COMPARED: " if is_excluded else ""
            notes.append(f"{column.label}: {kind}{fact.note}.")
    notes += _signatures(paper, facts, list(dict.fromkeys(paper.compared.values())))
    return Table(title, frame, notes)


def _common_metric(paper: Paper) -> str | None:
    """Return the label of the metric of all columns with scores; None if they differ."""
    names = {paper.compared[name] for name, column in paper.columns.items() if not column.unit}
    return paper.metrics[names.pop()] if len(names) == 1 else None


def _with_metric(paper: Paper, name: str, sign: int) -> str:
    direction = "" if sign > 0 else " (lower is better)"
    return f"{paper.columns[name].label}: {paper.metrics[paper.compared[name]]}{direction}"


def mark_notes(marks: Iterable[str | None]) -> list[str]:
    """Explain the marks of a paper's numbers, OK excluded."""
    return [f"({mark}): {MARKS[mark]}." for mark in sorted({m for m in marks if m} - {"OK"})]


def _marked(*marks: str | None) -> str:
    """Return the marks of some numbers in brackets, OK excluded."""
    named = dict.fromkeys(str(mark) for mark in marks if mark != "OK")
    return f" ({', '.join(named)})" if named else ""


def _signatures(paper: Paper, facts: pd.DataFrame, metrics: list[str]) -> list[str]:
    signed = select(facts, quantity=metrics)[["quantity", "signature"]].dropna().drop_duplicates()
    return [
        f"Signature of {paper.metrics[metric]}: {signature}."
        for metric, signature in signed.itertuples(index=False, name=None)
    ]


def _differences(
    paper: Paper, facts: pd.DataFrame, baseline: str, n_resamples: int, signs: Mapping[str, int]
) -> Table:
    """Return a table of the difference of each row to the baseline, with the paired bootstrap."""
    base = paper.rows[baseline]
    cells = {}
    for name in (name for name, column in paper.columns.items() if column.unit is None):
        for row in (row for row in paper.rows if row != baseline):
            published = _paper_difference(paper, row, baseline, name)
            tested = _tested(paper, select(facts, column=name), row, baseline, n_resamples)
            texts = {**published, **tested}
            if texts:
                label = f"{paper.columns[name].label} {ARROWS[signs[name]]}"
                cells[f"{label}, {paper.rows[row]}"] = texts
    frame = pd.DataFrame.from_dict(cells, orient="index").fillna(EMPTY)
    frame = frame[[kind for kind in ("paper", OURS, "p") if kind in frame]]
    notes = [ARROW_NOTE]
    if OURS in frame:
        notes += [
            "Ours: mean over the n seeds that both rows have (n; n of m if a row has m seeds, and "
            "thus another mean in the table above). Interval and p are by paired "
            f"bootstrap over items of the test set (Koehn 2004), {n_resamples:,} draws, the same "
            "items for both rows and all seeds.",
            "p is two-sided. It covers the choice of items, not of seeds, and is not corrected for "
            "the number of cells. ≤ marks the smallest p-value that this many draws can give.",
        ]
    unit = _common_metric(paper) or "the metric of each column"
    return Table(f"Difference to {base}, in {unit}", frame, notes)


def _tested(
    paper: Paper, facts: pd.DataFrame, row: str, baseline: str, n_resamples: int
) -> dict[str, str]:
    """Return difference with interval and number of seeds, and p; empty if not tested.

    `facts`: of one column.
    """
    tested = facts[(facts.row == row) & (facts.origin == "ours")].set_index("quantity")
    if "p_value" not in tested.index:
        return {}
    (column,) = tested.column.unique()
    metric, decimals = paper.compared[column], paper.columns[column].our_decimals
    difference, low, high = (
        signed(tested.value[f"{metric}_{name}"], decimals) for name in ("difference", "low", "high")
    )
    p_value, n_seeds = tested.value["p_value"], tested.n_seeds["p_value"]
    n_runs = select(facts, row=[row, baseline], quantity="updates").row.value_counts().max()
    total = f" of {n_runs}" if n_runs > n_seeds else ""
    smallest = 1 / (n_resamples + 1)
    return {
        OURS: f"{difference} [{low} to {high}] ({n_seeds}{total})",
        "p": f"{p_value:.3f}" if p_value > smallest else f"≤ {smallest:.1g}",
    }


def _paper_difference(paper: Paper, row: str, baseline: str, column: str) -> dict[str, str]:
    """Return the difference of two numbers of the paper; empty if it compares with other work."""
    cell, base = paper.cell(row, column), paper.cell(baseline, column)
    if cell is None or base is None or cell.paper is None or base.paper is None:
        return {}
    if base.overrides and not cell.overrides:  # a row of others, without a recipe
        return {}
    difference = signed(cell.paper - base.paper, paper.columns[column].decimals)
    return {"paper": difference + _marked(cell.mark, base.mark)}


def _speeds(paper: Paper, facts: pd.DataFrame, baseline: str) -> Table:
    """Return a table of training tokens/s in percent of the baseline's."""
    percents = facts[facts.quantity.str.startswith("speed_percent")].fillna({"column": "paper"})

    def cell_text(cell: pd.DataFrame) -> str:
        values = [f"{value:.0f}" for value in cell.value]
        if len(values) == 1:
            return values[0] + _marked(cell.mark.iloc[0])
        ratio, low, high = values
        return ratio if low == high else f"{ratio} ({low} to {high})"

    rows = [row for row in paper.rows if row != baseline]
    frame = pivot(percents, "row", ["column"], cell_text, rows)
    frame = frame[sorted(frame, key=lambda name: name != ("paper",))]
    labels = {name: column.label for name, column in paper.columns.items()}
    frame = frame.rename(index=paper.rows).rename(columns=labels)
    notes = []
    if "ours" in set(percents.origin):
        machines = facts[facts.quantity == "updates"].note.unique()
        notes = [
            "Ours: a run's speed is the median over the windows of its log; ratio of medians over "
            "the seeds that both rows have (lowest to highest ratio of one seed), as "
            "measured in training: other load on the machine lowers it.",
            f"Ours were trained on: {'; '.join(sorted(machines))}.",
        ]
    return Table(f"Training speed, tokens/s in % of {paper.rows[baseline]}", frame, notes)
