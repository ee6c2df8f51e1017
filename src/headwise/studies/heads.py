"""Statistics of the heads of runs as tables; the quantities of Correia et al. 2019, section 5."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from headwise.analysis.quantities import QUANTITIES, head_facts
from headwise.analysis.tables import GLOSSARY, percent, read_settings
from headwise.config.schema import SITE_NAMES
from headwise.files import write_text
from headwise.metrics.significance import mean_interval
from headwise.runs.record import Record
from headwise.studies.compare import differing_kinds
from headwise.studies.record import TaskRecord
from headwise.studies.render import EMPTY, TextTable
from headwise.studies.rows import named_rows
from headwise.studies.study import Study

FACT = ("column", "row", "quantity", "site", "layer", "value", "seed", "run")
LIMITS = {"count": (0, math.inf), "share": (0, 1), "fraction": (0, 1), "correlation": (-1, 1)}


def write_comparison(runs: Sequence[TaskRecord], output: Path) -> str:
    """Write comparison.md, and return its text.

    Args:
        runs: with an analysis.
        output: folder of the file.
    """
    labels = dict(zip(run_labels(runs), runs, strict=True))
    rows = [{"row": label, **fact} for label in labels for fact in head_facts([labels[label]])]
    notes = [f"– : not measured, or no such head. {GLOSSARY}"]
    for label, run in labels.items():
        settings = read_settings(run)
        notes.append(
            f"{label}: `{run.folder}`, {settings['sentences']} sentences of {settings['split']}, "
            f"weights `{settings['checkpoint']}`"
        )
    notes += other_texts(runs)
    text = TextTable("", head_frame(_tidy(rows)), notes).markdown()
    output.mkdir(parents=True, exist_ok=True)
    write_text(output / "comparison.md", text)
    return f"{text}\nwritten to {output}"


def other_texts(runs: Iterable[Record]) -> list[str]:
    """Return a note if the analyses of runs are of several texts, by the hashes of their ids."""
    texts = [(str(run.folder), read_settings(run).get("text")) for run in runs]
    kinds = differing_kinds(pd.DataFrame(texts, columns=["run", "text"]), "text")
    return [f"The analysed text, or its tokens, differ (by their hash): {kinds}"] if kinds else []


def _tidy(facts: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """Return facts as a table; missing values are None."""
    table = pd.DataFrame(list(facts), columns=FACT, dtype=object)
    return table.where(table.notna(), None)


def run_labels(runs: Sequence[TaskRecord]) -> list[str]:
    """Return a unique name for each run: that of its row and its seed, or its folder."""
    names = {
        run.folder: name if len(same) == 1 else f"{name}, seed {run.seed}"
        for name, same in named_rows(runs).items()
        for run in same
    }
    labels = [names[run.folder] for run in runs]
    return [
        label if labels.count(label) == 1 else str(run.folder)
        for run, label in zip(runs, labels, strict=True)
    ]


def head_frame(
    facts: pd.DataFrame, cell_text: Callable[[pd.DataFrame], str] | None = None
) -> pd.DataFrame:
    """Return a table of quantities by rows of the facts: means over runs with their interval."""
    keys = [*facts[["quantity", "site", "layer"]].itertuples(index=False, name=None)]
    order, sites = list(QUANTITIES), [None, *SITE_NAMES]
    in_order = sorted(keys, key=lambda k: (order.index(k[0]), sites.index(k[1]), k[2] or 0))
    names = list(dict.fromkeys(_name(*key) for key in in_order))
    cells = facts.assign(name=[_name(*key) for key in keys]).groupby(["name", "row"])
    texts = {key: (cell_text or _cell_text)(cell) for key, cell in cells}
    columns = {row: [texts.get((name, row), EMPTY) for name in names] for row in facts.row}
    return pd.DataFrame(columns, index=names)


def _name(quantity: str, site: str | None, layer: int | None) -> str:
    """Return the displayed name of a quantity."""
    name = QUANTITIES[quantity].label + ("" if site is None else f", {SITE_NAMES[site]}")
    return name if layer is None else f"{name} layer {layer}"


def _cell_text(cell: pd.DataFrame) -> str:
    """Format `0.52 [0.45, 0.59]` over runs."""
    kind, values = QUANTITIES[cell.iloc[0].quantity].format, cell.value.astype(float).tolist()
    low, high = LIMITS.get(kind, (-math.inf, math.inf))
    shown = {"count": ".1f" if len(set(values)) > 1 else ".0f", "small": ".1e"}.get(kind, ".2f")

    def text(value: float) -> str:
        inside = min(max(value, low), high)  # an end of an interval may be outside
        return percent(inside) if kind == "share" else f"{inside:{shown}}"

    return interval_text(values, text)


def _difference_text(cell: pd.DataFrame) -> str:
    """Format the difference of a row to the baseline, paired by seed; shares in points."""
    kind = QUANTITIES[cell.iloc[0].quantity].format
    factor, shown = {"count": (1, "+.1f"), "share": (100, "+.0f"), "small": (1, "+.1e")}.get(
        kind, (1, "+.2f")
    )
    values = cell.value.astype(float).tolist()
    return interval_text(values, lambda x: f"{factor * x:{shown}}")


def interval_text(values: Sequence[float], shown: Callable[[float], str]) -> str:
    """Format a mean with its 95 % t interval, `0.52 [0.45, 0.59]`; the mean if all look equal."""
    mean, bounds = statistics.fmean(values), mean_interval(values)
    texts = [shown(x).removesuffix(" %") for x in bounds or ()]
    if {text.lstrip("+-") for text in texts} <= {shown(mean).removesuffix(" %").lstrip("+-")}:
        return shown(mean)
    return f"{shown(mean)} [{', '.join(texts)}]"


# -- of a study -----------------------------------------------------------------------------------


def head_tables(
    study: Study, runs: pd.DataFrame, analysed: Collection[Path]
) -> tuple[pd.DataFrame, list[TextTable]]:
    """Return the quantities of the heads, a row each, and the tables of each column of the study.

    Args:
        study: its yaml.
        runs: of `headwise.studies.compare.StudyRuns`.
        analysed: folders of the runs with an analysis.
    """
    facts, tables = _tidy(_measured_facts(runs, analysed)), []
    for name, of_column in facts.groupby("column", sort=False):
        label, seeds = study.columns[name].label, of_column.groupby("row", sort=False).run.nunique()
        n_seeds = ", ".join(f"{study.labels[row]} {n}" for row, n in seeds.items())
        note = (
            "On the validation set; mean over seeds with its 95 % interval (Student's t). Seeds: "
            f"{n_seeds}. {GLOSSARY}"
        )
        frame = head_frame(of_column).rename(columns=study.labels)
        of_cells = runs[(runs.column == name) & runs.run.isin(of_column.run)].saved
        tables.append(TextTable(f"Heads, {label}", frame, [note, *other_texts(of_cells)]))
        differences = differences_to_baseline(of_column, study.baseline)
        if len(differences):
            frame = head_frame(differences, _difference_text).rename(columns=study.labels)
            title = f"Heads, {label}: differences to {study.labels[study.baseline or '']}"
            note = "Mean over pairs of runs of a seed, with its 95 % interval; shares in points."
            tables.append(TextTable(title, frame, [note]))
    return facts, tables


def differences_to_baseline(facts: pd.DataFrame, baseline: str | None) -> pd.DataFrame:
    """Return facts whose values are those of other rows minus the baseline's of the same seed."""
    facts = facts.dropna(subset="seed")  # not those of all seeds together
    keys = ["quantity", "site", "layer", "seed"]
    base = facts[facts.row == baseline][[*keys, "value"]]
    others = facts[facts.row != baseline].merge(base, on=keys, suffixes=("", "_of_baseline"))
    return others.assign(value=others.value - others.value_of_baseline)


def _measured_facts(runs: pd.DataFrame, analysed: Collection[Path]) -> Iterator[dict[str, Any]]:
    """Yield the quantities of each run, and of the runs of a cell together."""
    for (column, row), cell in runs.groupby(["column", "row"], sort=False):
        place = {"column": column, "row": row}
        of_cell = [run for run in cell.saved if run.folder in analysed]
        for run in of_cell:
            of_run = {**place, "seed": run.seed, "run": str(run.folder)}
            yield from ({**of_run, **fact} for fact in head_facts([run]))
        yield from ({**place, **fact} for fact in head_facts(of_cell, all_seeds=True))
