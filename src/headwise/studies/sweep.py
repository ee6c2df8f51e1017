"""Tables of the runs of a sweep: means over seeds, cost, heads; and differences to a baseline.

Rows and corpora are those of `headwise.studies.rows`. Speed was measured by the runs and is ratios
of medians to the baseline's row; they are comparable only between runs made one after another on
an otherwise idle machine.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from headwise.runs.fingerprint import last_typed
from headwise.runs.folder import SETTINGS
from headwise.runs.listing import status
from headwise.runs.results import FINISHED, Results
from headwise.studies.compare import differences
from headwise.studies.match import SavedRun
from headwise.studies.render import ARROWS, DECIMALS, EMPTY, TextTable, mean_and_deviation
from headwise.studies.rows import CorpusRows, corpus_rows, known_or_alike
from headwise.studies.scores import SCORES, Compared, score_row
from headwise.studies.study import Column, Row, Study
from headwise.studies.tables import difference_table

BASELINE = "softmax"
HEADS = ("density", "diversity")
STOPPED = ("interrupted", "pruned")  # keys of a job's record
PLACES = ("dir", "folder", "files", "file")  # settings of data that say where its text is
N_RESAMPLES = 2000  # at the end of every sweep
MAX_NOTES = 3


def sweep_tables(
    jobs: Sequence[Mapping[str, Any]], n_resamples: int = N_RESAMPLES
) -> tuple[pd.DataFrame, list[TextTable]]:
    """Return the scores, a row per run and split, and the tables of each corpus.

    Scores are those of the main metric, mean ± sample standard deviation. The baseline is the row
    named softmax, else the first row. Density and diversity are means over heads and layers, see
    `headwise.analysis.collect.head_statistics`.

    Args:
        jobs: records of a sweep: overrides, and the run or its folder, an error, or interrupted.
        n_resamples: of the intervals over items.

    Raises:
        RunError: a run is broken, or of another version.
    """
    runs = [_run(job) for job in jobs]
    corpora = corpus_rows([run for run in runs if run is not None])
    if None in runs and len(corpora) != 1:
        corpora.append(CorpusRows("without a run", "", {}))
    states = _states(jobs, runs, corpora)
    frames, tables = [pd.DataFrame(columns=SCORES)], list[TextTable]()
    for corpus in corpora:
        scores, of_corpus = _corpus_tables(
            corpus, states[states.corpus == corpus.corpus], n_resamples
        )
        if len(corpora) > 1:
            scores = scores.assign(column=scores.column + f", {corpus.corpus}")
            for table in of_corpus:
                table.title = ": ".join(filter(None, (corpus.corpus, table.title)))
        frames += [scores] if len(scores) else []
        tables += of_corpus
    return pd.concat(frames), tables


def _corpus_tables(
    corpus: CorpusRows, states: pd.DataFrame, n_resamples: int
) -> tuple[pd.DataFrame, list[TextTable]]:
    names = list(dict.fromkeys([*corpus.rows, *states.row]))
    if not names:
        return pd.DataFrame(columns=SCORES), []
    scores = pd.DataFrame(_scores(corpus), columns=SCORES)
    baseline = BASELINE if BASELINE in names else names[0]
    of_columns = scores.drop_duplicates("column").itertuples()
    metrics = {row.column: row.saved.metric for row in of_columns}
    compared = Compared(scores, {column: metric.sign for column, metric in metrics.items()})
    compared.notes = {column: [] for column in metrics}
    tested = [row.test != row.saved.settings["data"]["valid"] for row in scores.itertuples()]
    pairs = scores[tested] if any(tested) else scores
    compared.differences = differences(pairs, baseline, compared.notes, n_resamples)
    tables = [_main(compared, corpus, states, names, baseline)]
    if len(compared.differences):
        study = Study(
            rows={name: Row() for name in names},
            columns={name: Column(name, metric=metric.name) for name, metric in metrics.items()},
            metrics={metric.name: metric.label for metric in metrics.values()},
        )
        tables.append(difference_table(study, compared, baseline, n_resamples))
    return scores, tables


def _run(job: Mapping[str, Any]) -> SavedRun | None:
    run: Any = job.get("run")
    if isinstance(run, str):
        return SavedRun(Path(run)) if (Path(run) / SETTINGS).is_file() else None
    return run


def _states(
    jobs: Sequence[Mapping[str, Any]],
    runs: Sequence[SavedRun | None],
    corpora: Sequence[CorpusRows],
) -> pd.DataFrame:
    """Return corpus, row and state of each job, without runs that are left out.

    A job that has no run stands in the row of the jobs with the same overrides.
    """
    places = {
        id(run): (corpus.corpus, row)
        for corpus in corpora
        for row, same in corpus.rows.items()
        for run in same
    }
    words = [_without_seed(job) for job in jobs]
    common = set.intersection(*map(set, words))
    of_words = {
        frozenset(of_job): places[id(run)]
        for of_job, run in zip(words, runs, strict=True)
        if id(run) in places
    }
    states = []
    for job, of_job, run in zip(jobs, words, runs, strict=True):
        if run is None:
            own = " ".join(w.removeprefix("attention=") for w in of_job if w not in common) or "all"
            place = of_words.get(frozenset(of_job), (corpora[-1].corpus, own))
            other = "not found" if "run" in job else "failed"
            states.append((*place, next((state for state in STOPPED if state in job), other)))
        elif id(run) in places:
            states.append((*places[id(run)], str(status(run)["status"])))
    return pd.DataFrame(states, columns=["corpus", "row", "state"])


def _without_seed(job: Mapping[str, Any]) -> list[str]:
    overrides = last_typed(job["overrides"] or ())
    return [o for o in overrides if o.lstrip("+").partition("=")[0] != "seed"]


def _scores(corpus: CorpusRows) -> Iterator[dict[str, Any]]:
    """Yield a row per run and split; what was scored on other text is in another column."""
    entries: dict[str, list[tuple[str, SavedRun, str]]] = {}
    for row, same in corpus.rows.items():
        for run in same:
            for split in run.results.scores if run.results else ():
                entries.setdefault(f"{run.metric.label} {split}", []).append((row, run, split))
    for label, of_label in entries.items():
        contents = known_or_alike(
            [run.results and run.results.content(split) for _, run, split in of_label],
            [{key: run.settings["data"].get(key) for key in PLACES} for _, run, _ in of_label],
        )
        texts = list(dict.fromkeys(contents))
        for (row, run, split), content in zip(of_label, contents, strict=True):
            number = f" (text {texts.index(content) + 1})" if len(texts) > 1 else ""
            scored = score_row(run, row, label + number, split, run.metric.name)
            if scored is not None:
                yield scored


def _main(
    compared: Compared,
    corpus: CorpusRows,
    states: pd.DataFrame,
    names: Sequence[str],
    baseline: str,
) -> TextTable:
    """Return the table of scores, number of runs, cost and heads."""
    columns: dict[str, Any] = {}
    for column, sign in compared.signs.items():
        scores = compared.scores[compared.scores.column == column].groupby("row").score
        columns[f"{column} {ARROWS[sign]}"] = scores.agg(mean_and_deviation, DECIMALS[sign])
    columns["runs"] = states.groupby("row").state.agg(_counts)
    finished = [
        (row, run.results) for row, same in corpus.rows.items() for run in same if run.results
    ]
    speeds = [results.tokens_per_second for _, results in finished]
    rows = [row for row, _ in finished]
    medians = pd.Series(speeds, rows, dtype=float).groupby(level=0).median()
    ratios = medians / (medians.get(baseline) or math.nan)
    columns[f"tokens/s, {baseline} = 1"] = ratios.map(_shown)
    means = _means_of_heads(finished)
    sites = list(means.index.unique("site"))
    for quantity in HEADS:
        columns[f"{quantity} {'/'.join(sites)}".strip()] = {
            row: " / ".join(map(_shown, (means.get((row, quantity, site)) for site in sites)))
            for row in names
        }
    frame = pd.DataFrame(columns, index=names).replace("", EMPTY)
    notes = [f"{name}: {note}." for name, notes in compared.notes.items() for note in notes]
    notes += [f"{note}." for note in corpus.notes]
    if len(notes) > MAX_NOTES:
        notes[MAX_NOTES:] = [f"and {len(notes) - MAX_NOTES} more notes like these"]
    return TextTable("", frame.fillna(EMPTY), notes)


def _means_of_heads(finished: Sequence[tuple[str, Results]]) -> pd.Series:
    """Return row, quantity, site -> mean over the heads of the row's runs."""
    values = [
        (row, quantity, site, value)
        for row, of_run in finished
        for quantity in HEADS
        for site, layers in of_run.heads.get(quantity, {}).items()
        for value in itertools.chain.from_iterable(layers)
    ]
    keys = ["row", "quantity", "site"]
    frame = pd.DataFrame(values, columns=[*keys, "value"]).dropna()
    return frame.groupby(keys, sort=False).value.agg(statistics.fmean)


def _shown(mean: float | None) -> str:
    return EMPTY if pd.isna(mean) else f"{mean:.2f}"


def _counts(outcomes: pd.Series) -> str:
    """Count finished and unfinished runs: `3 (1 failed)`."""
    counts = outcomes.value_counts(sort=False)
    unfinished = ", ".join(f"{n} {state}" for state, n in counts.items() if state != FINISHED)
    return f"{counts.get(FINISHED, 0)}" + (f" ({unfinished})" if unfinished else "")
