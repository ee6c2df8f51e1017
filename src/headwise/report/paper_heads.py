"""What the heads of a paper's runs became: analysed, and averaged over the seeds of each cell."""

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
from headwise.report.paper import Paper
from headwise.report.paper_cells import ColumnFigures
from headwise.report.tables import NOTHING, TextTable


def head_tables(
    paper: Paper,
    columns: Sequence[ColumnFigures],
    analyses: Mapping[Path, Path],
    diversity_base: str = "heads",
) -> list[TextTable]:
    """A table for each corpus, the rows of the paper beside one another; the first defines all.

    Args:
        analyses: folder of a run -> folder of its analysis; of all runs that fill a cell.
    """
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
        keys = in_order({key for seeds in found.values() for values in seeds for key in values})
        table = TextTable(
            f"Heads, {figures.column.label}", "", [(paper.rows[row], [""]) for row in found]
        )
        table.rows = [
            (name_of(key), [_mean(key, seeds) for seeds in found.values()]) for key in keys
        ]
        n_seeds = ", ".join(f"{paper.rows[row]} {len(seeds)}" for row, seeds in found.items())
        table.notes = [
            "Of the validation set; mean over seeds, with the least and the greatest where they "
            f"differ. Seeds: {n_seeds}."
        ]
        tables.append(table)
        told |= dict.fromkeys(keys)
    if tables:  # once is enough
        tables[0].notes += definitions(told, Thresholds(), diversity_base)
    return tables


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
