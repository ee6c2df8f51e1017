"""Tables of the runs of a sweep: means over seeds, cost, heads; and differences to a baseline.

Jobs that differ only in `seed=` are one row. Speed was measured by the runs and is
ratios of medians to the baseline's row; they are comparable only between runs made one after
another on an otherwise idle machine.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from headwise.runs.fingerprint import deciding
from headwise.runs.results import Results
from headwise.studies.compare import differences, unknown
from headwise.studies.match import SavedRun
from headwise.studies.render import ARROWS, DECIMALS, EMPTY, TextTable, mean_and_deviation
from headwise.studies.scores import SCORES, Compared, score_row
from headwise.studies.study import Column, Row, Study
from headwise.studies.tables import difference_table

BASELINE = "softmax"
HEADS = ("density", "diversity")
STOPPED = ("interrupted", "pruned")  # keys of a job's record
N_RESAMPLES = 2000  # at the end of every sweep
MAX_NOTES = 3


def sweep_tables(
    jobs: Sequence[Mapping[str, Any]], n_resamples: int = N_RESAMPLES
) -> tuple[pd.DataFrame, list[TextTable]]:
    """Return the scores, a row per run and split, and the tables.

    Scores are those of the main metric, mean ± sample standard deviation. The baseline is the row
    named softmax, else the first row. Density and diversity are means over heads and layers, see
    `headwise.analysis.collect.head_statistics`.

    Args:
        jobs: records of a sweep: overrides, and the run or its folder, an error, or interrupted.
        n_resamples: of the intervals over items.
    """
    names = job_names(jobs)
    saved = [job.get("run") for job in jobs]
    runs = [SavedRun(Path(run)) if isinstance(run, str) else run for run in saved]
    scores = pd.DataFrame(_scores(names, runs), columns=SCORES)
    baseline = BASELINE if BASELINE in names else names[0]
    results = [None if run is None else run.results for run in runs]
    states = [
        "" if finished else next((state for state in STOPPED if state in job), "failed")
        for job, finished in zip(jobs, results, strict=True)
    ]
    of_columns = scores.drop_duplicates("column").itertuples()
    metrics = {row.column: row.saved.metric for row in of_columns}
    compared = Compared(scores, {column: metric.sign for column, metric in metrics.items()})
    by_column = scores.groupby("column", sort=False)
    compared.notes = {column: [*unknown(of_column)] for column, of_column in by_column}
    tested = [row.test != row.saved.settings["data"]["valid"] for row in scores.itertuples()]
    pairs = scores[tested] if any(tested) else scores
    compared.differences = differences(pairs, baseline, compared.notes, n_resamples)
    tables = [_main(compared, names, states, results, baseline)]
    if len(compared.differences):
        study = Study(
            rows={name: Row() for name in dict.fromkeys(names)},
            columns={name: Column(name, metric=metric.name) for name, metric in metrics.items()},
            metrics={metric.name: metric.label for metric in metrics.values()},
        )
        tables.append(difference_table(study, compared, baseline, n_resamples))
    return scores, tables


def job_names(jobs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the overrides that distinguish the row of each job, seeds left out."""
    removed = "decode.external", "trainer.gradient_sum"  # of 0.1.0; they decided no result
    without_seed = [deciding(job["overrides"], "seed", *removed) for job in jobs]
    common = set(without_seed[0]).intersection(*without_seed) if without_seed else set()
    names = [[o for o in overrides if o not in common] for overrides in without_seed]
    keys = {override.partition("=")[0] for row in names for override in row}
    # a single key that differs is not repeated in each row
    return [
        (row[0].partition("=")[2] if len(keys) == len(row) == 1 else " ".join(row)) or "all"
        for row in names
    ]


def _scores(names: Sequence[str], runs: Sequence[Any]) -> Iterator[dict[str, Any]]:
    for row, run in zip(names, runs, strict=True):
        for split in run.results.scores if run is not None and run.results else ():
            column = f"{run.metric.label} {split}"
            scored = score_row(run, row, column, split, run.metric.name)
            if scored is not None:
                yield scored


def _main(
    compared: Compared,
    names: Sequence[str],
    states: Sequence[str],
    results: Sequence[Results | None],
    baseline: str,
) -> TextTable:
    """Return the table of scores, number of runs, cost and heads."""
    columns: dict[str, Any] = {}
    for column, sign in compared.signs.items():
        scores = compared.scores[compared.scores.column == column].groupby("row").score
        columns[f"{column} {ARROWS[sign]}"] = scores.agg(mean_and_deviation, DECIMALS[sign])
    columns["runs"] = pd.Series(states).groupby(names).agg(_counts)
    speeds = pd.Series([getattr(r, "tokens_per_second", None) for r in results], dtype=float)
    medians = speeds.groupby(names).median()
    ratios = medians / (medians[baseline] or math.nan)
    columns[f"tokens/s, {baseline} = 1"] = ratios.map(_shown)
    means = _means_of_heads(names, results)
    sites = list(means.index.unique("site"))
    for quantity in HEADS:
        columns[f"{quantity} {'/'.join(sites)}".strip()] = {
            row: " / ".join(map(_shown, (means.get((row, quantity, site)) for site in sites)))
            for row in names
        }
    frame = pd.DataFrame(columns, index=list(dict.fromkeys(names))).replace("", EMPTY)
    notes = [f"{name}: {note}." for name, notes in compared.notes.items() for note in notes]
    if len(notes) > MAX_NOTES:
        notes[MAX_NOTES:] = [f"and {len(notes) - MAX_NOTES} more notes like these"]
    return TextTable("", frame.fillna(EMPTY), notes)


def _means_of_heads(names: Sequence[str], results: Sequence[Results | None]) -> pd.Series:
    """Return row, quantity, site -> mean over the heads of the row's runs."""
    values = [
        (row, quantity, site, value)
        for row, of_run in zip(names, results, strict=True)
        for quantity in HEADS
        for site, layers in (of_run.heads.get(quantity, {}) if of_run else {}).items()
        for value in itertools.chain.from_iterable(layers)
    ]
    keys = ["row", "quantity", "site"]
    frame = pd.DataFrame(values, columns=[*keys, "value"]).dropna()
    return frame.groupby(keys, sort=False).value.agg(statistics.fmean)


def _shown(mean: float | None) -> str:
    return EMPTY if pd.isna(mean) else f"{mean:.2f}"


def _counts(outcomes: pd.Series) -> str:
    """Count finished and unfinished runs: `3 (1 failed)`."""
    counts = outcomes.value_counts()
    unfinished = ", ".join(f"{counts[k]} {k}" for k in ("failed", *STOPPED) if k in counts)
    return f"{counts.get('', 0)}" + (f" ({unfinished})" if unfinished else "")
