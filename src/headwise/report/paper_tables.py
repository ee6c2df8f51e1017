"""The tables of a paper: its numbers beside ours, what differs from the baseline, and the speed."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from headwise.metrics.significance import Comparison
from headwise.report.comparison import mean_and_deviation
from headwise.report.paper import MARKS, Cell, Paper
from headwise.report.paper_cells import PLAIN_BLEU, CellFigures, ColumnFigures
from headwise.report.tables import NOTHING, TextTable

NAMES = {"bleu": "BLEU (13a)", "bleu_tokenised": "tokenised BLEU"}
NOT_AVERAGED = "not averaged"
MISSING = "missing"
OURS = "ours [95 %]"
LEAST_TEXT = 0.8  # of the paper's training pairs, below which another text is behind a BLEU
UNSTEADY = 1.25  # highest by lowest ratio of speeds, above which seeds cannot be the reason
TOO_LOW = 5.0  # BLEU of the baseline, below which differences say nothing


def paper_tables(paper: Paper, columns: Sequence[ColumnFigures]) -> list[TextTable]:
    """Every table that has something to show."""
    tables = [_main(paper, columns)] if columns else []
    if paper.metric != PLAIN_BLEU and any(c.runs for c in columns):
        tables.append(_beside(paper, columns))
    if paper.baseline is not None:
        tables += [_differences(paper, columns, paper.baseline), _speeds(paper, columns)]
    return [table for table in tables if table.groups and table.rows]


def _main(paper: Paper, columns: Sequence[ColumnFigures]) -> TextTable:
    """The paper's table, with ours beside its numbers."""
    metric = NAMES[paper.metric]
    title = f"{metric[0].upper()}{metric[1:]}, the paper's and ours"
    is_ours_alone = not any(cell.paper is not None for cell in paper.cells)
    if is_ours_alone:
        title = title.partition(",")[0]
    table = TextTable(title, "", [])
    shown: dict[str, list[str]] = {row: [] for row in paper.rows}
    for figures in columns:
        cells = figures.cells.values()
        has_paper = any(c.cell is not None and c.cell.paper is not None for c in cells)
        has_ours = any(c.recipe is not None for c in cells)
        label = figures.column.label + (f" ({figures.column.unit})" if figures.column.unit else "")
        kinds = [""] if is_ours_alone else ["paper"] * has_paper + ["ours"] * has_ours
        table.groups.append((label, kinds))
        for row in paper.rows:
            if has_paper:
                shown[row].append(_paper_text(figures, row))
            if has_ours:
                shown[row].append(_our_text(figures, row, figures.metric))
    table.rows = [(label, shown[row]) for row, label in paper.rows.items()]
    table.notes = _main_notes(paper, columns)
    return table


def _main_notes(paper: Paper, columns: Sequence[ColumnFigures]) -> list[str]:
    notes = []
    if any(figures.runs for figures in columns):
        if paper.metric != PLAIN_BLEU:
            notes.append("BLEU of Moses tokens, which papers of that time report; up is better.")
        notes.append(
            "Ours: mean ± standard deviation over seeds (number of seeds); of one seed the mean "
            "alone."
        )
    marks = {cell.mark for cell in paper.cells if cell.paper is not None and cell.mark != "OK"}
    notes += [f"({mark}): {MARKS[mark]}." for mark in sorted(m for m in marks if m)]
    for figures in columns:
        label, column = figures.column.label, figures.column
        if column.test is not None and any(c.recipe for c in figures.cells.values()):
            test = f"scored on {column.test}"
            notes.append(f"{label}: {test}{f'; {column.note}' if column.note else ''}.")
        notes += [
            f"{label}: NOT AVERAGED, NOT COMPARED: {problem}." for problem in figures.problems
        ]
        notes += [f"{label}: {note}." for note in (*figures.notes, *_smaller_text(figures))]
    return notes + _too_low(paper, columns) + _signatures(columns, paper.metric)


