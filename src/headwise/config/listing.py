"""The config of `scripts/runs.py`."""

from __future__ import annotations

from dataclasses import dataclass

from headwise.config.text_and_paths import path


@dataclass
class RunsConfig:
    """`scripts/runs.py`: a table of runs."""

    runs: list[str] = path(lambda: ["outputs"])  # folders, globs or archives
    where: str | None = None  # conditions: "status=finished seed<3 attention!=softmax"
    sort: str | None = None  # a column; -column: descending
    format: str = "table"  # table, csv, json; the last two have all scores
    export: str | None = path()  # folder of an archive to write with the listed runs
    watch: bool = False  # draw the table again and again, in a terminal
    every: float = 5.0  # seconds between two tables of watch=true
