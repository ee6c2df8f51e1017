"""Tables of the runs of a sweep: means over seeds, cost, heads; and differences to a baseline.

Rows and corpora are those of `headwise.studies.rows`. Speed was measured by the runs and is ratios
of medians to the baseline's row; they are comparable only between runs made one after another on
an otherwise idle machine.
"""

from __future__ import annotations

import itertools
import math
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from headwise.config.commands import N_RESAMPLES
from headwise.errors import ConfigError, HeadwiseError, RunError, refuse
from headwise.runs.folder import PATHS, last_typed
from headwise.runs.listing import status
from headwise.runs.record import SETTINGS
from headwise.runs.results import FINISHED, Results
from headwise.studies.compare import SCORES, StudyRuns, differences, score_row, unknown
from headwise.studies.record import TaskRecord
from headwise.studies.render import ARROWS, DECIMALS, EMPTY, TextTable, mean_and_deviation
from headwise.studies.rows import CorpusRows, corpus_rows, known_or_alike
from headwise.studies.study import Column, Row, Study
from headwise.studies.tables import difference_table

BASELINE = "softmax"
HEADS = ("density", "diversity")
STOPPED = ("interrupted", "pruned", "broken")  # keys of a job's record
MAX_NOTES = 3


def sweep_tables(
    jobs: Sequence[Mapping[str, Any]], n_resamples: int = N_RESAMPLES, baseline: str | None = None
) -> tuple[pd.DataFrame, list[TextTable]]:
    """Return the scores, a row per run and split, and the tables of each corpus.

    Scores are those of the main metric, mean ± sample standard deviation. Density and diversity are
    means over heads and layers, see `headwise.analysis.collect.head_statistics`.

    Args:
        jobs: records of a sweep: overrides, and the run or its folder, an error, or interrupted.
        n_resamples: of the intervals over items.
        baseline: a row, see `rows_named`; None: the row with softmax, else the first one.

    Raises:
        ConfigError: `baseline` is no row, or several.
        RunError: all runs are broken.
    """
    jobs, runs = zip(*map(_read, jobs), strict=True)
    if all("broken" in job for job in jobs):
        raise RunError(jobs[0]["broken"])
    corpora = corpus_rows([run for run in runs if run is not None])
    placed, notes = _placed(jobs, runs, corpora), {c.corpus: c.notes for c in corpora}
    if baseline is not None and not rows_named(baseline, rows := placed.row.unique()):
        raise refuse("baseline", baseline, rows)
    frames, tables = [], []
    for corpus, of_corpus in placed.groupby("corpus", sort=False):
        scores, of_scores = _corpus_tables(of_corpus, notes.get(corpus, ()), n_resamples, baseline)
        if placed.corpus.nunique() > 1:
            scores.column += f", {corpus}"
            for table in of_scores:
                table.title = ": ".join(filter(None, (corpus, table.title)))
        frames.append(scores)
        tables += of_scores
    return pd.concat(frames), tables


def rows_named(name: str, rows: Iterable[str]) -> list[str]:
    """Return the row with a name, or the rows that have all its parts, such as softmax."""
    rows, parts = list(rows), set(name.split(", "))
    return [name] if name in rows else [row for row in rows if parts <= set(row.split(", "))]


def _baseline(rows: Sequence[str], given: str | None) -> tuple[str, list[str]]:
    """Return the baseline of a corpus, and a note if another row could be it."""
    named = rows_named(given or BASELINE, rows)
    if given and len(named) > 1:
        raise ConfigError(f"baseline={given} is {len(named)} rows: {'; '.join(named)}")
    first, is_only = (named or rows)[0], len(named or rows) == 1
    which = f"the baseline is the first row{' with softmax' if named else ''}, {first}"
    return first, [] if is_only else [f"{which}; headwise table … baseline=ROW sets another"]


