"""Statistics of the heads of runs, as facts and as tables, with or without those of a paper.

The quantities are those of Correia et al. 2019, section 5.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import pandas as pd

from headwise.analysis.roles import MIN_CONTRAST, MIN_SPLIT_SCORE, Thresholds
from headwise.analysis.tables import COMPARISON, percent, read_settings
from headwise.analysis.trajectories import MIN_CHANGE, MIN_RISE
from headwise.config.schema import SITE_NAMES
from headwise.files import write_text
from headwise.studies.cells import ColumnRuns
from headwise.studies.head_facts import analysis_facts, facts_of_all_seeds
from headwise.studies.match import read_run
from headwise.studies.paper import Paper
from headwise.studies.paper_tables import mark_notes
from headwise.studies.quantities import OF_A_SITE, QUANTITIES
from headwise.studies.render import Fact, Table, fact_table, pivot
from headwise.studies.rows import named_rows

Key = tuple[str, str | None, int | None]  # quantity, site, layer
# 97.5 % quantiles of Student's t, by degrees of freedom from 1
T_QUANTILES = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)


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
        for value in analysis_facts(run, analysis)
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
    """Format a mean with its 95 % t interval, `0.52 [0.45, 0.59]`; the mean if all are equal."""
    mean, half = statistics.fmean(values), half_interval(values)
    if half == 0:
        return shown(mean)
    low, high = (shown(x).removesuffix(" %") for x in (mean - half, mean + half))
    return f"{shown(mean)} [{low}, {high}]"


def half_interval(values: Sequence[float]) -> float:
    """Half of the 95 % interval of a mean by Student's t; 0 for a single value."""
    n = len(values)
    if n < 2:
        return 0.0
    quantile = T_QUANTILES[n - 2] if n - 2 < len(T_QUANTILES) else 1.96 + 2.4 / (n - 1)
    return quantile * statistics.stdev(values) / math.sqrt(n)


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
        "alpha_turned": f"An α turns if it ends {MIN_RISE} or more above its lowest value; it "
        f"falls first if its first change of {MIN_CHANGE} or more is a decrease.",
        "alpha_order_low": "Interval of the rank correlation: Fisher's transformation with the "
        "standard error of Fieller et al. (1957).",
        "alpha_groups": "Sarle's coefficient suggests two groups above 5/9. p: how often samples "
        "of one normal distribution favour two so much; the heads of all seeds together.",
        "density": "Density is the share of visible keys whose weight is not 0.",
        "confidence": "Confidence is the mean of the largest weights of a head's queries.",
        "query_gradient": "Gradient of the loss on the whole set with respect to the query "
        "projections, divided by the norm of these; mean over the heads of a layer.",
        "effective_heads": "Effective heads: those left, of all sites, when heads are removed in "
        "order of importance until the score is significantly lower (p < 0.05, paired bootstrap).",
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
            "On the validation set; mean over seeds with its 95 % interval (Student's t). "
            f"Seeds: {n_seeds}."
        )
        tables.append(Table(f"Heads, {column.label}", frame, [note]))
        differences = differences_to_baseline(ours, paper.baseline)
        if len(differences):
            frame = head_frame(differences, ["row"], _difference_text)
            frame = frame.rename(columns=paper.rows)
            title = f"Heads, {column.label}: differences to {paper.rows[paper.baseline or '']}"
            note = "Mean over pairs of runs of a seed, with its 95 % interval; shares in points."
            tables.append(Table(title, frame, [note]))
    if not tables and len(paper_facts):
        order = [row for row in paper.rows if row in set(paper_facts.row)]
        frame = head_frame(paper_facts, ["row"])[[(row,) for row in order]]
        tables.append(Table("Heads, in the paper", frame.rename(columns=paper.rows)))
    if tables:
        marks = mark_notes(number.mark for number in paper.heads)
        tables[0].notes += ([paper.heads_note] if paper.heads_note else []) + marks
        tables[0].notes += definitions(facts.quantity, Thresholds())
    return tables


def differences_to_baseline(ours: pd.DataFrame, baseline: str | None) -> pd.DataFrame:
    """Return facts whose values are those of other rows minus the baseline's of the same seed."""
    facts = ours.dropna(subset="seed")  # not those of all seeds together
    keys = ["quantity", "site", "layer", "seed"]
    base = facts[facts.row == baseline][[*keys, "value"]]
    others = facts[facts.row != baseline].merge(base, on=keys, suffixes=("", "_of_baseline"))
    return others.assign(value=others.value - others.value_of_baseline)


def paper_head_facts(
    paper: Paper,
    columns: Sequence[ColumnRuns],
    analyses: Mapping[Path, Path],
) -> Iterator[Fact]:
    """Yield the quantities of heads in the paper, and those of every run of a cell.

    Args:
        analyses: folder of a run that fills a cell -> folder of its analysis.
    """
    for number in paper.heads:
        place = {"origin": "paper", "quantity": number.quantity, "site": number.site}
        for row in (row for row in paper.rows if row in {**number.values, **number.text}):
            about = {"value": number.values.get(row), "mark": number.mark}
            yield {**place, "row": row, **about, "note": number.text.get(row)}
    for column in columns:
        for row, runs in column.runs.groupby("row", sort=False):
            place = {"row": row, "column": column.name, "origin": "ours"}
            facts = []
            analysed = [run for run in runs.run if run.folder in analyses]
            for run in analysed:
                about = {"seed": run.seed, "run": str(run.folder)}
                measured = analysis_facts(run.folder, analyses[run.folder])
                facts += [{**about, **fact} for fact in measured]
            facts += facts_of_all_seeds([analyses[run.folder] for run in analysed])
            for fact in facts:
                yield {**place, **fact, "value": float(f"{fact['value']:.6g}")}
