"""The quantities of the heads of a run, from the tables of its analysis."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd

from headwise.analysis.tables import DENSITY, HEADS, LAYERS, OTHERS, TRAJECTORIES, Row, Table
from headwise.analysis.trajectories import (
    came_back,
    p_value_of_two_groups,
    sarle,
    spearman,
    spearman_interval,
)
from headwise.runs.record import Record
from headwise.studies.pruning import effective_heads

Value = tuple[str, str | None, int | None, float | None]


def analysis_facts(run: Record) -> list[dict[str, Any]]:
    """Return every measured quantity of a run, from its pruning table and its analysis."""
    heads, layers = (_numbers(table, run) for table in (HEADS, LAYERS))
    first = heads[heads.site.isin(heads.site[:1])]
    values = [*_position_values(heads), *_word_values(first)]
    queries = _numbers(DENSITY, run)
    for site, rows in heads.groupby("site", sort=False):
        spread = rows.groupby("layer").density.std().mean()
        of_site = queries[queries.site == site]
        is_dense = of_site.low == 1
        values += [
            ("alpha", site, None, rows.alpha.mean()),
            ("density", site, None, rows.density.mean()),
            (
                "dense_queries",
                site,
                None,
                np.average(is_dense, weights=of_site.n_queries) if len(of_site) else math.nan,
            ),
            ("density_spread", site, None, spread),
            ("confidence", site, None, rows.confidence.median()),
        ]
    values += _trajectory_values(TRAJECTORIES.read(run))
    others = _numbers(OTHERS, run)
    gradients = others[others.statistic == "query_gradient"].groupby(["site", "layer"])
    means = gradients.value.mean().items()
    values += [("query_gradient", *place, mean) for place, mean in means]
    values += [("effective_heads", None, None, effective_heads(run))]
    values += [
        ("diversity", row.site, row.layer, row.diversity_heads) for row in layers.itertuples()
    ]
    return [
        {"quantity": quantity, "site": site, "layer": layer, "value": float(value)}
        for quantity, site, layer, value in values
        if value is not None and pd.notna(value)
    ]


def _numbers(table: Table, run: Record) -> pd.DataFrame:
    """Read a table of an analysis; NaN for numbers that were not measured."""
    floats = {name: float for name, kind in table.columns.items() if kind is float}
    return pd.DataFrame(table.read(run), columns=list(table.columns)).astype(floats)


def _position_values(heads: pd.DataFrame) -> Iterator[Value]:
    for role in ("previous", "next"):
        yield f"{role}_heads", None, None, _n_heads(heads, role, f"{role}_share")
        yield f"{role}_share", None, None, heads[f"{role}_share"].max()
        yield f"{role}_weight", None, None, heads[_has(heads, role)][f"{role}_weight"].median()


def _word_values(heads: pd.DataFrame) -> Iterator[Value]:
    """Yield quantities of merging, interrogation and rare-token heads of a site."""
    values = {
        "merging_heads": _n_heads(heads, "merging", "merge_score"),
        "interrogation_heads": _n_heads(heads, "interrogation", "question_weight"),
        "cluster_mass": heads.cluster_mass.max(),
        "rare_share": heads.rare_share.max(),
    }
    for rank, score in enumerate(heads.merge_score.nlargest(2), start=1):
        values[f"merge_score_{rank}"] = score
    contrast = (heads.question_weight - heads.statement_weight.fillna(0)).dropna()
    if len(contrast):  # of the head with the largest difference
        values |= heads.loc[contrast.idxmax(), ["question_weight", "statement_weight"]]
    yield from ((name, next(iter(heads.site), None), None, value) for name, value in values.items())


def _has(heads: pd.DataFrame, role: str) -> pd.Series:
    return heads.roles.fillna("").map(lambda roles: role in roles.split(";"))


def _n_heads(heads: pd.DataFrame, role: str, column: str) -> float:
    """Count the heads with a role; NaN if no head was measured for it."""
    return _has(heads, role).sum() if heads[column].notna().any() else math.nan


def facts_of_all_seeds(runs: Sequence[Record]) -> list[dict[str, Any]]:
    """Return what is measured over the heads of several runs together."""
    rows = [row for run in runs for row in TRAJECTORIES.read(run)]
    facts = []
    for site, at_site in _by_site(rows).items():
        first, last = ([row[name] for row in at_site] for name in ("first", "last"))
        names = ("alpha_order_all", "alpha_order_low", "alpha_order_high")
        order = spearman_interval(first, last)
        values: dict[str, float | None] = dict(zip(names, order, strict=True)) if order else {}
        values["alpha_groups_p"] = p_value_of_two_groups(last)
        facts += [
            {"quantity": quantity, "site": site, "layer": None, "value": value}
            for quantity, value in values.items()
            if value is not None
        ]
    return facts


def _by_site(rows: Sequence[Row]) -> dict[str, list[Row]]:
    by_site: dict[str, list[Row]] = {}
    for row in rows:
        by_site.setdefault(row["site"], []).append(row)
    return by_site


def _trajectory_values(rows: Sequence[Row]) -> Iterator[Value]:
    """Yield what α do over the training, by site."""
    for site, at_site in _by_site(rows).items():
        fell = [row["fell_first"] for row in at_site if row["fell_first"] is not None]
        turned = [row for row in at_site if came_back(row)]
        last = [row["last"] for row in at_site]
        values = {
            "alpha_fell": statistics.fmean(fell) if fell else None,
            "alpha_turned": len(turned),
            "alpha_turned_at": statistics.median(r["lowest_update"] for r in turned)
            if turned
            else None,
            "alpha_rise": max(row["last"] - row["lowest"] for row in at_site),
            "alpha_order": spearman([row["first"] for row in at_site], last),
            "alpha_groups": sarle(last),
        }
        yield from ((name, site, None, value) for name, value in values.items())
