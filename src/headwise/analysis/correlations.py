"""What goes with α: rank correlations over the heads of a site."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

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
        Rows of the table of correlations. Left out is what fewer than four heads have, and what
        is the same at all of them.
    """
    rows = []
    for site in dict.fromkeys(head["site"] for head in heads):
        for statistic in STATISTICS:
            pairs = [
                (head["alpha"], head[statistic])
                for head in heads
                if head["site"] == site
                and head.get("alpha") is not None
                and head.get(statistic) is not None
            ]
            found = spearman(*zip(*pairs, strict=True)) if len(pairs) >= FEWEST_HEADS else None
            if found is not None:
                rows.append(
                    {
                        "site": site,
                        "statistic": statistic,
                        "n_heads": len(pairs),
                        "spearman": found,
                    }
                )
    return rows


def spearman(one: Sequence[float], other: Sequence[float]) -> float | None:
    """Rank correlation, ties sharing the mean of their ranks; None where a side is constant."""
    ranks = [_ranks(one), _ranks(other)]
    deviations = [rank - rank.mean() for rank in ranks]
    scale = math.sqrt(float((deviations[0] ** 2).sum() * (deviations[1] ** 2).sum()))
    return float((deviations[0] * deviations[1]).sum()) / scale if scale else None


def _ranks(values: Sequence[float]) -> npt.NDArray[np.float64]:
    _, places, counts = np.unique(np.asarray(values), return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    ranks: npt.NDArray[np.float64] = (last - (counts - 1) / 2)[places]
    return ranks


def by_chance(n_heads: int) -> float:
    """How large a correlation between unrelated values gets once in twenty times, about."""
    return 1.96 / math.sqrt(n_heads - 1)
