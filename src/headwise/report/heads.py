"""What the heads of runs became, as facts, and the tables of them: of a paper, or of runs alone.

The quantities are those that Correia et al. 2019 tell of their models in section 5.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from headwise.analysis.roles import LEAST_CONTRAST, LEAST_SPLIT_SCORE, Thresholds
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
    """Write comparison.csv and comparison.md, and return the latter.

    Args:
        runs: folder of each run -> folder of its analysis.
        thresholds: with which they were made.
        output: the folder to write to.
    """
    labels = dict(zip(runs, run_labels(list(runs)), strict=True))
    rows = [
        {"row": labels[run], "run": str(run), **value}
        for run, analysis in runs.items()
        for value in analysis_facts(analysis)
    ]
    facts = fact_table(rows)
    frame = head_frame(facts, ["row"])
    notes = ["– was not measured, or there is no such head."]
    for run, analysis in runs.items():
        about = read_settings(analysis)
        notes.append(
            f"{labels[run]}: `{run}`, {about['sentences']} sentences of {about['split']}, weights "
            f"`{about['checkpoint']}`"
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
    """A short name for each run: what tells it from the others, its folder's name at last."""
    runs = [read_run(folder) for folder in folders]
    names = {
        run.folder: name if len(same) == 1 else f"{name}, seed {run.seed}"
        for name, same in named_rows(runs).items()
        for run in same
    }
    labels = [names[folder] for folder in folders]
    for name in ("{0.name}", "{0.parent.name}/{0.name}", "{0}"):  # as much as tells them apart
        labels = [
            name.format(folder.resolve()) if labels.count(label) > 1 else label
            for folder, label in zip(folders, labels, strict=True)
        ]
    return labels


def analysis_facts(analysis: Path) -> list[dict[str, Any]]:
    """Every quantity of a run that was measured, from the folder of its analysis."""
    heads, layers = (_numbers(table, analysis) for table in (HEADS, LAYERS))
    first = heads[heads.site.isin(heads.site[:1])]
    values = [*_of_positions(heads), *_of_words(first)]
    for site, own in heads.groupby("site", sort=False):
        values += [(name, site, None, own[name].mean()) for name in ("alpha", "density")]
        values.append(("confidence", site, None, own.confidence.median()))
    values += [
        ("diversity", row.site, row.layer, row.diversity_heads) for row in layers.itertuples()
    ]
    return [
        {"quantity": quantity, "site": site, "layer": layer, "value": float(value)}
        for quantity, site, layer, value in values
        if pd.notna(value)
    ]


def _numbers(table: AnalysisTable, analysis: Path) -> pd.DataFrame:
    """A table of an analysis, NaN where a number was not measured."""
    floats = {name: float for name, kind in table.columns.items() if kind is float}
    return pd.DataFrame(table.read(analysis), columns=list(table.columns)).astype(floats)


def _of_positions(heads: pd.DataFrame) -> Iterator[Value]:
    for role in ("previous", "next"):
        yield f"{role}_heads", None, None, _n_heads(heads, role, f"{role}_share")
        yield f"{role}_share", None, None, heads[f"{role}_share"].max()
        yield f"{role}_weight", None, None, heads[_has(heads, role)][f"{role}_weight"].median()


def _of_words(heads: pd.DataFrame) -> Iterator[Value]:
    """Merging, interrogation and rare-word heads of a site."""
    values = {
        "merging_heads": _n_heads(heads, "merging", "merge_score"),
        "interrogation_heads": _n_heads(heads, "interrogation", "question_weight"),
        "cluster_mass": heads.cluster_mass.max(),
        "rare_share": heads.rare_share.max(),
    }
    for place, score in enumerate(heads.merge_score.nlargest(2), start=1):
        values[f"merge_score_{place}"] = score
    contrast = (heads.question_weight - heads.statement_weight.fillna(0)).dropna()
    if len(contrast):  # of the head that tells questions best
        values |= heads.loc[contrast.idxmax(), ["question_weight", "statement_weight"]]
    yield from ((name, next(iter(heads.site), None), None, value) for name, value in values.items())


def _has(heads: pd.DataFrame, role: str) -> pd.Series:
    return heads.roles.fillna("").map(lambda roles: role in roles.split(";"))


def _n_heads(heads: pd.DataFrame, role: str, column: str) -> float:
    """How many have a role; NaN where no head was measured for it."""
    return _has(heads, role).sum() if heads[column].notna().any() else math.nan


def head_frame(facts: pd.DataFrame, columns: Sequence[str]) -> pd.DataFrame:
    """Quantities by columns of the facts: means over runs, and what a paper has."""
    keys = [*facts[["quantity", "site", "layer"]].itertuples(index=False, name=None)]
    names = facts.assign(name=[name_of(key) for key in keys])
    return pivot(names, "name", columns, _shown, map(name_of, in_order(keys)))


def in_order(keys: Iterable[Key]) -> list[Key]:
    """Each once, by quantity, then by site in the order of the first of each, then by layer."""
    keys, order = list(dict.fromkeys(keys)), list(QUANTITIES)
    sites = [None, *dict.fromkeys(site for _, site, _ in keys if site is not None)]
    return sorted(keys, key=lambda k: (order.index(k[0]), sites.index(k[1]), k[2] or 0))


