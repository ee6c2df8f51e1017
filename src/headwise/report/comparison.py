"""Runs of a sweep side by side: means over seeds, and what each choice costs beside a baseline.

Jobs that differ in nothing but `seed=` are one row. Speed and memory are those that the runs
measured themselves, as ratios of medians to the baseline's row; compare runs made one after
another on a machine that did nothing else.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from headwise.config.schema import SITES
from headwise.report.tables import Fact, Table, mean_and_deviation, pivot
from headwise.runs.results import HeadValues, Results

BASELINE = "softmax"
SITE_HEADS = {"encoder_self": "encoder", "decoder_self": "decoder", "cross": "cross"}
COSTS = {"tokens_per_second": "tokens/s", "peak_memory_bytes": "memory"}
HEADS = ("density", "diversity")


def sweep_table(jobs: Sequence[Mapping[str, Any]]) -> Table:
    """The comparison as a table.

    BLEU is mean ± sample standard deviation; ratios are to the row named softmax, else to the
    first; density and diversity are means over heads and layers, as
    `headwise.analysis.collect.head_statistics` defines them, of encoder, decoder and cross.

    Args:
        jobs: what a sweep recorded: overrides, and the run's folder, the error, or that it was
            interrupted.
    """
    facts = pd.DataFrame(_facts(jobs, job_names(jobs)))
    baseline = BASELINE if BASELINE in set(facts.row) else facts.row[0]
    medians = (
        _numbers(facts[facts.quantity.isin(COSTS)]).groupby(["quantity", "row"]).value.median()
    )
    sites = "/".join(SITE_HEADS[site] for site in SITES)
    heads = {
        **{quantity: f"{name}, {baseline} = 1" for quantity, name in COSTS.items()},
        **{quantity: f"{quantity} {sites}" for quantity in HEADS},
    }

    def shown(cell: pd.DataFrame) -> str:
        first = cell.iloc[0]
        if first.quantity == "runs":
            return _counts(cell.value)
        if first.quantity in COSTS:
            value, base = (medians.get((first.quantity, row)) for row in (first.row, baseline))
            return f"{value / base:.2f}" if pd.notna(value) and base else "-"
        if first.quantity in HEADS:
            means = cell.dropna(subset="value").groupby("site").value.agg(statistics.fmean)
            found = [means.get(site) for site in SITES]
            return " / ".join("-" if pd.isna(mean) else f"{mean:.2f}" for mean in found)
        return mean_and_deviation(cell.value.dropna())

    scores = [quantity for quantity in facts.quantity.unique() if quantity.startswith("BLEU ")]
    frame = pivot(facts, "row", ["quantity"], shown)
    order = [*scores, "runs", *COSTS, *HEADS]
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
        results = Results.read(Path(job["run"]) / "results.json") if "run" in job else None
        failure = "interrupted" if "interrupted" in job else "failed"
        yield {"row": row, "quantity": "runs", "value": "" if results else failure}
        if results is None:
            continue
        for split in results.scores:
            yield {"row": row, "quantity": f"BLEU {split}", "value": results.score(split)}
        for quantity in COSTS:
            yield {"row": row, "quantity": quantity, "value": getattr(results, quantity)}
        for quantity in HEADS:
            values: HeadValues = results.heads.get(quantity, {})
            for site in SITES:
                found = [value for layer in values.get(site, []) for value in layer]
                for value in found or [None]:
                    yield {"row": row, "quantity": quantity, "site": site, "value": value}


def _numbers(facts: pd.DataFrame) -> pd.DataFrame:
    return facts.astype({"value": float})


def _counts(ends: pd.Series) -> str:
    """Finished runs, and how many did not finish: `3 (1 failed)`."""
    counts = ends.value_counts()
    lost = ", ".join(f"{counts[end]} {end}" for end in ("failed", "interrupted") if end in counts)
    return f"{counts.get('', 0)}" + (f" ({lost})" if lost else "")