def _read(job: Mapping[str, Any]) -> tuple[Mapping[str, Any], TaskRecord | None]:
    """Return a job and its run; a run that cannot be read is a job that is broken."""
    run = job.get("run")
    if isinstance(run, str):
        run = TaskRecord(Path(run)) if (Path(run) / SETTINGS).is_file() else None
    if run is None:
        return job, None
    try:
        job = job if "overrides" in job else {"overrides": run.part("overrides"), **job}
        _ = run.config, run.results, run.data
    except (HeadwiseError, OSError) as error:
        return {**job, "broken": f"{run.folder} is not counted: {error}"}, None
    return job, run


def _placed(
    jobs: Sequence[Mapping[str, Any]],
    runs: Sequence[TaskRecord | None],
    corpora: Sequence[CorpusRows],
) -> pd.DataFrame:
    """Return corpus, row, state and run of each job, without runs that are left out.

    A job that has no run stands in the row of the jobs with the same overrides.
    """
    rows = [(c.corpus, row, same) for c in corpora for row, same in c.rows.items()]
    places = {run: (corpus, row) for corpus, row, same in rows for run in same}

    def words(job: Mapping[str, Any]) -> tuple[str, ...]:
        typed = last_typed(job.get("overrides") or ())
        return tuple(word for word in typed if not re.match(r"\+*seed=", word))

    common = set.intersection(*(set(words(job)) for job in jobs))
    of_words = {
        words(job): places[run] for job, run in zip(jobs, runs, strict=True) if run in places
    }
    alone = corpora[0].corpus if len(corpora) == 1 else "without a run"
    placed: list[tuple[Any, ...]] = []
    for job, run in zip(jobs, runs, strict=True):
        if run is None:
            own = " ".join(w.removeprefix("attention=") for w in words(job) if w not in common)
            other = "not found" if "run" in job else "failed"
            state = next((state for state in STOPPED if state in job), other)
            place = of_words.get(words(job), (alone, own or "all"))
            placed.append((*place, state, run, job.get("broken")))
        elif run in places:
            state = FINISHED if run.results else str(status(run)["status"])
            placed.append((*places[run], state, run, None))
    return pd.DataFrame(placed, columns=["corpus", "row", "state", "run", "note"])


def _corpus_tables(
    placed: pd.DataFrame, notes: Sequence[str], n_resamples: int, given: str | None
) -> tuple[pd.DataFrame, list[TextTable]]:
    names = list(dict.fromkeys(placed.row))
    finished = placed[placed.state == FINISHED]
    baseline, on_baseline = _baseline(list(dict.fromkeys([*finished.row, *names])), given)
    scores = _scores(finished)
    metrics = {name: run.task.metric for name, run in zip(scores.column, scores.saved, strict=True)}
    runs = StudyRuns(scores, {column: metric.sign for column, metric in metrics.items()})
    tested = [row.test != row.saved.settings["data"]["valid"] for row in scores.itertuples()]
    pairs = scores[tested] if any(tested) else scores
    of_columns = pairs.groupby("column", sort=False)
    runs.notes = {"": [*on_baseline, *placed.note.dropna(), *notes]} | {
        name: [*unknown(scores)] for name, scores in of_columns
    }
    runs.differences = differences(pairs, baseline, runs.notes, n_resamples)
    tables = [_main(runs, placed, baseline)]
    if len(runs.differences):
        study = Study(
            rows={name: Row() for name in names},
            columns={name: Column(name, metric=metric.name) for name, metric in metrics.items()},
            metrics={metric.name: metric.label for metric in metrics.values()},
        )
        tables.append(difference_table(study, runs, baseline, n_resamples))
    return scores, tables