def name_of(key: Key) -> str:
    """What a value is, in words."""
    quantity, site, layer = key
    name = QUANTITIES[quantity][0]
    if site is None or (layer is None and quantity not in ("alpha", "density", "confidence")):
        return name
    return f"{name}, {SITE_NAMES[site]}" + (f" layer {layer}" if layer is not None else "")


def shown_value(kind: str, value: float) -> str:
    """A value as its kind of quantity is shown: count, share or number."""
    return {"count": f"{value:.0f}", "share": percent(value), "number": f"{value:.2f}"}[kind]


def _shown(cell: pd.DataFrame) -> str:
    """`0.52 (0.50 to 0.55)` over runs; of a paper its number or words, with the mark."""
    first = cell.iloc[0]
    kind = QUANTITIES[first.quantity][1]
    if first.origin == "paper":
        value = first.value
        if first.note is not None:
            text = first.note
        elif kind == "share":  # with the digits that the paper gives
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
    """What the quantities of a table are, those of them that it has."""
    positional = percent(thresholds.positional_share)
    told = {
        "previous_share": "A head at -1 (+1) has its largest weight at the token before (behind) "
        f"in at least {positional} of the queries that have one (Voita et al. 2019).",
        "merge_score_1": "Merge score, of a word: the greatest weight that one of its pieces gives "
        "to the others; where it is one piece, to itself. A head's is the mean over words. A "
        f"merging head (of Correia et al. 2019) has {percent(thresholds.merge_score)}, and "
        f"{percent(LEAST_SPLIT_SCORE)} over words of several pieces. Mass inside of the word: "
        "of the weight of all pieces of words, what stays in the same word.",
        "question_weight": "An interrogation head (of Correia et al. 2019) gives at least "
        f"{percent(thresholds.question_weight)} of the weight of question words to the question "
        "mark, and less by at least "
        f"{LEAST_CONTRAST * 100:.0f} points to the last token where the same words ask nothing.",
        "rare_share": "Points at the rarest token (after Voita et al. 2019, who leave sentences of "
        "frequent words out): most tokens of the sentence have their largest weight there.",
        "density": "Density is the share of visible keys whose weight is not 0.",
        "confidence": "Confidence is the mean of the largest weights of a head's queries.",
        "diversity": "Diversity is the Jensen-Shannon divergence of the heads of a layer, "
        "logarithm to the base of the number of heads.",
    }
    return [text for quantity, text in told.items() if quantity in set(quantities)]


# -- of a paper -----------------------------------------------------------------------------------


def head_tables(paper: Paper, facts: pd.DataFrame) -> list[Table]:
    """A table for each corpus, the rows of the paper beside one another; the first defines all.

    Where no run fills a cell, what the paper has stands alone.

    Args:
        facts: of `paper_head_facts`.
    """
    of_paper = facts[facts.origin == "paper"]
    tables = []
    for name, column in paper.columns.items():
        ours = facts[facts.column == name]
        if ours.empty:
            continue
        parts = [
            part
            for row in paper.rows
            if row in set(ours.row)
            for part in (of_paper[of_paper.row == row], ours[ours.row == row])
        ]
        both = pd.concat(parts)
        both.loc[~both.row.isin(of_paper.row), "origin"] = ""
        frame = head_frame(both, ["row", "origin"]).rename(columns=paper.rows, level=0)
        seeds = both[both.origin != "paper"].groupby("row", sort=False).run.nunique()
        n_seeds = ", ".join(f"{paper.rows[row]} {n}" for row, n in seeds.items())
        note = (
            "Of the validation set; mean over seeds, with the least and the greatest where they "
            f"differ. Seeds: {n_seeds}."
        )
        tables.append(Table(f"Heads, {column.label}", frame, [note]))
    if not tables and len(of_paper):
        order = [row for row in paper.rows if row in set(of_paper.row)]
        frame = head_frame(of_paper, ["row"])[[(row,) for row in order]]
        tables.append(Table("Heads, the paper alone", frame.rename(columns=paper.rows)))
    if tables:  # once is enough
        own = mark_notes(number.mark for number in paper.heads)
        tables[0].notes += ([paper.heads_note] if paper.heads_note else []) + own
        tables[0].notes += definitions(facts.quantity, Thresholds())
    return tables


def paper_head_facts(
    paper: Paper,
    columns: Sequence[ColumnRuns],
    analyses: Mapping[Path, Path],
) -> Iterator[Fact]:
    """What the paper has of its heads, and every run of a cell of its own.

    Args:
        analyses: folder of a run -> folder of its analysis; of all runs that fill a cell.
    """
    for number in paper.heads:
        place = {"origin": "paper", "quantity": number.quantity, "site": number.site}
        for row in (row for row in paper.rows if row in {**number.values, **number.text}):
            about = {"value": number.values.get(row), "mark": number.mark}
            yield {**place, "row": row, **about, "note": number.text.get(row)}
    for found in columns:
        for run in found.runs.itertuples():
            place = {"row": run.row, "column": found.name, "origin": "ours"}
            about = {**place, "seed": run.seed, "run": run.folder}
            for fact in analysis_facts(analyses[run.run.folder]):
                yield {**about, **fact, "value": round(fact["value"], 4)}
