"""The quantities of heads: names, formats, and how they are read off the tables of an analysis.

`head_facts` reads those of runs, for tables; `headwise.analysis.findings` compares some with
thresholds.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import pandas as pd

from headwise.analysis.roles import ROLES
from headwise.analysis.tables import DENSITY, HEADS, LAYERS, OTHERS, TRAJECTORIES, Row, Table
from headwise.analysis.trajectories import (
    came_back,
    p_value_of_two_groups,
    rise,
    sarle,
    spearman,
    spearman_interval,
)
from headwise.runs.record import Record

Value = Callable[[pd.DataFrame], Any]
# Rows that a value is read off together: those of a run, of its first site, of each site, of each
# layer of a site; or of each site, over runs of all seeds.
RUN, FIRST, SITE, LAYER, SEEDS = "run", "first site", "site", "layer", "site, all seeds"
SIGNIFICANT = 0.05  # largest p-value of a loss that counts


@dataclass(frozen=True)
class Quantity:
    """A quantity of heads.

    Attributes:
        label: in tables.
        format: count, share (in per cent), fraction, number, correlation or small.
        table: that it is read off; None: one with the column `effective_heads`.
        value: of rows of the table; NaN or None if it was not measured.
        scope: RUN, FIRST, SITE, LAYER or SEEDS.
    """

    label: str
    format: str
    table: Table | None
    value: Value
    scope: str = SITE

    def of(self, rows: Iterable[Row]) -> float | None:
        """The value of any rows of its table; None if it was not measured."""
        assert self.table is not None
        value = self.value(self.table.frame(rows))
        return None if pd.isna(value) else float(value)


def _over(statistic: Callable[[Sequence[float]], float | None], column: str) -> Value:
    """A statistic of the numbers in a column; None without a number."""
    return lambda rows: statistic(values) if (values := rows[column].dropna().tolist()) else None


def _mean(column: str) -> Value:
    return _over(statistics.fmean, column)


def _max(column: str) -> Value:
    return lambda rows: rows[column].max()


def _having(heads: pd.DataFrame, role: str) -> pd.DataFrame:
    return heads[heads.roles.fillna("").map(lambda roles: role in roles.split(";"))]


def _number(role: str) -> Value:
    """The number of heads with a role; None if no head was measured for it."""
    column, _ = ROLES[role]
    return lambda heads: len(_having(heads, role)) if heads[column].notna().any() else None


def _weight_of(role: str) -> Value:
    """The median weight, at the offset of a role, of the heads with it."""
    return lambda heads: _having(heads, role)[f"{role}_weight"].median()


def _positional(role: str, at: str) -> dict[str, Quantity]:
    peak = f"highest share of a head's queries with peak at {at}"
    weight = _weight_of(role)
    return {
        f"{role}_heads": Quantity(f"heads at {at}", "count", HEADS, _number(role), RUN),
        f"{role}_weight": Quantity(f"their weight at {at}, median", "share", HEADS, weight, RUN),
        f"{role}_share": Quantity(peak, "share", HEADS, _max(f"{role}_share"), RUN),
    }


def _of_largest_contrast(column: str) -> Value:
    """A value of the head whose question words differ most from the same in statements."""

    def value(heads: pd.DataFrame) -> Any:
        contrast = (heads.question_weight - heads.statement_weight.fillna(0)).dropna()
        return heads[column][contrast.idxmax()] if len(contrast) else None

    return value


def _order(end: int) -> Value:
    """The rank correlation of α at start and end (0), or an end of its interval (1, 2)."""

    def value(alphas: pd.DataFrame) -> float | None:
        bounds = spearman_interval(alphas["first"].tolist(), alphas["last"].tolist())
        return bounds and bounds[end]

    return value


QUANTITIES = {  # in the order of tables
    **_positional("previous", "-1"),
    **_positional("next", "+1"),
    "merging_heads": Quantity(
        "merging heads of the encoder", "count", HEADS, _number("merging"), FIRST),
    "merge_score_1": Quantity("highest merge score", "share", HEADS, _max("merge_score"), FIRST),
    "merge_score_2": Quantity("second highest merge score", "share", HEADS,
        lambda heads: heads.merge_score.nlargest(2)[1:].max(), FIRST),
    "cluster_mass": Quantity(
        "highest mass inside the word", "share", HEADS, _max("cluster_mass"), FIRST),
    "interrogation_heads": Quantity(
        "interrogation heads", "count", HEADS, _number("interrogation"), FIRST),
    "question_weight": Quantity(
        "weight of question words on ?, head with the largest difference", "share", HEADS,
        _of_largest_contrast("question_weight"), FIRST),
    "statement_weight": Quantity(
        "its weight on the last token, same words in statements", "share", HEADS,
        _of_largest_contrast("statement_weight"), FIRST),
    "rare_share": Quantity(
        "highest share of sentences where a head points at the rarest token", "share", HEADS,
        _max("rare_share"), FIRST),
    "alpha": Quantity("α, mean", "number", HEADS, _mean("alpha")),
    "alpha_fell": Quantity(
        "share of α that fall first", "share", TRAJECTORIES, _mean("fell_first")),
    "alpha_turned": Quantity("number of α that turn and rise", "count", TRAJECTORIES,
        lambda alphas: came_back(alphas).sum()),
    "alpha_turned_at": Quantity("update of their lowest value, median", "count", TRAJECTORIES,
        lambda alphas: alphas.lowest_update[came_back(alphas)].median()),
    "alpha_rise": Quantity("rise of an α from its lowest value, largest", "number", TRAJECTORIES,
        lambda alphas: rise(alphas).max()),
    "alpha_order": Quantity("rank correlation of α at start and end", "correlation", TRAJECTORIES,
        lambda alphas: spearman(alphas["first"], alphas["last"])),
    "alpha_order_all": Quantity("rank correlation of α at start and end, all seeds",
        "correlation", TRAJECTORIES, _order(0), SEEDS),
    "alpha_order_low": Quantity(
        "its 95 % interval, lower end", "correlation", TRAJECTORIES, _order(1), SEEDS),
    "alpha_order_high": Quantity(
        "its 95 % interval, upper end", "correlation", TRAJECTORIES, _order(2), SEEDS),
    "alpha_groups": Quantity(
        "Sarle's coefficient of α at the end", "number", TRAJECTORIES, _over(sarle, "last")),
    "alpha_groups_p": Quantity("two groups of α at the end, p", "fraction", TRAJECTORIES,
        _over(p_value_of_two_groups, "last"), SEEDS),
    "density": Quantity("density, mean", "fraction", HEADS, _mean("density")),
    "dense_queries": Quantity("share of queries with density 1", "share", DENSITY,
        lambda bins: bins.n_queries[bins.low == 1].sum() / (bins.n_queries.sum() or math.nan)),
    "density_spread": Quantity("spread of the heads' densities in a layer", "number", HEADS,
        lambda heads: heads.groupby("layer").density.std().mean()),
    "confidence": Quantity(
        "confidence, median", "share", HEADS, _over(statistics.median, "confidence")),
    "diversity": Quantity("diversity", "fraction", LAYERS, _mean("diversity_heads"), LAYER),
    "query_gradient": Quantity("relative gradient of queries", "small", OTHERS,
        lambda others: others.value[others.statistic == "query_gradient"].mean(), LAYER),
    "effective_heads": Quantity("effective heads", "count", None, _max("effective_heads"), RUN),
}  # fmt: skip


def head_facts(runs: Sequence[Record], all_seeds: bool = False) -> list[dict[str, Any]]:
    """The quantities that were measured, as rows with quantity, site, layer and value.

    Args:
        runs: with an analysis; one, or several for the scope SEEDS.
        all_seeds: those of this scope, else all others.
    """
    frame = cache(lambda table: _frame(table, runs))
    return [
        {"quantity": name, "site": site, "layer": layer, "value": float(value)}
        for name, quantity in QUANTITIES.items()
        if (quantity.scope == SEEDS) == all_seeds
        for (site, layer, *_), rows in _parts(frame(quantity.table), quantity.scope)
        if pd.notna(value := quantity.value(rows))
    ]


def _frame(table: Table | None, runs: Sequence[Record]) -> pd.DataFrame:
    if table is None:
        return pd.DataFrame({"effective_heads": map(effective_heads, runs)})
    return table.frame([row for run in runs for row in table.read(run)])


def _parts(rows: pd.DataFrame, scope: str) -> list[tuple[tuple[Any, ...], pd.DataFrame]]:
    """Pairs of site and layer, and the rows that are read together."""
    if scope == RUN:
        return [((None, None), rows)]
    if scope == FIRST:
        return [((None, None), rows[rows.site.isin(rows.site[:1])])]
    groups = rows.groupby(["site", "layer"] if scope == LAYER else ["site"], sort=False)
    return [((*place, None), part) for place, part in groups]


def effective_heads(run: Record) -> int | None:
    """Count the heads of all sites that are left before the first significant loss.

    Heads are masked in order of importance, without training (Michel et al. 2019). Significant: p
    below 0.05 in the paired bootstrap against all heads. None if the run has no curve
    (`headwise prune run=… table=true`).
    """
    curve, left = run.json("pruning/curve.json"), None
    for row in curve.get("rows", ()):  # from all heads to none
        if row["difference"] < 0 and row["p_value"] < SIGNIFICANT:
            break
        left = sum(row[site] for site in curve["sites"])
    return left
