"""Statistics of the heads of runs, as facts and as tables, with or without those of a paper.

The quantities are those of Correia et al. 2019, section 5.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from headwise.analysis.roles import MIN_CONTRAST, MIN_SPLIT_SCORE, Thresholds
from headwise.analysis.tables import COMPARISON, HEADS, LAYERS, percent, read_settings
from headwise.analysis.tables import Table as AnalysisTable
from headwise.config.schema import SITE_NAMES
from headwise.files import write_text
from headwise.report.cells import ColumnRuns
from headwise.report.figures_rows import named_rows
from headwise.report.paper import Paper
from headwise.report.paper_runs import read_run
from headwise.report.paper_tables import mark_notes
from headwise.report.quantities import QUANTITIES
from headwise.report.tables import Fact, Table, fact_table, pivot

Key = tuple[str, str | None, int | None]  # quantity, site, layer
Value = tuple[str, str | None, int | None, float]


def write_comparison(runs: Mapping[Path, Path], thresholds: Thresholds, output: Path) -> str:
    """Write comparison.csv and comparison.md, and return the text of the latter.

    Args:
        runs: folder of each run -> folder of its analysis.
        thresholds: of the analyses.
        output: folder of the files.
    """
    labels = dict(zip(runs, run_labels(list(runs)), strict=True))
    rows = [
        {"row": labels[run], "run": str(run), **value}
        for run, analysis in runs.items()
        for value in analysis_facts(analysis)
    ]
    facts = fact_table(rows)
    frame = head_frame(facts, ["row"])
    notes = ["– : not measured, or no such head."]
    for run, analysis in runs.items():
        settings = read_settings(analysis)
        notes.append(
            f"{labels[run]}: `{run}`, {settings['sentences']} sentences of {settings['split']}, "
            f"weights `{settings['checkpoint']}`"
        )
    notes += definitions(facts.quantity, thresholds)
    text = Table("", frame, notes).markdown()
    output.mkdir(parents=True, exist_ok=True)
    columns = ("run", "quantity", "site", "layer", "value")
    write_text(
        COMPARISON.path(output), COMPARISON.text([{k: row[k] for k in columns} for row in rows])
    )
    write_text(output / "comparison.md", text)
    return f"{text}\nwritten to {output}"


def run_labels(folders: Sequence[Path]) -> list[str]:
    """Return a short unique name for each run, with its folder if necessary."""
    runs = [read_run(folder) for folder in folders]
    names = {
        run.folder: name if len(same) == 1 else f"{name}, seed {run.seed}"
        for name, same in named_rows(runs).items()
        for run in same
    }
    labels = [names[folder] for folder in folders]
    for name in ("{0.name}", "{0.parent.name}/{0.name}", "{0}"):  # until they are unique
        labels = [
            name.format(folder.resolve()) if labels.count(label) > 1 else label
            for folder, label in zip(folders, labels, strict=True)
        ]
    return labels


def analysis_facts(analysis: Path) -> list[dict[str, Any]]:
    """Return every measured quantity of a run, from the folder of its analysis."""
    heads, layers = (_numbers(table, analysis) for table in (HEADS, LAYERS))
    first = heads[heads.site.isin(heads.site[:1])]
    values = [*_position_values(heads), *_word_values(first)]
    for site, rows in heads.groupby("site", sort=False):
        values += [(name, site, None, rows[name].mean()) for name in ("alpha", "density")]
        values.append(("confidence", site, None, rows.confidence.median()))
    values += [
        ("diversity", row.site, row.layer, row.diversity_heads) for row in layers.itertuples()
    ]
    return [
        {"quantity": quantity, "site": site, "layer": layer, "value": float(value)}
        for quantity, site, layer, value in values
        if pd.notna(value)
    ]


def _numbers(table: AnalysisTable, analysis: Path) -> pd.DataFrame:
    """Read a table of an analysis; NaN for numbers that were not measured."""
    floats = {name: float for name, kind in table.columns.items() if kind is float}
    return pd.DataFrame(table.read(analysis), columns=list(table.columns)).astype(floats)


def _position_values(heads: pd.DataFrame) -> Iterator[Value]:
    for role in ("previous", "next"):
        yield f"{role}_heads", None, None, _n_heads(heads, role, f"{role}_share")
        yield f"{role}_share", None, None, heads[f"{role}_share"].max()
        yield f"{role}_weight", None, None, heads[_has(heads, role)][f"{role}_weight"].median()


def _word_values(heads: pd.DataFrame) -> Iterator[Value]:
    """Yield quantities of merging, interrogation and rare-token heads of a site."""
    values = {
        "merging_heads": _n_heads(heads, "merging", "merge_score"),
        "interrogation_heads": _n_heads(heads, "interrogation", "question_weight"),
        "cluster_mass": heads.cluster_mass.max(),
        "rare_share": heads.rare_share.max(),
    }
    for rank, score in enumerate(heads.merge_score.nlargest(2), start=1):
        values[f"merge_score_{rank}"] = score
    contrast = (heads.question_weight - heads.statement_weight.fillna(0)).dropna()
    if len(contrast):  # of the head with the largest difference
        values |= heads.loc[contrast.idxmax(), ["question_weight", "statement_weight"]]
    yield from ((name, next(iter(heads.site), None), None, value) for name, value in values.items())


def _has(heads: pd.DataFrame, role: str) -> pd.Series:
    return heads.roles.fillna("").map(lambda roles: role in roles.split(";"))


def _n_heads(heads: pd.DataFrame, role: str, column: str) -> float:
    """Count the heads with a role; NaN if no head was measured for it."""
    return _has(heads, role).sum() if heads[column].notna().any() else math.nan


def head_frame(facts: pd.DataFrame, columns: Sequence[str]) -> pd.DataFrame:
    """Return a table of quantities by columns of the facts: means over runs, numbers of papers."""
    keys = [*facts[["quantity", "site", "layer"]].itertuples(index=False, name=None)]
    names = facts.assign(name=[quantity_name(key) for key in keys])
    return pivot(names, "name", columns, _cell_text, map(quantity_name, sorted_keys(keys)))


def sorted_keys(keys: Iterable[Key]) -> list[Key]:
    """Sort unique keys by quantity, then site (in order of occurrence), then layer."""
    keys, order = list(dict.fromkeys(keys)), list(QUANTITIES)
    sites = [None, *dict.fromkeys(site for _, site, _ in keys if site is not None)]
    return sorted(keys, key=lambda k: (order.index(k[0]), sites.index(k[1]), k[2] or 0))


def quantity_name(key: Key) -> str:
    """Return the displayed name of a quantity."""
    quantity, site, layer = key
    name = QUANTITIES[quantity][0]
    if site is None or (layer is None and quantity not in ("alpha", "density", "confidence")):
        return name
    return f"{name}, {SITE_NAMES[site]}" + (f" layer {layer}" if layer is not None else "")


def shown_value(kind: str, value: float) -> str:
    """Format a value of the kind count, share or number."""
    return {"count": f"{value:.0f}", "share": percent(value), "number": f"{value:.2f}"}[kind]


def _cell_text(cell: pd.DataFrame) -> str:
    """Format `0.52 (0.50 to 0.55)` over runs; for a paper its number or text, with the mark."""
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
    values = cell.value.astype(float)
    low, high = shown_value(kind, values.min()), shown_value(kind, values.max())
    if low == high:
        return low
    mean = f"{values.mean():.1f}" if kind == "count" else shown_value(kind, values.mean())
    if low.endswith(" %") and not low.startswith("under"):
        low = low.removesuffix(" %")
    return f"{mean} ({low} to {high})"


def definitions(quantities: Iterable[str], thresholds: Thresholds) -> list[str]:
    """Return the definitions of the given quantities."""
    positional = percent(thresholds.positional_share)
    texts = {
        "previous_share": "A head at -1 (+1) has its largest weight on the token before (after) "
        f"in at least {positional} of the queries that have one (Voita et al. 2019).",
        "merge_score_1": "Merge score of a word: the largest weight of one of its tokens on the "
        "others; of a word of one token its weight on itself. A head's is the mean over words. A "
        f"merging head (of Correia et al. 2019) has {percent(thresholds.merge_score)}, and "
        f"{percent(MIN_SPLIT_SCORE)} over words of several tokens. Mass inside the word: "
        "share of the weight of the tokens of words that stays in the same word.",
        "question_weight": "An interrogation head (of Correia et al. 2019) gives at least "
        f"{percent(thresholds.question_weight)} of the weight of question words to the question "
        "mark, and less by at least "
        f"{MIN_CONTRAST * 100:.0f} points to the last token from the same words in statements.",
        "rare_share": "Points at the rarest token (after Voita et al. 2019, who exclude sentences "
        "of frequent words): most tokens of the sentence have their largest weight there.",
        "density": "Density is the share of visible keys whose weight is not 0.",
        "confidence": "Confidence is the mean of the largest weights of a head's queries.",
        "diversity": "Diversity is the Jensen-Shannon divergence of the heads of a layer, "
        "logarithm to the base of the number of heads.",
    }
    return [text for quantity, text in texts.items() if quantity in set(quantities)]


# -- of a paper -----------------------------------------------------------------------------------


def head_tables(paper: Paper, facts: pd.DataFrame) -> list[Table]:
    """Return a table per corpus with the rows of the paper as columns; the first has definitions.

    Without any run, the only table is that of the paper.

    Args:
        facts: of `paper_head_facts`.
    """
    paper_facts = facts[facts.origin == "paper"]
    tables = []
    for name, column in paper.columns.items():
        ours = facts[facts.column == name]
        if ours.empty:
            continue
        parts = [
            part
            for row in paper.rows
            if row in set(ours.row)
            for part in (paper_facts[paper_facts.row == row], ours[ours.row == row])
        ]
        both = pd.concat(parts)
        both.loc[~both.row.isin(paper_facts.row), "origin"] = ""
        frame = head_frame(both, ["row", "origin"]).rename(columns=paper.rows, level=0)
        seeds = both[both.origin != "paper"].groupby("row", sort=False).run.nunique()
        n_seeds = ", ".join(f"{paper.rows[row]} {n}" for row, n in seeds.items())
        note = (
            "On the validation set; mean over seeds, with minimum and maximum where they differ. "
            f"Seeds: {n_seeds}."
        )
        tables.append(Table(f"Heads, {column.label}", frame, [note]))
    if not tables and len(paper_facts):
        order = [row for row in paper.rows if row in set(paper_facts.row)]
        frame = head_frame(paper_facts, ["row"])[[(row,) for row in order]]
        tables.append(Table("Heads, in the paper", frame.rename(columns=paper.rows)))
    if tables:
        marks = mark_notes(number.mark for number in paper.heads)
        tables[0].notes += ([paper.heads_note] if paper.heads_note else []) + marks
        tables[0].notes += definitions(facts.quantity, Thresholds())
    return tables


def paper_head_facts(
    paper: Paper,
    columns: Sequence[ColumnRuns],
    analyses: Mapping[Path, Path],
) -> Iterator[Fact]:
    """Yield the quantities of heads in the paper, and those of every run of a cell.

    Args:
        analyses: folder of each run that fills a cell -> folder of its analysis.
    """
    for number in paper.heads:
        place = {"origin": "paper", "quantity": number.quantity, "site": number.site}
        for row in (row for row in paper.rows if row in {**number.values, **number.text}):
            about = {"value": number.values.get(row), "mark": number.mark}
            yield {**place, "row": row, **about, "note": number.text.get(row)}
    for column in columns:
        for run in column.runs.itertuples():
            place = {"row": run.row, "column": column.name, "origin": "ours"}
            about = {**place, "seed": run.seed, "run": run.folder}
            for fact in analysis_facts(analyses[run.run.folder]):
                yield {**about, **fact, "value": round(fact["value"], 4)}
