"""Runs of a sweep side by side: means over seeds, and what each choice costs beside a baseline.

Jobs that differ in nothing but `seed=` are one row. Speed and memory are those that the runs
measured themselves, as ratios of medians to the baseline's row; compare runs made one after
another on a machine that did nothing else.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from headwise.report.paper_runs import read_run
from headwise.report.tables import Fact, Table, mean_and_deviation, pivot

BASELINE = "softmax"
COSTS = {"tokens_per_second": "tokens/s", "peak_memory_bytes": "memory"}
HEADS = ("density", "diversity")
FACT = ["row", "quantity", "site", "value", "sign"]  # sign: of scores, 1 where higher is better


def sweep_table(jobs: Sequence[Mapping[str, Any]]) -> Table:
    """The comparison as a table.

    Scores are those that the runs are judged by, mean ± sample standard deviation, the best of
    several in bold; ratios are to the row named softmax, else to the first; density and diversity
    are means over heads and layers, as `headwise.analysis.collect.head_statistics` defines them.

    Args:
        jobs: what a sweep recorded: overrides, and the run's folder, the error, or that it was
            interrupted.
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
    best = {of.idxmax() for _, of in means.groupby("quantity") if len(of) > 1}

    def shown(cell: pd.DataFrame) -> str:
        first = cell.iloc[0]
        if first.quantity == "runs":
            return _counts(cell.value)
        if first.quantity in COSTS:
            value, base = (medians.get((first.quantity, row)) for row in (first.row, baseline))
            return f"{value / base:.2f}" if pd.notna(value) and base else "-"
        if first.quantity in HEADS:
            of_sites = cell.dropna(subset="value").groupby("site").value.agg(statistics.fmean)
            found = [of_sites.get(site) for site in sites]
            return " / ".join("-" if pd.isna(mean) else f"{mean:.2f}" for mean in found)
        score = mean_and_deviation(cell.value)
        return f"**{score}**" if (first.quantity, first.row) in best else score

    frame = pivot(facts, "row", ["quantity"], shown)
    order = [*scores.quantity.unique(), "runs", *COSTS, *HEADS]
    frame = frame.reindex(columns=[(name,) for name in order], fill_value="-")
    frame.columns = [heads.get(name, name) for name in order]
    return Table("", frame.replace("–", "-"))


def job_names(jobs: Sequence[Mapping[str, Any]]) -> list[str]:
    """What tells the row of each job from the others, seeds left out."""
    without_seed = [[o for o in job["overrides"] if not o.startswith("seed=")] for job in jobs]
    common = set(without_seed[0]).intersection(*without_seed) if without_seed else set()
    names = [[o for o in overrides if o not in common] for overrides in without_seed]
    keys = {override.partition("=")[0] for own in names for override in own}
    # a key that all rows differ in need not be repeated in each
    return [
        (own[0].partition("=")[2] if len(keys) == len(own) == 1 else " ".join(own)) or "all"
        for own in names
    ]


def _facts(jobs: Sequence[Mapping[str, Any]], names: Sequence[str]) -> Iterator[Fact]:
    for job, row in zip(jobs, names, strict=True):
        run = read_run(Path(job["run"])) if "run" in job else None
        results = None if run is None else run.results
        failure = "interrupted" if "interrupted" in job else "failed"
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


def _counts(ends: pd.Series) -> str:
    """Finished runs, and how many did not finish: `3 (1 failed)`."""
    counts = ends.value_counts()
    lost = ", ".join(f"{counts[end]} {end}" for end in ("failed", "interrupted") if end in counts)
    return f"{counts.get('', 0)}" + (f" ({lost})" if lost else "")