def _smaller_text(figures: ColumnFigures) -> list[str]:
    """Where ours was trained on a part of the paper's text, or on a substitute for it."""
    wanted = figures.column.train_pairs
    pairs = {run.train_pairs for run in figures.runs if run.train_pairs is not None}
    if wanted is None or not pairs or min(pairs) >= LEAST_TEXT * wanted:
        return []
    return [
        f"OTHER TEXT: ours was trained on {min(pairs):,} pairs where the paper has about "
        f"{wanted:,}, so that the two BLEU do not compare"
    ]


def _too_low(paper: Paper, columns: Sequence[ColumnFigures]) -> list[str]:
    """Columns whose baseline translates next to nothing."""
    low = []
    for figures in columns:
        scores = list(figures.scores(paper.baseline).values()) if paper.baseline else []
        if scores and statistics.fmean(scores) < TOO_LOW:
            low.append(figures.column.label)
    return [
        f"{label}: at less than {TOO_LOW:.0f} BLEU next to nothing is translated, and "
        "differences say nothing about systems that translate."
        for label in low
    ]


def _signatures(columns: Sequence[ColumnFigures], metric: str) -> list[str]:
    found = dict.fromkeys(s for figures in columns for s in figures.signatures(metric))
    return [f"Signature: {signature}." for signature in found]


def _paper_text(figures: ColumnFigures, row: str) -> str:
    cell = figures.cells[row].cell
    if cell is None or cell.paper is None:
        return NOTHING
    return f"{cell.paper:.{figures.column.decimals}f}{_marked(cell)}"


def _marked(*cells: Cell) -> str:
    """The marks of the numbers that a text is made of, those that were read aside."""
    marks = dict.fromkeys(cell.mark for cell in cells if cell.mark != "OK")
    return f" ({', '.join(str(mark) for mark in marks)})" if marks else ""


def _our_text(figures: ColumnFigures, row: str, metric: str) -> str:
    found = figures.cells[row]
    if found.recipe is None:
        return NOTHING
    if not found.runs:
        return MISSING
    if figures.problems:
        return NOT_AVERAGED
    values = list(figures.scores(row, metric).values())
    return f"{mean_and_deviation(values)} ({len(values)})" if values else NOTHING


def _beside(paper: Paper, columns: Sequence[ColumnFigures]) -> TextTable:
    """The same runs in sacreBLEU's own BLEU."""
    ours = [c for c in columns if any(found.recipe for found in c.cells.values())]
    table = TextTable(
        f"The same runs in {NAMES[PLAIN_BLEU]}", "", [(c.column.label, [""]) for c in ours]
    )
    for row, label in paper.rows.items():
        table.rows.append((label, [_our_text(c, row, PLAIN_BLEU) for c in ours]))
    table.notes = ["What sacreBLEU computes on detokenised text: the number to compare elsewhere."]
    table.notes += _signatures(ours, PLAIN_BLEU)
    return table


def _differences(paper: Paper, columns: Sequence[ColumnFigures], baseline: str) -> TextTable:
    """Each row less the baseline, with the paired bootstrap."""
    base = paper.rows[baseline]
    shown: list[tuple[str, str, Comparison | None, int]] = []
    for figures in (c for c in columns if c.column.unit is None):
        for row in (row for row in paper.rows if row != baseline):
            of_paper = _paper_difference(figures, row, baseline)
            test = figures.cells[row].comparison
            n_runs = max(len(figures.cells[r].runs) for r in (row, baseline))
            if test is not None or of_paper != NOTHING:
                label = f"{figures.column.label}, {paper.rows[row]}"
                shown.append((label, of_paper, test, n_runs))
    has_paper = any(of_paper != NOTHING for _, of_paper, _, _ in shown)
    compared = [test for _, _, test, _ in shown if test is not None]
    kinds = ["paper"] * has_paper + [OURS, "p"] * bool(compared)
    table = TextTable(
        f"Difference to {base}, in {NAMES[paper.metric]}", "", [(kind, [""]) for kind in kinds]
    )
    for label, of_paper, test, n_runs in shown:
        cells = [of_paper] * has_paper
        cells += _tested(test, n_runs) if compared else []
        table.rows.append((label, cells))
    if compared:
        table.notes = [
            "Ours: the mean over the seeds that both rows have (their number; of how many, where a "
            "row has more, so that its mean above is another); above 0 is better than "
            f"{base}. Interval and p are by paired bootstrap over test sentences (Koehn 2004), "
            f"{compared[0].n_resamples:,} draws, the same sentences for both rows and all seeds.",
            "p is two-sided. It speaks of other test sentences, not of other seeds, and is not "
            "corrected for the number of cells. ≤ marks the least that this many draws can show.",
            *_too_low(paper, columns),
        ]
    return table


