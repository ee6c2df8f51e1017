"""Statistics of the heads of runs, as facts and as tables, with or without those of a paper.

The quantities are those of Correia et al. 2019, section 5.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from headwise.analysis.tables import COMPARISON, GLOSSARY, percent, read_settings
from headwise.config.schema import SITE_NAMES
from headwise.files import write_text
from headwise.metrics.significance import mean_interval
from headwise.studies.head_facts import analysis_facts, facts_of_all_seeds
from headwise.studies.match import SavedRun
from headwise.studies.quantities import OF_A_SITE, QUANTITIES
from headwise.studies.render import Table, pivot
from headwise.studies.rows import named_rows
from headwise.studies.study import Study
from headwise.studies.tables import mark_notes

Key = tuple[str, str | None, int | None]  # quantity, site, layer
FACT = ("column", "row", "origin", "quantity", "site", "layer", "value", "seed", "run", "mark",
        "note")  # fmt: skip
BY_SEED = "over seeds with its 95 % interval (Student's t). Seeds:"


def write_comparison(runs: Sequence[SavedRun], output: Path) -> str:
    """Write comparison.csv and comparison.md, and return the text of the latter.

    Args:
        runs: with an analysis.
        output: folder of the files.
    """
    labels = dict(zip(runs, run_labels(runs), strict=True))
    rows = [
        {"row": label, "run": str(run.folder), **value}
        for run, label in labels.items()
        for value in analysis_facts(run)
    ]
    frame = head_frame(_tidy(rows), ["row"])
    notes = [f"– : not measured, or no such head. {GLOSSARY}"]
    for run, label in labels.items():
        settings = read_settings(run)
        notes.append(
            f"{label}: `{run.folder}`, {settings['sentences']} sentences of {settings['split']}, "
            f"weights `{settings['checkpoint']}`"
        )
    text = Table("", frame, notes).markdown()
    output.mkdir(parents=True, exist_ok=True)
    columns = ("run", "quantity", "site", "layer", "value")
    write_text(
        COMPARISON.path(output), COMPARISON.text([{k: row[k] for k in columns} for row in rows])
    )
    write_text(output / "comparison.md", text)
    return f"{text}\nwritten to {output}"


def _tidy(facts: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """Return facts as a table; missing values are None."""
    table = pd.DataFrame(list(facts), columns=FACT, dtype=object)
    return table.where(table.notna(), None)


def run_labels(runs: Sequence[SavedRun]) -> list[str]:
    """Return a short unique name for each run, with its folder if necessary."""
    names = {
        run.folder: name if len(same) == 1 else f"{name}, seed {run.seed}"
        for name, same in named_rows(runs).items()
        for run in same
    }
    labels = [names[run.folder] for run in runs]
    for name in ("{0.name}", "{0.parent.name}/{0.name}", "{0}"):  # until they are unique
        labels = [
            name.format(run.folder.resolve()) if labels.count(label) > 1 else label
            for run, label in zip(runs, labels, strict=True)
        ]
    return labels


def head_frame(
    facts: pd.DataFrame,
    columns: Sequence[str],
    cell_text: Callable[[pd.DataFrame], str] | None = None,
) -> pd.DataFrame:
    """Return a table of quantities by columns of the facts: means over runs, numbers of papers."""
    keys = [*facts[["quantity", "site", "layer"]].itertuples(index=False, name=None)]
    names = facts.assign(name=[quantity_name(key) for key in keys])
    rows = map(quantity_name, sorted_keys(keys))
    return pivot(names, "name", columns, cell_text or _cell_text, rows)


def sorted_keys(keys: Iterable[Key]) -> list[Key]:
    """Sort unique keys by quantity, then site (in order of occurrence), then layer."""
    keys, order = list(dict.fromkeys(keys)), list(QUANTITIES)
    sites = [None, *dict.fromkeys(site for _, site, _ in keys if site is not None)]
    return sorted(keys, key=lambda k: (order.index(k[0]), sites.index(k[1]), k[2] or 0))


def quantity_name(key: Key) -> str:
    """Return the displayed name of a quantity."""
    quantity, site, layer = key
    name = QUANTITIES[quantity][0]
    if site is None or (layer is None and quantity not in OF_A_SITE):
        return name
    return f"{name}, {SITE_NAMES[site]}" + (f" layer {layer}" if layer is not None else "")


def shown_value(kind: str, value: float) -> str:
    """Format a value of the kind count, share, fraction, correlation, small or number."""
    if kind in ("share", "fraction", "correlation"):  # an end of an interval may be outside
        value = min(max(value, -1.0 if kind == "correlation" else 0.0), 1.0)
    if kind == "share":
        return percent(value)
    shown = {"count": ".0f", "small": ".1e"}.get(kind, ".2f")
    return f"{value:{shown}}"


def _cell_text(cell: pd.DataFrame) -> str:
    """Format `0.52 [0.45, 0.59]` over runs; for a paper its number or text, with the mark."""
    first = cell.iloc[0]
    kind = QUANTITIES[first.quantity][1]
    if first.origin == "paper":
        value = first.value
        if first.note is not None:
            text = first.note
        elif kind == "share":  # with the digits of the paper
            text = f"{100 * value:.4g} %"
        else:
            text = shown_value(kind, value)
        return text if first.mark == "OK" else f"{text} ({first.mark})"
    values = cell.value.astype(float).tolist()
    if kind == "count" and len(set(values)) > 1:
        return interval_text(values, lambda x: f"{max(x, 0):.1f}")
    return interval_text(values, lambda x: shown_value(kind, x))


def _difference_text(cell: pd.DataFrame) -> str:
    """Format the difference of a row to the baseline, paired by seed; shares in points."""
    kind = QUANTITIES[cell.iloc[0].quantity][1]
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
) -> tuple[pd.DataFrame, list[Table]]:
    """Return the quantities of the heads, a row each, and a table for each column of the study.

    Without any run, the only table is that of the paper.

    Args:
        study: its yaml.
        runs: of `headwise.studies.compare.Compared`.
        analysed: folders of the runs with an analysis.
    """
    published, measured = map(_tidy, (_published_facts(study), _measured_facts(runs, analysed)))
    tables = []
    for name, ours in measured.groupby("column", sort=False):
        rows = [row for row in study.rows if row in set(ours.row)]
        both = pd.concat(
            facts[facts.row == row] for row in rows for facts in (published, ours) if len(facts)
        )
        is_published = both.row.isin(published.row)
        both["origin"] = both.origin.where(is_published, "")
        frame = head_frame(both, ["row", "origin"]).rename(columns=study.labels, level=0)
        seeds = ours.groupby("row", sort=False).run.nunique()
        n_seeds = ", ".join(f"{study.labels[row]} {n}" for row, n in seeds.items())
        label = study.columns[name].label
        note = f"On the validation set; mean {BY_SEED} {n_seeds}. {GLOSSARY}"
        tables.append(Table(f"Heads, {label}", frame, [note]))
        differences = differences_to_baseline(ours, study.baseline)
        if len(differences):
            frame = head_frame(differences, ["row"], _difference_text).rename(columns=study.labels)
            title = f"Heads, {label}: differences to {study.labels[study.baseline or '']}"
            note = "Mean over pairs of runs of a seed, with its 95 % interval; shares in points."
            tables.append(Table(title, frame, [note]))
    if not tables and len(published):
        of_paper = [(row,) for row in study.rows if row in set(published.row)]
        frame = head_frame(published, ["row"])[of_paper].rename(columns=study.labels)
        tables.append(Table("Heads, in the paper", frame, [GLOSSARY]))
    if tables:
        marks = mark_notes(numbers.mark for numbers in study.heads)
        tables[0].notes += ([study.heads_note] if study.heads_note else []) + marks
    return pd.concat([published, measured]), tables


def differences_to_baseline(ours: pd.DataFrame, baseline: str | None) -> pd.DataFrame:
    """Return facts whose values are those of other rows minus the baseline's of the same seed."""
    facts = ours.dropna(subset="seed")  # not those of all seeds together
    keys = ["quantity", "site", "layer", "seed"]
    base = facts[facts.row == baseline][[*keys, "value"]]
    others = facts[facts.row != baseline].merge(base, on=keys, suffixes=("", "_of_baseline"))
    return others.assign(value=others.value - others.value_of_baseline)


def _published_facts(study: Study) -> Iterator[dict[str, Any]]:
    for numbers in study.heads:
        place = {"origin": "paper", "quantity": numbers.quantity, "site": numbers.site}
        for row in (row for row in study.rows if row in {**numbers.values, **numbers.text}):
            about = {"value": numbers.values.get(row), "mark": numbers.mark}
            yield {**place, "row": row, **about, "note": numbers.text.get(row)}


def _measured_facts(runs: pd.DataFrame, analysed: Collection[Path]) -> Iterator[dict[str, Any]]:
    """Yield the quantities of each run, and of the runs of a cell together."""
    for (column, row), cell in runs.groupby(["column", "row"], sort=False):
        place = {"column": column, "row": row, "origin": "ours"}
        of_cell = [run for run in cell.saved if run.folder in analysed]
        for run in of_cell:
            about = {"seed": run.seed, "run": str(run.folder)}
            for fact in analysis_facts(run):
                yield {**place, **about, **fact}
        for fact in facts_of_all_seeds(of_cell):
            yield {**place, **fact}
