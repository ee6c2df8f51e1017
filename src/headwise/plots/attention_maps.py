"""Attention of all heads on one sentence: one heat map per head, one row of maps per layer.

Axes: H heads, Q queries, K keys.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.colors import LinearSegmentedColormap, ListedColormap
from matplotlib.figure import Figure

from headwise.config.schema import SITE_KINDS, SITE_NAMES
from headwise.plots.style import GREY, drawable, evenly, styled

KEY_SPACING = 0.11  # inches from one key to the next
MAX_CHARACTERS = 12  # characters shown of a token
MAX_TOKENS = 60  # drawn of a longer text: its first
MAX_MAPS = 100  # drawn of a deeper model: those of evenly spaced layers
# With a jump at 0: the smallest weight is clearly darker than white. Negative weights are brown.
COLOURS = LinearSegmentedColormap.from_list(
    "weights", [(0, "#5c2300"), (0.5, "#f3c9a5"), (0.5, "#c3d9ee"), (1, "#0a2a52")], N=1024
)
MASKED_COLOUR = ListedColormap(["#e4e4e4"])
ROWS = {  # by kind of site
    "self": "Rows: queries. Columns: keys that they attend to.",
    "causal": "Rows: input tokens of each step. Columns: tokens that they attend to.",
    "cross": "Rows: tokens to be generated. Columns: encoder tokens that they attend to.",
}


@dataclass(frozen=True)
class LayerMaps:
    """The weights of one layer on one sentence.

    Attributes:
        layer: from 1.
        heads: their numbers in the unpruned model.
        weights_HQK: exactly 0 is drawn white.
        allowed_HQK: False at masked keys, which are grey.
        alphas: of the heads; None for a head without α.
    """

    layer: int
    heads: Sequence[int]
    weights_HQK: npt.NDArray[np.float64]
    allowed_HQK: npt.NDArray[np.bool_]
    alphas: Sequence[float | None]


@styled
def attention_maps(
    site: str,
    layers: Sequence[LayerMaps],
    queries: Sequence[str],
    keys: Sequence[str],
    title: str,
    about: str = "",
) -> Figure | None:
    """Draw the heads of a site, one row per layer; the figure grows with the sentence.

    Args:
        site: name of the site.
        layers: in ascending order.
        queries: names of the rows of each map.
        keys: names of the columns of each map.
        title: the text.
        about: model and origin of the text, for the note.

    Returns:
        The figure; None if there are no heads, queries or keys.
    """
    layers = [layer for layer in layers if len(layer.heads)]
    if not layers or not queries or not keys:
        return None
    if max(len(queries), len(keys)) > MAX_TOKENS:
        about += f" Of {len(queries):,} × {len(keys):,} tokens the first {MAX_TOKENS} are drawn."
        queries, keys = queries[:MAX_TOKENS], keys[:MAX_TOKENS]
    if sum(len(layer.heads) for layer in layers) > MAX_MAPS:
        about += f" Of {len(layers)} layers some are drawn."
        layers = evenly(layers, max(1, MAX_MAPS // max(len(layer.heads) for layer in layers)))
    largest = max(1.0, *(float(np.abs(layer.weights_HQK).max()) for layer in layers))
    shades: Any = {"vmin": -largest, "vmax": largest, "interpolation": "nearest"}
    n_columns = max(len(layer.heads) for layer in layers)
    longest = max(map(len, _short(keys)))
    height = len(layers) * (KEY_SPACING * len(queries) + 0.05 * longest + 0.35) + 0.9
    width = max(5.0, n_columns * (KEY_SPACING * len(keys) + 0.2) + 1.5)
    figure = Figure(figsize=(width, height))
    name = SITE_NAMES.get(site, site)
    shown = ": ".join(filter(None, (name, drawable(title, int(width * 60)))))
    figure.suptitle(textwrap.fill(shown, int(width * 15)))
    note = f"{ROWS[SITE_KINDS[site]]} White: weight exactly 0. Grey: masked. {about}"
    figure.supxlabel(textwrap.fill(note, int(width * 20)), fontsize=6.5, color=GREY)
    grid = figure.subplots(len(layers), n_columns, squeeze=False)
    for line, layer in zip(grid, layers, strict=True):
        for index, axes in enumerate(line):
            if index >= len(layer.heads):
                axes.remove()
                continue
            place = np.s_[index, : len(queries), : len(keys)]
            weights_QK, allowed_QK = layer.weights_HQK[place], layer.allowed_HQK[place]
            # images, since meshes are a path per cell in an svg; weights of exactly 0 are not drawn
            axes.imshow(np.ma.masked_array(~allowed_QK, allowed_QK), cmap=MASKED_COLOUR, **shades)
            axes.imshow(np.ma.masked_array(weights_QK, weights_QK == 0), cmap=COLOURS, **shades)
            axes.set_xticks(range(len(keys)), _short(keys))
            axes.set_yticks(range(len(queries)), _short(queries))
            axes.tick_params(length=0, labelsize=6, pad=1, labelleft=index == 0)
            axes.tick_params(axis="x", labelrotation=90)
            axes.spines[:].set(visible=True, color=GREY, linewidth=0.5)
            alpha = layer.alphas[index]
            label = "" if alpha is None else f", α {alpha:.2f}"
            axes.set_title(f"layer {layer.layer} head {layer.heads[index]}{label}")
    bar = figure.colorbar(grid[0, 0].images[-1], ax=grid, shrink=0.6, aspect=30, pad=0.01)
    bar.set_label("weight")
    if not any((layer.weights_HQK < 0).any() for layer in layers):
        bar.ax.set_ylim(0, largest)
    return figure


def _short(names: Sequence[str]) -> list[str]:
    return [drawable(name, MAX_CHARACTERS) for name in names]
