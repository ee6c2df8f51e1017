"""What goes with α: rank correlations over the heads of a site."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

STATISTICS = (
    "density",
    "entropy",
    "confidence",
    "output_norm",
    "previous_weight",
    "merge_score",
    "importance_normalised",
)
FEWEST_HEADS = 5  # of four, each order comes about once in 24 times


def correlation_rows(heads: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Spearman's correlation of α with each other statistic, over the heads of each site.

    Args:
        heads: rows of the table of heads.

    Returns:
        Rows of the table of correlations. Left out is what fewer than five heads have, and what
        is the same at all of them.
    """
    frame = pd.DataFrame(heads, columns=["site", "alpha", *STATISTICS])
    rows = []
    for site, own in frame.groupby("site", sort=False):
        for statistic in STATISTICS:
            pairs = own[["alpha", statistic]].dropna()
            if len(pairs) >= FEWEST_HEADS:
                found = spearman(pairs["alpha"], pairs[statistic])
                rows.append({
                    "site": site, "statistic": statistic, "n_heads": len(pairs), "spearman": found
                })  # fmt: skip
    return [row for row in rows if row["spearman"] is not None]


def spearman(one: Iterable[float], other: Iterable[float]) -> float | None:
    """Rank correlation, ties sharing the mean of their ranks; None where a side is constant."""
    ranks = pd.DataFrame({"one": list(one), "other": list(other)}, dtype=float)
    found = float(ranks.corr("spearman").loc["one", "other"])
    return None if math.isnan(found) else found


def by_chance(n_heads: int) -> float:
    """How large a correlation between unrelated values gets once in twenty times, about."""
    return 1.96 / math.sqrt(n_heads - 1)
