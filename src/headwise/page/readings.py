"""Page data of the readings of a model: names of tokens, and attention weights as compact text.

Axes: B batch, H heads, Q queries, K keys.

0 means exactly 0, NaN a masked key. Weights are rounded to eight binary digits, an error of at most
0.4 %: full precision would double the size of the page.
"""

from __future__ import annotations

import base64
import math
import zlib
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from headwise.analysis.observe import Observation
from headwise.attention.place import Site
from headwise.config.schema import SITE_KINDS
from headwise.plots.attention_maps import ROWS
from headwise.tasks.inspection import readings
from headwise.tasks.shown import Item, Picture, Shown
from headwise.tasks.task import TrainedRun

N_DIGITS = 8
Weights = npt.NDArray[np.float32]


def reading_contents(run: TrainedRun, items: Sequence[Item]) -> list[dict[str, Any]]:
    """Return, for each item, the run's output texts, the axes of its sites, and all weights."""
    return [
        {
            "texts": dict(reading.outputs),
            "axes": {site.name: _axes_content(site, reading) for site in run.model.sites},
            **weight_contents(reading.observations, reading.picture),
        }
        for reading in readings(run, [item.input for item in items])
    ]


def _axes_content(site: Site, reading: Shown) -> dict[str, Any]:
    axes = reading.axes(site)
    hint = f"{ROWS[SITE_KINDS[site.name]]} {axes.note}".strip()
    content = {"queries": axes.queries, "keys": axes.keys, "hint": hint}
    if (picture := reading.picture) is None:
        return content
    values = base64.b64encode(picture.values).decode("ascii")
    sizes = {"shape": picture.shape, "start": picture.n_start, "patch": picture.patch}
    return {**content, "view": {**sizes, "queries": reading.places, "values": values}}


def weight_contents(
    observations: Sequence[Observation], picture: Picture | None = None
) -> dict[str, Any]:
    """Return the shapes of the attentions of one item, and their packed weights.

    Heads with non-finite weights, or negative ones in distributions, are omitted. Weights of the
    channels of a pixel of a picture are summed.
    """
    blocks, weights = [], []
    for obs in observations:
        weights_HQK, allowed_HQK = obs.weights_BHQK[0], obs.allowed_BHQK[0]
        is_valid_H = obs.is_valid_H1[:, 0]
        weights.append(rounded(weights_HQK[is_valid_H], allowed_HQK[is_valid_H]))
        if picture is not None:
            weights[-1] = by_cell(weights[-1], picture.grid, picture.n_start)
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


def rounded(weights_HQK: Tensor, allowed_HQK: Tensor) -> Weights:
    """Round finite weights to `N_DIGITS` binary digits; NaN at masked keys.

    Args:
        weights_HQK: 0 at masked keys.
        allowed_HQK: True where a query may attend to a key.
    """
    fractions, exponents = np.frexp(weights_HQK.float().cpu().numpy())
    weights: Weights = np.ldexp(np.rint(fractions * 2**N_DIGITS) / 2**N_DIGITS, exponents)
    weights[~allowed_HQK.cpu().numpy()] = np.nan
    return weights


def by_cell(weights_HQK: Weights, shape: Sequence[int], n_start: int) -> Weights:
    """Return the weights (H, Q, n_start + cells): sums over the channels of a pixel.

    Values without a key are masked.

    Args:
        shape: rows, columns and channels of an image; (samples,) of a sequence.
        n_start: number of keys before the first value.
    """
    n_values, channels = math.prod(shape), shape[2] if len(shape) > 2 else 1
    missing = ((0, 0), (0, 0), (0, n_start + n_values - weights_HQK.shape[2]))
    padded_HQK = np.pad(weights_HQK, missing, constant_values=np.nan)
    cells = n_values // channels, channels
    cells_HQNC = padded_HQK[..., n_start:].reshape(*padded_HQK.shape[:2], *cells)
    sums_HQN = np.where(np.isnan(cells_HQNC).all(-1), np.nan, np.nansum(cells_HQNC, -1))
    return np.concatenate((padded_HQK[..., :n_start], sums_HQN.astype(np.float32)), -1)


def packed(weights: Iterable[Weights]) -> str:
    """Concatenate the weights of several attentions; zlib, then base64."""
    data = b"".join(block.astype("<f4").tobytes() for block in weights)
    return base64.b64encode(zlib.compress(data, 9)).decode("ascii")
