"""The quantities of the heads of a run, from the tables of its analysis."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import pandas as pd

from headwise.analysis.tables import DENSITY, HEADS, LAYERS, OTHERS, TRAJECTORIES, Table
from headwise.analysis.trajectories import (
    MIN_RISE,
    p_value_of_two_groups,
    sarle,
    spearman,
    spearman_interval,
)
from headwise.runs.record import Record
from headwise.studies.pruning import effective_heads

Facts = list[dict[str, Any]]  # quantity, site, layer and value
Value = tuple[str, float | None]


def analysis_facts(run: Record) -> Facts:
    """Return every measured quantity of a run, from its pruning table and its analysis."""
    heads, layers, queries = (_numbers(table, [run]) for table in (HEADS, LAYERS, DENSITY))
    of_run = [*_position_values(heads), *_word_values(heads[heads.site.isin(heads.site[:1])])]
    facts = _facts([*of_run, ("effective_heads", effective_heads(run))])
    n_queries = queries.groupby("site").n_queries.sum()
    n_dense = (queries.n_queries * (queries.low == 1)).groupby(queries.site).sum()
    for site, rows in heads.groupby("site", sort=False):
        values = {
            "alpha": rows.alpha.mean(),
            "density": rows.density.mean(),
            "dense_queries": (n_dense / n_queries).get(site),
            "density_spread": rows.groupby("layer").density.std().mean(),
            "confidence": rows.confidence.median(),
        }
        facts += _facts(values.items(), site)
    for site, rows in _numbers(TRAJECTORIES, [run]).groupby("site", sort=False):
        facts += _facts(_trajectory_values(rows), site)
    others = _numbers(OTHERS, [run])
    gradients = others[others.statistic == "query_gradient"].groupby(["site", "layer"])
    for (site, layer), mean in gradients.value.mean().items():
        facts += _facts([("query_gradient", mean)], site, layer)
    for row in layers.itertuples():
        facts += _facts([("diversity", row.diversity_heads)], row.site, row.layer)
    return facts


def facts_of_all_seeds(runs: Sequence[Record]) -> Facts:
    """Return what is measured over the heads of several runs together."""
    facts: Facts = []
    for site, rows in _numbers(TRAJECTORIES, runs).groupby("site", sort=False):
        first, last = rows["first"].tolist(), rows["last"].tolist()
        names = ("alpha_order_all", "alpha_order_low", "alpha_order_high")
        order = zip(names, spearman_interval(first, last) or (), strict=False)
        facts += _facts([*order, ("alpha_groups_p", p_value_of_two_groups(last))], site)
    return facts


def _facts(values: Any, site: Any = None, layer: Any = None) -> Facts:
    """Return the facts of quantities and values; those that were not measured are left out."""
    return [
        {"quantity": quantity, "site": site, "layer": layer, "value": float(value)}
        for quantity, value in values
        if pd.notna(value)
    ]


def _numbers(table: Table, runs: Sequence[Record]) -> pd.DataFrame:
    """Read a table of the analysis of runs; NaN for numbers that were not measured."""
    floats = {name: float for name, kind in table.columns.items() if kind is float}
    rows = [row for run in runs for row in table.read(run)]
    return pd.DataFrame(rows, columns=list(table.columns)).astype(floats)


def _position_values(heads: pd.DataFrame) -> Iterator[Value]:
    for role in ("previous", "next"):
        yield f"{role}_heads", _n_heads(heads, role, f"{role}_share")
        yield f"{role}_share", heads[f"{role}_share"].max()
        yield f"{role}_weight", heads[_has(heads, role)][f"{role}_weight"].median()


def _word_values(heads: pd.DataFrame) -> Iterator[Value]:
    """Yield quantities of merging, interrogation and rare-token heads of a site."""
    yield "merging_heads", _n_heads(heads, "merging", "merge_score")
    yield "interrogation_heads", _n_heads(heads, "interrogation", "question_weight")
    yield "cluster_mass", heads.cluster_mass.max()
    yield "rare_share", heads.rare_share.max()
    for rank, score in enumerate(heads.merge_score.nlargest(2), start=1):
        yield f"merge_score_{rank}", score
    contrast = (heads.question_weight - heads.statement_weight.fillna(0)).dropna()
    if len(contrast):  # of the head with the largest difference
        yield from heads.loc[contrast.idxmax(), ["question_weight", "statement_weight"]].items()


def _has(heads: pd.DataFrame, role: str) -> pd.Series:
    return heads.roles.fillna("").map(lambda roles: role in roles.split(";"))


def _n_heads(heads: pd.DataFrame, role: str, column: str) -> float:
    """Count the heads with a role; NaN if no head was measured for it."""
    return _has(heads, role).sum() if heads[column].notna().any() else math.nan


def _trajectory_values(rows: pd.DataFrame) -> Iterator[Value]:
    """Yield what α do over the training, at one site."""
    rise = rows["last"] - rows.lowest
    yield "alpha_fell", rows.fell_first.dropna().mean()
    yield "alpha_turned", (rise >= MIN_RISE).sum()
    yield "alpha_turned_at", rows.lowest_update[rise >= MIN_RISE].median()
    yield "alpha_rise", rise.max()
    yield "alpha_order", spearman(rows["first"], rows["last"])
    yield "alpha_groups", sarle(rows["last"].tolist())
