"""What the heads of a paper's runs became: analysed, and averaged over the seeds of each cell.

Beside them stands what the paper itself tells of its heads, where its yaml has it.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from headwise.analysis.roles import Thresholds
from headwise.report.head_comparison import (
    Key,
    definitions,
    in_order,
    name_of,
    shown_value,
    values_of,
)
from headwise.report.paper import MARKS, Paper
from headwise.report.paper_cells import ColumnFigures
from headwise.report.tables import NOTHING, TextTable


def head_tables(
    paper: Paper,
    columns: Sequence[ColumnFigures],
    analyses: Mapping[Path, Path],
    diversity_base: str = "heads",
) -> list[TextTable]:
    """A table for each corpus, the rows of the paper beside one another; the first defines all.

    Where no run fills a cell, what the paper tells stands alone.

    Args:
        analyses: folder of a run -> folder of its analysis; of all runs that fill a cell.
    """
    of_paper = _of_paper(paper)
    tables: list[TextTable] = []
    told: dict[Key, None] = {}
    for figures in columns:
        found = {
            row: [values_of(analyses[run.folder], diversity_base) for run in cell.runs]
            for row, cell in figures.cells.items()
            if cell.runs
        }
        if not found:
            continue
        keys = in_order(
            {key for seeds in found.values() for values in seeds for key in values}
            | {key for row in found for key in of_paper.get(row, {})}
        )
        table = TextTable(f"Heads, {figures.column.label}", "", [])
        table.rows = [(name_of(key), []) for key in keys]
        for row, seeds in found.items():
            table.groups.append((paper.rows[row], ["paper", "ours"] if row in of_paper else [""]))
            for key, (_, cells) in zip(keys, table.rows, strict=True):
                cells += [of_paper[row].get(key, NOTHING)] if row in of_paper else []
                cells.append(_mean(key, seeds))
        n_seeds = ", ".join(f"{paper.rows[row]} {len(seeds)}" for row, seeds in found.items())
        table.notes = [
            "Of the validation set; mean over seeds, with the least and the greatest where they "
            f"differ. Seeds: {n_seeds}."
        ]
        tables.append(table)
        told |= dict.fromkeys(keys)
    if not tables and of_paper:
        told = {key: None for cells in of_paper.values() for key in cells}
        table = TextTable(
            "Heads, the paper alone", "", [(paper.rows[row], [""]) for row in of_paper]
        )
        table.rows = [
            (name_of(key), [cells.get(key, NOTHING) for cells in of_paper.values()])
            for key in in_order(told)
        ]
        tables.append(table)
    if tables:  # once is enough
        if of_paper:
            tables[0].notes += _paper_notes(paper)
        tables[0].notes += definitions(told, Thresholds(), diversity_base)
    return tables


def paper_head_facts(paper: Paper) -> list[dict[str, Any]]:
    """What the paper tells of its heads, for `paper_facts.COLUMNS`."""
    return [
        {
            "row": row,
            "source": "paper",
            "quantity": number.quantity,
            "site": number.site,
            "value": number.values.get(row),
            "mark": number.mark,
            "note": number.text.get(row),
        }
        for number in paper.heads
        for row in paper.rows
        if row in number.values or row in number.text
    ]


def _of_paper(paper: Paper) -> dict[str, dict[Key, str]]:
    """By row, what the paper tells of its heads, as it is shown."""
    found: dict[str, dict[Key, str]] = {row: {} for row in paper.rows}
    for number in paper.heads:
        key: Key = (number.quantity, number.site, None)
        mark = "" if number.mark == "OK" else f" ({number.mark})"
        for row in paper.rows:
            text = number.text.get(row)
            if text is None and row in number.values:
                text = _told_value(key, number.values[row])
            if text is not None:
                found[row][key] = text + mark
    return {row: cells for row, cells in found.items() if cells}


def _told_value(key: Key, value: float) -> str:
    """With the digits that the paper gives, at most two behind the point of a percentage."""
    shown = shown_value(key, value)
    return f"{100 * value:.4g} %" if shown.endswith("%") else shown


def _paper_notes(paper: Paper) -> list[str]:
    marks = sorted({number.mark for number in paper.heads} - {"OK"})
    notes = [f"({mark}): {MARKS[mark]}." for mark in marks]
    return notes if paper.heads_note is None else [paper.heads_note, *notes]


def head_facts(
    columns: Sequence[ColumnFigures],
    analyses: Mapping[Path, Path],
    diversity_base: str = "heads",
) -> list[dict[str, Any]]:
    """The same of every run, one value a row, for `paper_facts.COLUMNS`."""
    return [
        {
            "row": row,
            "column": figures.name,
            "source": "ours",
            "quantity": quantity,
            "site": site,
            "layer": layer,
            "value": round(value, 4),
            "seed": run.seed,
            "run": str(run.folder),
        }
        for figures in columns
        for row, cell in figures.cells.items()
        for run in cell.runs
        for (quantity, site, layer), value in values_of(
            analyses[run.folder], diversity_base
        ).items()
    ]


def _mean(key: Key, seeds: Sequence[Mapping[Key, float]]) -> str:
    """`0.52 (0.50 to 0.55)` over the seeds that have the value."""
    values = [found[key] for found in seeds if key in found]
    if not values:
        return NOTHING
    low, high = shown_value(key, min(values)), shown_value(key, max(values))
    if low == high:
        return low
    mean = statistics.fmean(values)
    is_count = shown_value(key, 0.5) in ("0", "1")
    shown = f"{mean:.1f}" if is_count else shown_value(key, mean)
    if low.endswith(" %") and not low.startswith("under"):
        low = low.removesuffix(" %")
    return f"{shown} ({low} to {high})"