def _tested(test: Comparison | None, n_runs: int) -> list[str]:
    """Difference with interval and number of seeds, and p."""
    if test is None:
        return [NOTHING] * 2
    interval = f"[{_signed(test.low)} to {_signed(test.high)}]"
    least = 1 / (test.n_resamples + 1)
    p_value = f"{test.p_value:.3f}" if test.p_value > least else f"≤ {least:.1g}"
    of_all = f" of {n_runs}" if n_runs > test.n_seeds else ""
    return [f"{_signed(test.difference)} {interval} ({test.n_seeds}{of_all})", p_value]


def _paper_difference(figures: ColumnFigures, row: str, baseline: str) -> str:
    own, base = figures.cells[row].cell, figures.cells[baseline].cell
    if own is None or base is None or own.paper is None or base.paper is None:
        return NOTHING
    return _signed(own.paper - base.paper, figures.column.decimals) + _marked(own, base)


def _speeds(paper: Paper, columns: Sequence[ColumnFigures]) -> TextTable:
    """Tokens/s of training in percent of the baseline's, where the paper has such numbers."""
    base = paper.rows[paper.baseline or ""]
    table = TextTable(f"Training speed, tokens/s in % of {base}", "", [])
    if not paper.speed:
        return table
    ours = [c for c in columns if any(found.speed is not None for found in c.cells.values())]
    table.groups = [("paper", [""]), *((c.column.label, [""]) for c in ours)]
    for row, label in paper.rows.items():
        if row == paper.baseline:
            continue
        number = paper.speed.get(row)
        mark = "" if number is None or number.mark == "OK" else f" ({number.mark})"
        cells = [NOTHING if number is None else f"{number.value:.0f}{mark}"]
        cells += [_speed_text(figures.cells[row]) for figures in ours]
        table.rows.append((label, cells))
    if ours:
        table.notes = [
            "Ours: a run's speed is the median over the windows of its log; ratio of medians over "
            "the seeds that both rows have (lowest to highest ratio of one seed), as they were "
            "trained: other load on the machine counts.",
            *_unsteady(paper, ours),
            *_machines(ours),
        ]
    return table


def _unsteady(paper: Paper, columns: Sequence[ColumnFigures]) -> list[str]:
    """Cells whose seeds differ so much in speed that something else was measured."""
    found = [
        f"{figures.column.label}, {paper.rows[row]}"
        for figures in columns
        for row, cell in figures.cells.items()
        if cell.speed is not None and cell.speed[2] > UNSTEADY * cell.speed[1]
    ]
    if not found:
        return []
    return [
        f"The machine did other work too: the ratios of single seeds differ by more than "
        f"{100 * UNSTEADY - 100:.0f} %, and say nothing of the attention ({'; '.join(found)})."
    ]


def _machines(columns: Sequence[ColumnFigures]) -> list[str]:
    """What the runs were trained on."""
    found = {
        (str(run.machine.get("gpu") or "CPU"), str(run.machine.get("threads") or "unknown"))
        for figures in columns
        for run in figures.runs
    }
    named = [kind if kind != "CPU" else f"a CPU, threads {n}" for kind, n in sorted(found)]
    return [f"Ours were trained on: {'; '.join(dict.fromkeys(named))}."]


def _speed_text(found: CellFigures) -> str:
    if found.speed is None:
        return NOTHING
    ratio, low, high = (f"{percent:.0f}" for percent in found.speed)
    return ratio if low == high else f"{ratio} ({low} to {high})"


def _signed(value: float, decimals: int = 2) -> str:
    return f"{value:+.{decimals}f}".replace("-", "−")
