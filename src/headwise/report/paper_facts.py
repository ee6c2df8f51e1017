"""The facts of a report as tidy rows: one fact a row, with where it comes from and its mark."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from typing import Any

from headwise.report.paper import Paper
from headwise.report.paper_cells import PLAIN_BLEU, ColumnFigures, Missing
from headwise.report.paper_pruning import PruningReport
from headwise.report.paper_runs import Matching

COLUMNS = (
    "paper",
    "row",
    "column",
    "test",
    "source",  # paper or ours
    "quantity",
    "site",  # of heads
    "layer",
    "value",
    "mark",  # of the paper's: OK, r+ or r-
    "n_seeds",
    "seed",
    "signature",
    "run",
    "note",
)
Fact = dict[str, Any]


def facts(
    paper: Paper,
    columns: Sequence[ColumnFigures],
    matching: Matching,
    missing: Sequence[Missing],
    pruning: PruningReport,
    of_heads: Sequence[Fact] = (),
) -> list[Fact]:
    """Everything that the report says, and what it had to leave out."""
    rows = [fact for figures in columns for fact in _column_facts(paper, figures)]
    rows += [
        {
            "row": row,
            "source": "paper",
            "quantity": "speed_percent",
            "value": n.value,
            "mark": n.mark,
        }
        for row, n in paper.speed.items()
    ]
    rows += [*of_heads, *_pruning_facts(paper, pruning)]
    for lack in missing:
        place = {"row": lack.row, "column": lack.column, "source": "ours"}
        rows += [
            {**place, "quantity": "missing", "seed": seed, "note": lack.command}
            for seed in lack.seeds
        ]
    rows += [
        {"source": "ours", "quantity": "unused", "run": str(u.run.folder), "note": u.reason}
        for u in matching.unused
    ]
    return [{"paper": paper.name, **row} for row in rows]


def _column_facts(paper: Paper, figures: ColumnFigures) -> Iterator[Fact]:
    for row, found in figures.cells.items():
        place: Fact = {"row": row, "column": figures.name, "test": figures.column.test}
        if found.cell is not None and found.cell.paper is not None:
            quantity = figures.column.unit or figures.metric
            number = {"value": found.cell.paper, "mark": found.cell.mark}
            yield {**place, "source": "paper", "quantity": quantity, **number}
        ours = {**place, "source": "ours"}
        for metric in dict.fromkeys((figures.metric, PLAIN_BLEU)):
            yield from _score_facts(ours, figures, row, metric)
        for run in found.runs:
            one = {**ours, "seed": run.seed, "run": str(run.folder)}
            yield {**one, "quantity": "updates", "value": run.updates}
            if run.tokens_per_second is not None:
                speed = round(run.tokens_per_second, 1)
                yield {**one, "quantity": "tokens_per_second", "value": speed}
        if found.speed is not None:
            for name, percent in zip(("", "_low", "_high"), found.speed, strict=True):
                yield {**ours, "quantity": f"speed_percent{name}", "value": round(percent, 2)}
        test = found.comparison
        if test is not None:
            about = {**ours, "n_seeds": test.n_seeds}
            named = {"difference": test.difference, "low": test.low, "high": test.high}
            for name, value in named.items():
                yield {**about, "quantity": f"{figures.metric}_{name}", "value": round(value, 4)}
            yield {**about, "quantity": "p_value", "value": test.p_value}
    for text in figures.problems:
        yield {"column": figures.name, "source": "ours", "quantity": "not_averaged", "note": text}
    for text in figures.notes:
        yield {"column": figures.name, "source": "ours", "quantity": "note", "note": text}


def _score_facts(ours: Fact, figures: ColumnFigures, row: str, metric: str) -> Iterator[Fact]:
    scores = figures.scores(row, metric)
    signature_of = {
        id(run): signature for signature, runs in figures.signatures(metric).items() for run in runs
    }
    for run in figures.cells[row].runs:
        if run.seed in scores:
            yield {
                **ours,
                "quantity": metric,
                "value": round(scores[run.seed], 4),
                "seed": run.seed,
                "signature": signature_of[id(run)],
                "run": str(run.folder),
            }
    if not scores or figures.problems:
        return
    values = list(scores.values())
    about = {**ours, "n_seeds": len(values)}
    yield {**about, "quantity": f"{metric}_mean", "value": round(statistics.fmean(values), 4)}
    if len(values) > 1:
        yield {**about, "quantity": f"{metric}_sd", "value": round(statistics.stdev(values), 4)}


def _pruning_facts(paper: Paper, pruning: PruningReport) -> Iterator[Fact]:
    for fact in paper.pruning:
        yield {
            "row": fact.label,
            "column": fact.table,
            "source": "paper",
            "quantity": fact.unit,
            "value": fact.paper,
            "mark": fact.mark,
            "note": fact.text,
        }
    for fact, kind, answer in pruning.answers:
        for run, value in answer.values.items():
            yield {
                "row": fact.label,
                "column": fact.table,
                "source": "ours",
                "quantity": fact.unit,
                "value": round(value, 4),
                "run": run,
                "note": kind,
            }