def _scores(finished: pd.DataFrame) -> pd.DataFrame:
    """Return a row per run and split; what was scored on other text is in another column."""
    rows = [
        score_row(run, row, f"{run.task.metric.label} {split}", split, run.task.metric.name)
        for row, run in zip(finished.row, finished.run, strict=True)
        for split in run.results.scores
    ]
    scores = pd.DataFrame([row for row in rows if row is not None], columns=SCORES)
    for column, same in scores.groupby("column", sort=False):
        data = [run.settings["data"] for run in same.saved]
        paths = [[of.get(key.removeprefix("data.")) for key in PATHS] for of in data]
        known = [run.results.content(test) for run, test in zip(same.saved, same.test, strict=True)]
        numbers, texts = pd.Series(known_or_alike(known, paths)).factorize()
        if len(texts) > 1:
            scores.loc[same.index, "column"] = [f"{column} (text {n + 1})" for n in numbers]
    return scores


def _main(runs: StudyRuns, placed: pd.DataFrame, baseline: str) -> TextTable:
    """Return the table of scores, number of runs, cost and heads."""
    columns: dict[str, Any] = {}
    for column, sign in runs.signs.items():
        scores = runs.scores[runs.scores.column == column].groupby("row").score
        columns[f"{column} {ARROWS[sign]}"] = scores.agg(mean_and_deviation, DECIMALS[sign])
    columns["runs"] = placed.groupby("row").state.agg(_counts)
    finished = placed[placed.state == FINISHED]
    seeds = pd.Series([run.seed for run in finished.run], index=finished.row, dtype=object)
    columns["seeds"] = seeds.groupby(level=0).agg(_seeds)
    names, results = list(finished.row), [run.results for run in finished.run]
    speeds = pd.Series([of_run.tokens_per_second for of_run in results], dtype=float)
    rows = list(dict.fromkeys(placed.row))
    medians = speeds.groupby(pd.Index(names)).median().reindex(rows)
    ratios = medians / (medians[baseline] or math.nan)
    columns[f"tokens/s, {baseline} = 1"] = ratios.map(_shown)
    means = _means_of_heads(names, results)
    sites = list(means.index.unique("site"))
    for quantity in HEADS:
        columns[f"{quantity} {'/'.join(sites)}".strip()] = {
            row: " / ".join(map(_shown, (means.get((row, quantity, site)) for site in sites)))
            for row in rows
        }
    frame = pd.DataFrame(columns, index=rows).replace("", EMPTY)
    notes = [f"{name}: {note}.".lstrip(": ") for name, of in runs.notes.items() for note in of]
    if len(notes) > MAX_NOTES:
        notes[MAX_NOTES:] = [f"and {len(notes) - MAX_NOTES} more notes like these"]
    return TextTable("", frame.fillna(EMPTY), notes)


def _means_of_heads(names: Sequence[str], results: Sequence[Results]) -> pd.Series:
    """Return row, quantity, site -> mean over the heads of the row's runs."""
    values = [
        (row, quantity, site, value)
        for row, of_run in zip(names, results, strict=True)
        for quantity in HEADS
        for site, layers in of_run.heads.get(quantity, {}).items()
        for value in itertools.chain.from_iterable(layers)
    ]
    keys = ["row", "quantity", "site"]
    frame = pd.DataFrame(values, columns=[*keys, "value"]).dropna()
    return frame.groupby(keys, sort=False).value.agg(statistics.fmean)


def _shown(mean: float | None) -> str:
    return EMPTY if pd.isna(mean) else f"{mean:.2f}"


def _seeds(seeds: Sequence[int]) -> str:
    first, last = min(seeds), max(seeds)
    if len(seeds) == last - first + 1 > 2:
        return f"{first}–{last}"
    return ", ".join(map(str, sorted(seeds)))


def _counts(outcomes: pd.Series) -> str:
    """Count finished and unfinished runs: `3 (1 failed)`."""
    counts = outcomes.value_counts(sort=False)
    unfinished = ", ".join(f"{n} {state}" for state, n in counts.items() if state != FINISHED)
    return f"{counts.get(FINISHED, 0)}" + (f" ({unfinished})" if unfinished else "")
