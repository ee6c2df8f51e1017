"""Table of the runs of a sweep: means over seeds, and cost relative to a baseline.

Jobs that differ only in `seed=` are one row. Speed and memory were measured by the runs and are
ratios of medians to the baseline's row; they are comparable only between runs made one after
another on an otherwise idle machine.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from headwise.runs.fingerprint import last_typed
from headwise.studies.match import read_run
from headwise.studies.render import DECIMALS, Fact, Table, mean_and_deviation, pivot

BASELINE = "softmax"
COSTS = {"tokens_per_second": "tokens/s", "peak_memory_bytes": "memory"}
HEADS = ("density", "diversity")
STOPPED = ("interrupted", "pruned")  # keys of a job's record
FACT = ["row", "quantity", "site", "value", "sign"]  # sign: of scores, 1 where higher is better


def sweep_table(jobs: Sequence[Mapping[str, Any]]) -> Table:
    """Return the comparison as a table.

    Scores are those of the main metric, mean ± sample standard deviation, the best of several
    rows in bold. Ratios are to the row named softmax, else to the first row. Density and diversity
    are means over heads and layers, see `headwise.analysis.collect.head_statistics`.

    Args:
        jobs: records of a sweep: overrides, and the folder of the run, an error, or interrupted.
    """
    facts = pd.DataFrame(_facts(jobs, job_names(jobs)), columns=FACT)
    baseline = BASELINE if BASELINE in set(facts.row) else facts.row[0]
    costs = facts[facts.quantity.isin(COSTS)].astype({"value": float})
    medians = costs.groupby(["quantity", "row"]).value.median()
    sites = list(facts.site.dropna().unique())
    heads = {
        **{quantity: f"{name}, {baseline} = 1" for quantity, name in COSTS.items()},
        **{quantity: f"{quantity} {'/'.join(sites)}".strip() for quantity in HEADS},
    }
    scores = facts[facts.sign.notna()].astype({"value": float, "sign": float})
    signed = scores.assign(value=scores.value * scores.sign)
    means = signed.groupby(["quantity", "row"]).value.mean()
    best = {rows.idxmax() for _, rows in means.groupby("quantity") if len(rows) > 1}

    def cell_text(cell: pd.DataFrame) -> str:
        first = cell.iloc[0]
        if first.quantity == "runs":
            return _counts(cell.value)
        if first.quantity in COSTS:
            value, base = (medians.get((first.quantity, row)) for row in (first.row, baseline))
            return f"{value / base:.2f}" if pd.notna(value) and base else "-"
        if first.quantity in HEADS:
            site_means = cell.dropna(subset="value").groupby("site").value.agg(statistics.fmean)
            values = [site_means.get(site) for site in sites]
            return " / ".join("-" if pd.isna(mean) else f"{mean:.2f}" for mean in values)
        score = mean_and_deviation(cell.value, DECIMALS[int(first.sign)])
        return f"**{score}**" if (first.quantity, first.row) in best else score

    frame = pivot(facts, "row", ["quantity"], cell_text)
    order = [*scores.quantity.unique(), "runs", *COSTS, *HEADS]
    frame = frame.reindex(columns=[(name,) for name in order], fill_value="-")
    frame.columns = [heads.get(name, name) for name in order]
    return Table("", frame.replace("–", "-"))


def job_names(jobs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the overrides that distinguish the row of each job, seeds left out."""
    typed = [last_typed(job["overrides"]) for job in jobs]
    without_seed = [[o for o in overrides if not o.startswith("seed=")] for overrides in typed]
    common = set(without_seed[0]).intersection(*without_seed) if without_seed else set()
    names = [[o for o in overrides if o not in common] for overrides in without_seed]
    keys = {override.partition("=")[0] for row in names for override in row}
    # a single key that differs is not repeated in each row
    return [
        (row[0].partition("=")[2] if len(keys) == len(row) == 1 else " ".join(row)) or "all"
        for row in names
    ]


def _facts(jobs: Sequence[Mapping[str, Any]], names: Sequence[str]) -> Iterator[Fact]:
    for job, row in zip(jobs, names, strict=True):
        run = read_run(Path(job["run"])) if "run" in job else None
        results = None if run is None else run.results
        failure = next((state for state in STOPPED if state in job), "failed")
        yield {"row": row, "quantity": "runs", "value": "" if results else failure}
        if run is None or results is None:
            continue
        metric = run.metric
        direction = "" if metric.better == "higher" else ", lower is better"
        for split in results.scores:
            name, value = f"{metric.label} {split}{direction}", results.score(split, metric.name)
            if value is not None:
                yield {"row": row, "quantity": name, "value": value, "sign": metric.sign}
        for quantity in COSTS:
            yield {"row": row, "quantity": quantity, "value": getattr(results, quantity)}
        for quantity in HEADS:
            for site, layers in results.heads.get(quantity, {}).items():
                for value in itertools.chain.from_iterable(layers):
                    yield {"row": row, "quantity": quantity, "site": site, "value": value}


def _counts(outcomes: pd.Series) -> str:
    """Count finished and unfinished runs: `3 (1 failed)`."""
    counts = outcomes.value_counts()
    unfinished = ", ".join(f"{counts[k]} {k}" for k in ("failed", *STOPPED) if k in counts)
    return f"{counts.get('', 0)}" + (f" ({unfinished})" if unfinished else "")
