"""Page data of the readings of a model: names of tokens, and attention weights.

Axes: B batch, H heads, Q queries, K keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headwise.analysis.observe import Observation
from headwise.config.schema import SITE_KINDS
from headwise.page.weights import packed, rounded
from headwise.plots.attention_maps import ROWS
from headwise.tasks.reading import Axes, Item
from headwise.tasks.task import TrainedRun


def reading_contents(run: TrainedRun, items: Sequence[Item]) -> list[dict[str, Any]]:
    """Return for each item the texts that the run wrote, the axes of its sites, and all weights."""
    contents: list[dict[str, Any]] = [{} for _ in items]
    for place, reading in run.task.readings(run, [item.text for item in items]):
        contents[place] = {
            "texts": dict(reading.texts),
            "axes": {site: _axes_content(site, axes) for site, axes in reading.axes.items()},
            **weight_contents(reading.seen),
        }
    return contents


def _axes_content(site: str, axes: Axes) -> dict[str, Any]:
    hint = f"{ROWS[SITE_KINDS[site]]} {axes.note}".strip()
    return {"queries": axes.queries, "keys": axes.keys, "hint": hint}


def weight_contents(observations: Sequence[Observation]) -> dict[str, Any]:
    """Return the shapes of the attentions of one item, and their packed weights.

    Heads with non-finite weights, or negative ones in distributions, are left out.
    """
    blocks, kept = [], []
    for seen in observations:
        weights_HQK, allowed_HQK = seen.weights_BHQK[0], seen.allowed_BHQK[0]
        is_valid_H = seen.is_valid_H1[:, 0]
        kept.append(rounded(weights_HQK[is_valid_H], allowed_HQK[is_valid_H]))
        numbers = zip(seen.head_numbers, is_valid_H.tolist(), strict=True)
        blocks.append(
            {
                "site": seen.site,
                "layer": seen.layer,
                "heads": [number for number, is_valid in numbers if is_valid],
                "shape": list(weights_HQK.shape[1:]),
                "signed": bool((kept[-1] < 0).any()),
            }
        )
    return {"blocks": blocks, "weights": packed(kept)}
