"""Page data of the readings of a model: names of tokens, and attention weights.

Axes: B batch, H heads, Q queries, K keys.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any

from headwise.analysis.observe import Observation
from headwise.config.schema import SITE_KINDS
from headwise.page.weights import by_cell, packed, rounded
from headwise.plots.attention_maps import ROWS
from headwise.tasks.inspection import readings
from headwise.tasks.reading import Axes, Item
from headwise.tasks.task import TrainedRun


def reading_contents(run: TrainedRun, items: Sequence[Item]) -> list[dict[str, Any]]:
    """Return, for each item, the run's output texts, the axes of its sites, and all weights."""
    return [
        {
            "texts": dict(reading.texts),
            "axes": {site: _axes_content(site, axes) for site, axes in reading.axes.items()},
            **weight_contents(reading.observations, reading.axes),
        }
        for reading in readings(run, [item.input for item in items])
    ]


def _axes_content(site: str, axes: Axes) -> dict[str, Any]:
    hint = f"{ROWS[SITE_KINDS[site]]} {axes.note}".strip()
    content = {"queries": axes.queries, "keys": axes.keys, "hint": hint}
    if (view := axes.view) is None:
        return content
    values = base64.b64encode(view.values).decode("ascii")
    sizes = {"shape": view.shape, "queries": view.queries, "start": view.n_start}
    sizes |= {"patch": view.patch}
    return {**content, "view": {**sizes, "values": values}}


def weight_contents(
    observations: Sequence[Observation], axes: Mapping[str, Axes] | None = None
) -> dict[str, Any]:
    """Return the shapes of the attentions of one item, and their packed weights.

    Heads with non-finite weights, or negative ones in distributions, are omitted.

    Args:
        axes: by site; weights of the channels of a pixel are summed if there is a view.
    """
    blocks, weights = [], []
    for obs in observations:
        weights_HQK, allowed_HQK = obs.weights_BHQK[0], obs.allowed_BHQK[0]
        is_valid_H = obs.is_valid_H1[:, 0]
        weights.append(rounded(weights_HQK[is_valid_H], allowed_HQK[is_valid_H]))
        view = axes[obs.site].view if axes else None
        if view is not None:
            weights[-1] = by_cell(weights[-1], view.grid, view.n_start)
        numbers = zip(obs.head_numbers, is_valid_H.tolist(), strict=True)
        blocks.append(
            {
                "site": obs.site,
                "layer": obs.layer,
                "heads": [number for number, is_valid in numbers if is_valid],
                "shape": list(weights[-1].shape[1:]),
                "signed": bool((weights[-1] < 0).any()),
            }
        )
    return {"blocks": blocks, "weights": packed(weights)}
