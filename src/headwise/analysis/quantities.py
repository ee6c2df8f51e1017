"""The quantities of heads: names, formats, and how they are read off the tables of an analysis.

`head_facts` reads those of runs, for tables; `headwise.analysis.findings` compares some with
thresholds.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
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
SIGNIFICANT = 0.05  # largest p-value of a loss that counts
# Rows that a value is read off together: those of a run, its first site, each site, each layer of a
# site; or of each site, over runs of all seeds.
RUN, FIRST_SITE, SITE, LAYER, ALL_SEEDS = "run", "first site", "site", "layer", "all seeds"


@dataclass(frozen=True)
class Quantity:
    """A quantity of heads.

    Attributes:
        label: in tables.
        format: count, share (in per cent), fraction, number, correlation or small.
        table: that it is read off; None: a table with the column `effective_heads`.
        value: of rows of the table; NaN or None if it was not measured.
        scope: RUN, FIRST_SITE, SITE, LAYER or ALL_SEEDS.
    """

    label: str
    format: str
    table: Table | None
    value: Value
    scope: str = SITE

    def of(self, rows: Sequence[Row]) -> float | None:
        """The value of any rows of its table; None if it was not measured."""
        assert self.table is not None
        value = self.value(self.table.frame(rows))
        return None if pd.isna(value) else float(value)


def over(statistic: Callable[[Sequence[float]], float | None], column: str) -> Value:
    """The value that is a statistic of the numbers in a column; None without a number."""

    def value(rows: pd.DataFrame) -> float | None:
        numbers = rows[column].dropna().tolist()
        return statistic(numbers) if numbers else None

    return value


def has_role(heads: pd.DataFrame, role: str) -> pd.Series:
    """Which heads have a role."""
    return heads.roles.fillna("").map(lambda roles: role in roles.split(";"))


def _number_of(role: str) -> Value:
    """The number of heads with a role; None if no head was measured for it."""
    measured, _ = ROLES[role]
    return lambda heads: has_role(heads, role).sum() if heads[measured].notna().any() else None


def _of_largest_contrast(column: str) -> Value:
    """A value of the head whose question words differ most from the same in statements."""

    def value(heads: pd.DataFrame) -> Any:
        contrast = (heads.question_weight - heads.statement_weight.fillna(0)).dropna()
        return heads[column][contrast.idxmax()] if len(contrast) else None

    return value


def _order_of_all(number: int) -> Value:
    """Rank correlation of α at start and end (0), the lower (1) or upper end of its interval."""

    def value(alphas: pd.DataFrame) -> float | None:
        bounds = spearman_interval(alphas["first"].tolist(), alphas["last"].tolist())
        return bounds and bounds[number]

    return value


def _positional(role: str, offset: str) -> dict[str, Quantity]:
    peak, weight = over(max, f"{role}_share"), over(statistics.median, f"{role}_weight")
    label = f"highest share of a head's queries with peak at {offset}"
    return {
        f"{role}_heads": Quantity(f"heads at {offset}", "count", HEADS, _number_of(role), RUN),
        f"{role}_weight": Quantity(
            f"their weight at {offset}, median", "share", HEADS,
            lambda heads: weight(heads[has_role(heads, role)]), RUN,
        ),
        f"{role}_share": Quantity(label, "share", HEADS, peak, RUN),
    }  # fmt: skip


QUANTITIES = {  # in the order of tables
    **_positional("previous", "-1"),
    **_positional("next", "+1"),
    "merging_heads": Quantity(
        "merging heads of the encoder", "count", HEADS, _number_of("merging"), FIRST_SITE
    ),
    "merge_score_1": Quantity(
        "highest merge score", "share", HEADS, over(max, "merge_score"), FIRST_SITE
    ),
    "merge_score_2": Quantity(
        "second highest merge score", "share", HEADS,
        lambda heads: heads.merge_score.nlargest(2)[1:].max(), FIRST_SITE,
    ),
    "cluster_mass": Quantity(
        "highest mass inside the word", "share", HEADS, over(max, "cluster_mass"), FIRST_SITE
    ),
    "interrogation_heads": Quantity(
        "interrogation heads", "count", HEADS, _number_of("interrogation"), FIRST_SITE
    ),
    "question_weight": Quantity(
        "weight of question words on ?, head with the largest difference", "share", HEADS,
        _of_largest_contrast("question_weight"), FIRST_SITE,
    ),
    "statement_weight": Quantity(
        "its weight on the last token, same words in statements", "share", HEADS,
        _of_largest_contrast("statement_weight"), FIRST_SITE,
    ),
    "rare_share": Quantity(
        "highest share of sentences where a head points at the rarest token", "share", HEADS,
        over(max, "rare_share"), FIRST_SITE,
    ),
    "alpha": Quantity("α, mean", "number", HEADS, over(statistics.fmean, "alpha")),
    "alpha_fell": Quantity(
        "share of α that fall first", "share", TRAJECTORIES, over(statistics.fmean, "fell_first")
    ),
    "alpha_turned": Quantity(
        "number of α that turn and rise", "count", TRAJECTORIES,
        lambda alphas: came_back(alphas).sum(),
    ),
    "alpha_turned_at": Quantity(
        "update of their lowest value, median", "count", TRAJECTORIES,
        lambda alphas: alphas.lowest_update[came_back(alphas)].median(),
    ),
    "alpha_rise": Quantity(
        "rise of an α from its lowest value, largest", "number", TRAJECTORIES,
        lambda alphas: rise(alphas).max(),
    ),
    "alpha_order": Quantity(
        "rank correlation of α at start and end", "correlation", TRAJECTORIES,
        lambda alphas: spearman(alphas["first"], alphas["last"]),
    ),
    "alpha_order_all": Quantity(
        "rank correlation of α at start and end, all seeds", "correlation", TRAJECTORIES,
        _order_of_all(0), ALL_SEEDS,
    ),
    "alpha_order_low": Quantity(
        "its 95 % interval, lower end", "correlation", TRAJECTORIES, _order_of_all(1), ALL_SEEDS
    ),
    "alpha_order_high": Quantity(
        "its 95 % interval, upper end", "correlation", TRAJECTORIES, _order_of_all(2), ALL_SEEDS
    ),
    "alpha_groups": Quantity(
        "Sarle's coefficient of α at the end", "number", TRAJECTORIES, over(sarle, "last")
    ),
    "alpha_groups_p": Quantity(
        "two groups of α at the end, p", "fraction", TRAJECTORIES,
        over(p_value_of_two_groups, "last"), ALL_SEEDS,
    ),
    "density": Quantity("density, mean", "fraction", HEADS, over(statistics.fmean, "density")),
    "dense_queries": Quantity(
        "share of queries with density 1", "share", DENSITY,
        lambda bins: bins.n_queries[bins.low == 1].sum() / bins.n_queries.sum(),
    ),
    "density_spread": Quantity(
        "spread of the heads' densities in a layer", "number", HEADS,
        lambda heads: heads.groupby("layer").density.std().mean(),
    ),
    "confidence": Quantity(
        "confidence, median", "share", HEADS, over(statistics.median, "confidence")
    ),
    "diversity": Quantity(
        "diversity", "fraction", LAYERS, over(statistics.fmean, "diversity_heads"), LAYER
    ),
    "query_gradient": Quantity(
        "relative gradient of queries", "small", OTHERS,
        lambda others: others.value[others.statistic == "query_gradient"].mean(), LAYER,
    ),
    "effective_heads": Quantity(
        "effective heads", "count", None, over(max, "effective_heads"), RUN
    ),
}  # fmt: skip


def head_facts(runs: Sequence[Record], all_seeds: bool = False) -> list[dict[str, Any]]:
    """The quantities that were measured, as rows with quantity, site, layer and value.

    Args:
        runs: with an analysis; one, or several for the scope ALL_SEEDS.
        all_seeds: those of this scope, else all others.
    """
    frames: dict[str, pd.DataFrame] = {}
    rows = []
    for name, quantity in QUANTITIES.items():
        if (quantity.scope == ALL_SEEDS) != all_seeds:
            continue
        key = quantity.table.name if quantity.table else ""
        if key not in frames:
            frames[key] = _frame(quantity.table, runs)
        for site, layer, part in _parts(frames[key], quantity.scope):
            if pd.notna(value := quantity.value(part)):
                row = {"quantity": name, "site": site, "layer": layer, "value": float(value)}
                rows.append(row)
    return rows


def _frame(table: Table | None, runs: Sequence[Record]) -> pd.DataFrame:
    if table is None:
        return pd.DataFrame({"effective_heads": map(effective_heads, runs)})
    return table.frame([row for run in runs for row in table.read(run)])


def _parts(rows: pd.DataFrame, scope: str) -> Iterator[tuple[Any, Any, pd.DataFrame]]:
    """Yield site, layer and the rows that are read together."""
    if scope in (RUN, FIRST_SITE):
        yield None, None, rows if scope == RUN else rows[rows.site.isin(rows.site[:1])]
    elif scope == LAYER:
        for (site, layer), part in rows.groupby(["site", "layer"], sort=False):
            yield site, layer, part
    else:
        for site, part in rows.groupby("site", sort=False):
            yield site, None, part


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
