"""The configs of the commands that show runs: table, figures, page and compare."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from headwise.config.text_and_paths import path
from headwise.files import STDIN


@dataclass
class TableConfig:
    """`scripts/table.py`: the tables of a study, or of a sweep."""

    study: Any = None  # a yaml of conf/study; see `headwise.studies.study.Study`; null: a sweep
    runs: list[str] = path(list)  # folders, globs or the folder of a sweep; empty: of the study
    rows: list[str] | None = None  # null: all of the study
    columns: list[str] | None = None  # null: all of the study
    seeds: list[int] | None = None  # null: those of the study
    overrides: list[str] = field(default_factory=list)  # added to every recipe: ["data.dir=FOLDER"]
    n_resamples: int = 10_000  # of the intervals over items
    launch: bool = False  # train missing runs first
    heads: bool = False  # analyse the heads of the runs, as tables
    checkpoint: str = "auto"  # to analyse: auto, best, last, average, update_<n>, average_<n>
    device: str = "auto"
    output: str | None = path()  # null: outputs/tables/<study>


@dataclass
class FiguresConfig:
    """`scripts/figures.py`: figures for print, of one run or of several."""

    run: str | None = path()  # folder of a run
    runs: list[str] = path(list)  # folders or globs, instead of run
    sentence: str | None = None  # draw the attention of all heads of `run` on it
    checkpoint: str = "auto"  # auto, best, last, average, update_<n>, average_<n> (of the last n)
    device: str = "auto"
    output: str | None = path()  # null: outputs/figures, or in the run folder


@dataclass
class PageConfig:
    """`scripts/page.py`: one HTML file to inspect the heads of a run."""

    run: str | None = path()  # folder of a run
    other: str | None = path()  # a second run
    n_sentences: int = 20  # number of sentences on the page
    sentences: str | None = path(stream=STDIN)  # a file; null: from a test set of the run
    checkpoint: str = "auto"  # auto, best, last, average, update_<n>, average_<n> (of the last n)
    device: str = "auto"
    output: str | None = path()  # null: in the run folder


@dataclass
class CompareConfig:
    """`scripts/compare.py`: paired tests between two runs."""

    run: str | None = path()  # folder of a run
    other: str | None = path()  # the run that it is compared with
    n_resamples: int = 10_000  # of the intervals over items
    output: str | None = path()  # a file; null: print only
