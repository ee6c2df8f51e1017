"""What the pruning tables of a run say: `headwise prune run=… table=true` writes them.

Heads are masked in order of importance, without training (Michel et al. 2019).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from headwise.runs.record import Record

SIGNIFICANT = 0.05  # largest p-value of a loss that counts


def effective_heads(run: Record) -> int | None:
    """Count the heads of all sites that are left before the first significant loss.

    Heads are removed in order of importance, without training. Significant: p below 0.05 in the
    paired bootstrap against all heads. None if the run has no curve (`prune run=… table=true`).
    """
    curve, left = run.json("pruning/curve.json"), None
    for row in curve.get("rows", ()):  # from all heads to none
        if row["difference"] < 0 and row["p_value"] < SIGNIFICANT:
            break
        left = sum(row[site] for site in curve["sites"])
    return left


def pruning_tables(run: Record, kind: str) -> Iterator[dict[str, Any]]:
    """Yield the tables of a kind (curve, one_removed, one_left) that `headwise prune` wrote."""
    yield from map(run.json, run.names(f"pruning/{kind}*.json"))
