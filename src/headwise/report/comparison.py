"""Runs side by side: means over seeds, and what each choice costs beside a baseline.

Points that differ in nothing but `seed=` are one row. Speed and memory are those that the runs
measured themselves, as ratios of medians to the baseline's row; compare runs made one after
another on a machine that did nothing else.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from headwise.markdown import markdown_table
from headwise.runs.results import Results
from headwise.schema import SITES

BASELINE = "softmax"
SITE_HEADS = {"encoder_self": "encoder", "decoder_self": "decoder", "cross": "cross"}


@dataclass(frozen=True)
class Row:
    """The runs of one choice.

    Attributes:
        name: the overrides that tell it from the other rows, seeds left out.
        results: of every finished run.
        n_failed: points that ended in an error.
        n_interrupted: points that were told to stop, and go on another time.
    """

    name: str
    results: list[Results] = field(default_factory=list)
    n_failed: int = 0
    n_interrupted: int = 0

    def counts(self) -> str:
        """Finished runs, and how many came to nothing: `3 (1 failed)`."""
        lost = {"failed": self.n_failed, "interrupted": self.n_interrupted}
        told = ", ".join(f"{count} {how}" for how, count in lost.items() if count)
        return f"{len(self.results)} ({told})" if told else str(len(self.results))

    def bleu(self, split: str) -> list[float]:
        """BLEU of every run that was scored on `split`."""
        found = [results.score(split) for results in self.results]
        return [score for score in found if score is not None]

    def median(self, key: str) -> float | None:
        """Median over the runs of a number of results.json; None where no run has it."""
        found = [v for r in self.results if (v := getattr(r, key)) is not None]
        return float(statistics.median(found)) if found else None

    def head_mean(self, statistic: str, site: str) -> float | None:
        """Mean over runs, layers and heads of a statistic; None where it was not measured."""
        found = [
            value
            for r in self.results
            for layer in r.heads.get(statistic, {}).get(site, [])
            for value in layer
            if value is not None
        ]
        return statistics.fmean(found) if found else None


def rows_of(points: Sequence[Mapping[str, Any]]) -> list[Row]:
    """Rows in the order of their first point.

    Args:
        points: what a sweep recorded: overrides, and the run's folder, the error, or that it was
            interrupted.
    """
    without_seed = [[o for o in p["overrides"] if not o.startswith("seed=")] for p in points]
    common = set(without_seed[0]).intersection(*without_seed) if without_seed else set()
    keys = {o.partition("=")[0] for overrides in without_seed for o in {*overrides} - common}
    rows: dict[str, Row] = {}
    for point, overrides in zip(points, without_seed, strict=True):
        own = [o for o in overrides if o not in common]
        # a key that all rows differ in need not be repeated in each
        name = own[0].partition("=")[2] if len(keys) == len(own) == 1 else " ".join(own)
        row = rows.setdefault(name, Row(name or "all"))
        results = Results.read(Path(point["run"]) / "results.json") if "run" in point else None
        if results is not None:
            row.results.append(results)
        elif "interrupted" in point:
            rows[name] = replace(row, n_interrupted=row.n_interrupted + 1)
        else:
            rows[name] = replace(row, n_failed=row.n_failed + 1)
    return list(rows.values())


def markdown(points: Sequence[Mapping[str, Any]]) -> str:
    """The comparison as a table.

    BLEU is mean ± sample standard deviation; ratios are to the row named softmax, else to the
    first; density and diversity are means over heads and layers, as
    `headwise.analysis.collect.head_statistics` defines them, of encoder, decoder and cross.
    """
    rows = rows_of(points)
    splits = list(dict.fromkeys(s for row in rows for r in row.results for s in r.scores))
    baseline = next((row for row in rows if row.name == BASELINE), rows[0])
    sites = "/".join(SITE_HEADS[site] for site in SITES)
    head = [
        "",
        *(f"BLEU {split}" for split in splits),
        "runs",
        f"tokens/s, {baseline.name} = 1",
        f"memory, {baseline.name} = 1",
        f"density {sites}",
        f"diversity {sites}",
    ]
    lines = [
        [
            row.name,
            *(mean_and_deviation(row.bleu(split)) for split in splits),
            row.counts(),
            _ratio(row.median("tokens_per_second"), baseline.median("tokens_per_second")),
            _ratio(row.median("peak_memory_bytes"), baseline.median("peak_memory_bytes")),
            _by_site(row, "density"),
            _by_site(row, "diversity"),
        ]
        for row in rows
    ]
    return markdown_table(head, lines)


def mean_and_deviation(values: Sequence[float]) -> str:
    """`12.34 ± 0.56`; of a single value no deviation, of none a dash."""
    if not values:
        return "-"
    mean = f"{statistics.fmean(values):.2f}"
    return f"{mean} ± {statistics.stdev(values):.2f}" if len(values) > 1 else mean


def _ratio(value: float | None, base: float | None) -> str:
    return "-" if value is None or not base else f"{value / base:.2f}"


def _by_site(row: Row, statistic: str) -> str:
    found = [row.head_mean(statistic, site) for site in SITES]
    return " / ".join("-" if value is None else f"{value:.2f}" for value in found)
