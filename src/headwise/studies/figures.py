"""The figures of one run or of several, drawn from the files in their folders.

A figure is left out if its tables (by `headwise analyze` or `headwise prune`) or its statistics
do not exist.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from headwise.analysis.quantities import effective_heads
from headwise.analysis.tables import DENSITY, LAYERS, LENGTHS, Table, read_settings
from headwise.plots import runs as plots
from headwise.plots.style import display_name, failure_as_warning, save
from headwise.plots.training import head_values
from headwise.plots.training import training_figures as plots_of_training
from headwise.runs.record import Record
from headwise.studies.record import TaskRecord
from headwise.studies.rows import CorpusRows, corpus_rows, file_stem, named_rows
from headwise.tasks.task import task_of

Read = Callable[[TaskRecord], pd.DataFrame]
HEAD = ["site", "layer", "head"]


def draw_figures(runs: Sequence[TaskRecord], output: Path) -> list[Path]:
    """Draw the figures of runs; runs that differ only in their seed are one line.

    Args:
        runs: finished or not.
        output: folder of the files, created if it does not exist.

    Returns:
        Paths of the files; empty if nothing was measured.

    Raises:
        RunError: a run is broken, or of another version.
        DataError: another version wrote a table.
    """
    figures = figures_of(runs).items()
    return [file for name, figure in figures for file in save(figure, output / name)]


def figures_of(runs: Sequence[TaskRecord]) -> dict[str, Figure]:
    """Return file name -> figure; with several corpora one file per corpus, with its name.

    The validation scores of all corpora are one figure. A single run has its training figures
    instead.

    Args, raises: as for `draw_figures`.
    """
    corpora = corpus_rows(runs)
    figures: dict[str, Figure] = {}
    for corpus in corpora:
        for stem, draw in _corpus_figures(corpus):
            name = f"{stem}-{corpus.stem}" if len(corpora) > 1 else stem
            with failure_as_warning(name):
                figures[name] = draw()
    if len(runs) == 1:
        return training_figures(runs[0]) | figures
    scores = pd.concat(_table(corpus, _scores).assign(corpus=corpus.corpus) for corpus in corpora)
    if len(scores):
        with failure_as_warning("score_curves"):
            figures["score_curves"] = plots.score_curves(scores)
    return figures


def training_figures(run: TaskRecord) -> dict[str, Figure]:
    """Return file name -> figure of one run over its training, with its name in the titles.

    Args, raises: as for `draw_figures`.
    """
    (corpus,) = corpus_rows([run])
    (name,) = corpus.rows
    return drawn_from_records(run, f"{display_name(name)}, {corpus.corpus}")


def drawn_from_records(run: Record, name: str = "") -> dict[str, Figure]:
    """Return file name -> figure of a run over its training, from its records.

    Args:
        run: with its records.
        name: of what was trained, for the titles.
    """
    config = run.config
    main, *others = task_of(config).quick().metrics()
    shown = [main, *(metric for metric in others if metric.name == "loss")]
    labels = {metric.name: metric.scoped_label for metric in shown}
    heads, metrics = (run.part(name) or [] for name in ("heads", "metrics"))
    drawn = plots_of_training(heads, metrics, labels, name, config.model.heads)
    return drawn | task_of(config).figures(run, name)


def _corpus_figures(corpus: CorpusRows) -> Iterator[tuple[str, Callable[[], Figure]]]:
    """Yield file name and drawing of every measurement."""
    alphas = _table(corpus, _alpha_ends)
    for name, rows in alphas.groupby("name", sort=False):
        ending = f"-{file_stem(name)}" if alphas["name"].nunique() > 1 else ""
        title = f"{display_name(name)}, {corpus.corpus}"
        yield f"alpha_histograms{ending}", partial(plots.alpha_histograms, rows, title)
        paired = rows.dropna(subset="start")
        if len(paired):
            yield f"alpha_start_end{ending}", partial(plots.alpha_start_end, paired, title)
    # without a legend, the title names the choice
    names = [display_name(name) for name in corpus.rows] if len(corpus.rows) == 1 else []
    title, text = ", ".join([*names, corpus.corpus]), _measured_on(corpus)
    densities = _table(corpus, _analysed(DENSITY))
    if len(densities):
        yield "density_violins", partial(plots.density_violins, densities, title, text)
    layers = _table(corpus, _analysed(LAYERS)).dropna(subset="diversity_heads")
    if len(layers):
        yield "diversity_heads", partial(plots.diversity_layers, layers, title, text)
    scored = _table(corpus, _by_length)
    if len(scored):
        yield "lengths", partial(plots.by_length, scored, title)
    measured = _table(corpus, _analysed(LENGTHS)).dropna(subset="relevant_weight")
    if len(measured):
        yield "relevant_weight", partial(plots.relevant_weight, measured, title)
    pruning = _table(corpus, _pruning)
    if len(pruning):
        yield "pruning", partial(plots.pruning_curves, pruning, corpus.corpus, text)
    counts = _table(replace(corpus, rows=named_rows(corpus.runs, "model.n_heads")), _by_n_heads)
    n_counts = counts.groupby("name")["n_heads"].transform("nunique")
    if (n_counts > 2).any():
        rows = counts[n_counts > 2].assign(run=counts["seed"])
        yield "head_counts", partial(plots.head_counts, rows, corpus.corpus)


def _table(corpus: CorpusRows, read: Read) -> pd.DataFrame:
    """Concatenate a table of every run, with the columns `name` and `run`."""
    tables = [
        read(run).assign(name=name, run=str(run.folder))
        for name, runs in corpus.rows.items()
        for run in runs
    ]
    return pd.concat([table for table in tables if len(table)] or tables[:1], ignore_index=True)


def _analysed(table: Table) -> Read:
    """Return a reader of a table of the analysis; empty if a run has no such table."""

    def read(run: TaskRecord) -> pd.DataFrame:
        rows = table.read(run) if table.is_in(run) else []
        return pd.DataFrame(rows, columns=list(table.columns))

    return read


def _measured_on(corpus: CorpusRows) -> str:
    """Return a sentence that names the text of the analyses, if it is the same for all."""
    analyses = filter(None, map(read_settings, corpus.runs))
    texts = {tuple(map(about.get, ("sentences", "unit", "split", "text"))) for about in analyses}
    return "Measured on {} {} of {}.".format(*texts.pop()) if len(texts) == 1 else ""


def _alpha_ends(run: TaskRecord) -> pd.DataFrame:
    """Return α of the heads at the start, and in the weights of the final scores."""
    records: list[Any] = [
        {"update": record["update"], "alpha": record["alpha"]}
        for record in run.part("heads") or ()
        if record.get("alpha")
    ]
    scored = {} if run.results is None else run.results.alpha
    scored = scored or (records[-1]["alpha"] if records else {})
    start = head_values(records[:1]).rename(columns={"value": "start"})
    end = head_values([{"update": 0, "alpha": scored}]).rename(columns={"value": "end"})
    return end[[*HEAD, "end"]].merge(start[[*HEAD, "start"]], on=HEAD, how="left")


def _pruning(run: TaskRecord) -> pd.DataFrame:
    """Return the score by the share of removed heads, for the sites of each curve."""
    rows: list[tuple[str, float, float]] = []
    for curve in map(run.json, run.names("pruning/curve*.json")):
        is_all = {*run.sites} == {*curve["sites"]}
        sites = plots.ALL_HEADS if is_all else " and ".join(curve["sites"])
        rows += [(sites, row["removed"], row[curve["metric"]]) for row in curve["rows"]]
    table = pd.DataFrame(rows, columns=["sites", "fraction", "score"])
    return table.assign(metric=run.task.metric.label)


def _by_n_heads(run: TaskRecord) -> pd.DataFrame:
    """Return test score, diversity and effective heads of a run, by its number of heads."""
    layers = _analysed(LAYERS)(run)["diversity_heads"].dropna().astype(float)
    test = next(iter(run.config.data.test), None)
    score = run.results and run.results.score(test, run.task.metric.name)
    values = {
        f"test {run.task.metric.label}": score,
        "diversity of a layer": layers.mean() if len(layers) else None,
        "effective heads": effective_heads(run),
    }
    rows = [(name, value) for name, value in values.items() if value is not None]
    table = pd.DataFrame(rows, columns=["measure", "value"])
    return table.assign(n_heads=run.config.model.n_heads, seed=run.seed)


def _by_length(run: TaskRecord) -> pd.DataFrame:
    """Return the main score of a run by length, if its test sets are named by lengths."""
    results, name = run.results, run.task.metric.name
    scores = {} if results is None else {s: results.score(s, name) for s in results.scores}
    rows = [(int(split), score) for split, score in scores.items() if split.isdecimal()]
    return pd.DataFrame(rows, columns=["length", "score"]).assign(metric=run.task.metric.label)


def _scores(run: TaskRecord) -> pd.DataFrame:
    """Return the main validation score of a run by update."""
    records, name = run.part("metrics") or (), f"valid/{run.task.metric.name}"
    rows = [(r["update"], r[name]) for r in records if r.get(name) is not None]
    label = run.task.quick().metric.scoped_label
    return pd.DataFrame(rows, columns=["update", "score"]).assign(metric=label)
