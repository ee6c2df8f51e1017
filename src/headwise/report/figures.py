"""The figures of one run and of several, drawn from what lies in their folders.

Tables that `scripts/analyze.py` has not written, and what a run did not measure, leave their
figures out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headwise.analysis.alpha_figures import Alphas, alpha_histograms, alpha_start_end
from headwise.analysis.density_figures import density_layers, density_violins
from headwise.analysis.figure_style import save, shown
from headwise.analysis.tables import DENSITY, FOLDER, HEADS, LAYERS, PRUNING, Table, read_settings
from headwise.report.figures_curves import (
    DIVERSITY_BASES,
    bleu_curves,
    diversity_layers,
    pruning_curves,
)
from headwise.report.figures_rows import CorpusRows, corpus_rows, file_stem
from headwise.report.paper_runs import FoundRun
from headwise.track.jsonl import read_if_there
from headwise.train.outcome import figures as training_figures
from headwise.train.run_folder import RunFolder

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Rows = list[dict[str, Any]]


def draw_figures(runs: Sequence[Path], output: Path) -> list[Path]:
    """Draw what runs became, side by side; those that differ in their seed alone are one line.

    A file of its own for each corpus, named by it where there are several; the validation scores
    of all corpora are one figure. Of a single run its course over training is drawn instead.

    Args:
        runs: their folders.
        output: a folder, made where it is not there.

    Returns:
        The files; none where nothing was measured.

    Raises:
        RunError: a folder that holds no run.
        DataError: a table that another version wrote.
    """
    corpora = corpus_rows(runs)
    files: list[Path] = []
    for found in corpora:
        ending = f"-{found.stem}" if len(corpora) > 1 else ""
        for name, figure in _of_corpus(found).items():
            files += save(figure, output / f"{name}{ending}.png")
    over_training = _course(corpora[0]) if len(runs) == 1 else {"bleu_curves": _sweep(corpora)}
    for name, drawn in over_training.items():
        if drawn is not None:
            files += save(drawn, output / f"{name}.png")
    return files


def unanalysed(runs: Sequence[Path]) -> list[Path]:
    """Those of the folders that have no tables of their heads yet."""
    return [run for run in runs if not HEADS.path(run / FOLDER).is_file()]


def _course(found: CorpusRows) -> dict[str, Figure | None]:
    """Figures of one run over its training."""
    ((name, (run,)),) = found.rows.items()
    what = f"{shown(name)}, {found.corpus}"
    return training_figures(RunFolder.existing(run.folder), what)


def _sweep(corpora: Sequence[CorpusRows]) -> Figure | None:
    """Validation scores of all runs."""
    return bleu_curves(
        {
            found.corpus: {name: [_bleu(run) for run in runs] for name, runs in found.rows.items()}
            for found in corpora
        }
    )


def _of_corpus(found: CorpusRows) -> dict[str, Figure]:
    """File name -> figure, without those for which nothing was measured."""
    figures: dict[str, Figure | None] = {}
    learning = {
        name: ends for name, runs in found.rows.items() if (ends := _known(_alpha_ends, runs))
    }
    for name, ends in learning.items():
        ending = f"-{file_stem(name)}" if len(learning) > 1 else ""
        what = f"{shown(name)}, {found.corpus}"
        figures[f"alpha_histograms{ending}"] = alpha_histograms([last for _, last in ends], what)
        figures[f"alpha_start_end{ending}"] = alpha_start_end(ends, what)
    # a single choice has no legend
    only = [shown(name) for name in found.rows] if len(found.rows) == 1 else []
    what, text = ", ".join([*only, found.corpus]), _measured_on(found)
    figures["density_violins"] = density_violins(_tables(found, DENSITY), what, text)
    figures["density_layers"] = density_layers(_tables(found, HEADS), what, text)
    for column in DIVERSITY_BASES:
        figures[column] = diversity_layers(_tables(found, LAYERS), column, what, text)
    figures["pruning"] = pruning_curves(_tables(found, PRUNING), found.corpus, text)
    return {name: figure for name, figure in figures.items() if figure is not None}


def _known(read: Callable[[FoundRun], Any], runs: Sequence[FoundRun]) -> list[Any]:
    """What is there of each run, without those that have nothing."""
    return [content for run in runs if (content := read(run))]


def _tables(found: CorpusRows, table: Table) -> dict[str, list[Rows]]:
    """A table of every run that has it, by name of the choice."""

    def read(run: FoundRun) -> Rows:
        folder = run.folder / FOLDER
        return table.read(folder) if table.path(folder).is_file() else []

    tables = {name: _known(read, runs) for name, runs in found.rows.items()}
    return {name: of_runs for name, of_runs in tables.items() if of_runs}


def _measured_on(found: CorpusRows) -> str:
    """The text of the analyses, where they say it and agree."""
    texts = set()
    for runs in found.rows.values():
        for run in runs:
            about = read_settings(run.folder / FOLDER)
            if about:
                texts.add((about.get("sentences"), about.get("split")))
    if len(texts) != 1:
        return ""
    ((n_sentences, split),) = texts
    return f"Measured on {n_sentences} sentences of {split}." if n_sentences and split else ""


def _alpha_ends(run: FoundRun) -> tuple[Alphas, Alphas] | None:
    """α of the heads at the start, and of the weights that the run was scored with."""
    records = read_if_there(RunFolder(run.folder).heads)
    known: list[Alphas] = [record["alpha"] for record in records if record.get("alpha")]
    scored: Alphas = {} if run.results is None else run.results.alpha
    if not known:
        return ({}, scored) if scored else None
    return known[0], scored or known[-1]


def _bleu(run: FoundRun) -> Mapping[float, float]:
    """Validation BLEU by update."""
    records = read_if_there(RunFolder(run.folder).metrics)
    key = "valid/bleu"
    return {record["update"]: record[key] for record in records if record.get(key) is not None}
