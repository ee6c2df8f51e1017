"""Attention of all heads on one sentence: a map a head, in pages that fit a paper.

Letters: H heads, Q queries, K keys.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from headwise.analysis.figure_style import (
    DOUBLE,
    GREY,
    INK,
    NOTE,
    TICK,
    TITLE,
    typeset,
)
from headwise.schema import SITE_NAMES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import LinearSegmentedColormap
    from matplotlib.figure import Figure

PAGE_HEIGHT = 9.0  # inches, as the text of a page
SMALLEST, LARGEST = 5.0, 6.5  # points of the pieces' names
MOST_PITCH = 11.0  # points from one key to the next
MOST_LETTERS = 12  # of a piece
MARGIN, GAP, HEAD_TITLE, LEGEND, LINE = 0.08, 0.1, 0.17, 0.55, 0.13  # inches
LEGEND_WIDTH, BAR_WIDTH = 5.1, 1.3
BAR_TICKS = (0.05, 0.25, 0.5, 1.0)
BARRED, BARRED_FILL = "#a8a8a8", "#f3f3f3"  # hatch and ground of what may not be seen
ROWS = {
    "encoder_self": "A row is the piece that looks, a column the piece it looks at.",
    "decoder_self": "A row is the piece just read, a column the piece it looks at.",
    "cross": "A row is the piece being written, a column the piece of the source it looks at.",
}
WORD_START = "▁"

Weights = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class LayerMaps:
    """The weights of one layer on one sentence.

    Attributes:
        layer: from 1.
        heads: their numbers in the unpruned model.
        weights_HQK: 0 is empty in the figure, and nothing else is.
        allowed_HQK: False where a query may not see a key, which is hatched.
        alphas: of the heads; None where one has none.
    """

    layer: int
    heads: Sequence[int]
    weights_HQK: Weights
    allowed_HQK: Flags
    alphas: Sequence[float | None]


Line = tuple[LayerMaps, range]  # places of the heads in a line


@dataclass(frozen=True)
class _Layout:
    """Sizes in inches, of type in points."""

    n_columns: int
    pitch: float  # from key to key
    font: float
    query_names: float
    key_names: float
    map_width: float
    map_height: float

    @property
    def line_height(self) -> float:
        return HEAD_TITLE + self.map_height + self.key_names + GAP

    @property
    def width(self) -> float:
        maps = self.n_columns * (self.map_width + GAP)
        return max(LEGEND_WIDTH, 2 * MARGIN + 0.2 + self.query_names + maps)


def attention_maps(
    site: str,
    layers: Sequence[LayerMaps],
    queries: Sequence[str],
    keys: Sequence[str],
    title: str,
    about: str = "",
) -> list[Figure]:
    """The heads of a site, layers below each other, in as many pages as they need.

    As many heads stand side by side as leave the names of the pieces legible in print: four of a
    sentence of some 18 pieces, two of 37. Short sentences make better figures.

    Args:
        site: whose heads these are.
        layers: in ascending order.
        queries, keys: names of the rows and of the columns of each map.
        title: what was read.
        about: the model and where the text is from, for the note.

    Returns:
        Pages; none where there are no heads.
    """
    layers = [layer for layer in layers if len(layer.heads)]
    if not layers or not queries or not keys:
        return []
    families, (queries, keys, (printable,)) = typeset([_short(queries), _short(keys), [title]])
    title = title if printable == title else ""  # no font has its letters
    layout = _layout(max(len(layer.heads) for layer in layers), queries, keys)
    notes = textwrap.wrap(about, int(layout.width * 19))
    pages = list(_pages(layers, layout, LEGEND + LINE * len(notes)))
    largest = max(1.0, *(float(np.abs(layer.weights_HQK).max()) for layer in layers))
    figures = []
    for number, page in enumerate(pages, start=1):
        part = f" ({number} of {len(pages)})" if len(pages) > 1 else ""
        name = SITE_NAMES.get(site, site)
        drawing = _Page(site, layout, families, queries, keys, largest, notes)
        figures.append(drawing.draw(page, f"{name[0].upper()}{name[1:]}{part}", title))
    return figures


def _short(names: Sequence[str]) -> list[str]:
    return [n if len(n) <= MOST_LETTERS else n[: MOST_LETTERS - 1] + "…" for n in names]


def _layout(n_heads: int, queries: Sequence[str], keys: Sequence[str]) -> _Layout:
    """As many columns as leave the smallest type; one where none does."""
    for n_columns in range(min(n_heads, 8), 0, -1):
        # the names take room of their own, which grows with the type
        query_names = max(map(len, queries)) * 0.62 * LARGEST / 72 + 0.06
        room = DOUBLE - 2 * MARGIN - 0.2 - query_names - n_columns * GAP
        pitch = min(MOST_PITCH, 72 * room / n_columns / len(keys))
        font = min(LARGEST, 0.86 * pitch)
        if font >= SMALLEST:
            break
    return _Layout(
        n_columns,
        pitch / 72,
        font,
        query_names,
        max(map(len, keys)) * 0.62 * font / 72 + 0.06,
        len(keys) * pitch / 72,
        len(queries) * pitch / 72,
    )


def _pages(
    layers: Sequence[LayerMaps], layout: _Layout, legend_height: float
) -> Iterator[list[Line]]:
    """Lines of heads that go on one page; a layer is cut only where it fills more than one."""
    n_fitting = max(1, int((PAGE_HEIGHT - legend_height - 0.4) / layout.line_height))
    page: list[Line] = []
    for layer in layers:
        places = range(len(layer.heads))
        lines = [
            (layer, places[start : start + layout.n_columns])
            for start in range(0, len(places), layout.n_columns)
        ]
        if page and len(page) + len(lines) > n_fitting:
            yield page
            page = []
        for line in lines:
            if len(page) == n_fitting:
                yield page
                page = []
            page.append(line)
    yield page


@dataclass(frozen=True)
class _Page:
    """Draws one page; places are counted in inches from its top left."""

    site: str
    layout: _Layout
    families: Sequence[str]
    queries: Sequence[str]
    keys: Sequence[str]
    largest: float
    notes: Sequence[str]

    def draw(self, lines: Sequence[Line], name: str, title: str) -> Figure:
        from matplotlib.figure import Figure

        layout = self.layout
        titles = textwrap.wrap(": ".join(filter(None, (name, title))), int(layout.width * 15))
        top = 0.08 + 0.16 * len(titles)
        legend_height = LEGEND + LINE * len(self.notes)
        height = top + len(lines) * layout.line_height + legend_height
        figure = Figure(figsize=(layout.width, height))
        figure.text(
            0.5,
            1 - 0.05 / height,
            "\n".join(titles),
            ha="center",
            va="top",
            fontsize=TITLE,
            fontweight="bold",
            color=INK,
            family=list(self.families),
        )
        for number, (layer, places) in enumerate(lines):
            down = top + number * layout.line_height + HEAD_TITLE
            self._draw_line(figure, layer, places, down)
            self._name_layer(figure, layer.layer, down)
        self._draw_legend(figure, legend_height, [layer for layer, _ in lines])
        return figure

    def _draw_line(self, figure: Figure, layer: LayerMaps, places: range, down: float) -> None:
        """Heads of a layer beside each other."""
        layout = self.layout
        left = MARGIN + 0.2 + layout.query_names
        for column, place in enumerate(places):
            x = left + column * (layout.map_width + GAP)
            axes = self._axes(figure, x, down, layout.map_width, layout.map_height)
            alpha = layer.alphas[place]
            title = f"head {layer.heads[place]}" + ("" if alpha is None else f", α {alpha:.2f}")
            axes.set_title(title, fontsize=TICK, color=INK, pad=2)
            self._draw_map(axes, layer.weights_HQK[place], layer.allowed_HQK[place])
            self._name_pieces(axes, with_queries=column == 0)

    def _name_layer(self, figure: Figure, layer: int, y: float) -> None:
        width, height = figure.get_size_inches()
        figure.text(
            (MARGIN + 0.02) / width,
            1 - (y + self.layout.map_height / 2) / height,
            f"layer {layer}",
            rotation=90,
            ha="left",
            va="center",
            fontsize=TICK,
            fontweight="bold",
            color=INK,
        )

    def _axes(self, figure: Figure, x: float, y: float, width: float, height: float) -> Axes:
        whole_width, whole_height = figure.get_size_inches()
        bottom = 1 - (y + height) / whole_height
        box = (x / whole_width, bottom, width / whole_width, height / whole_height)
        return figure.add_axes(box)

    def _draw_map(self, axes: Axes, weights_QK: Weights, allowed_QK: Flags) -> None:
        """Cells of their own colour: what is zero is not drawn at all."""
        from matplotlib.collections import PolyCollection

        n_queries, n_keys = weights_QK.shape
        rows, columns = np.nonzero(weights_QK)
        axes.add_collection(
            PolyCollection(
                list(_cells(rows, columns)),
                facecolors=_colours()(np.abs(weights_QK[rows, columns]) / self.largest),
                edgecolors="white",
                linewidths=0.25,
            )
        )
        rows, columns = np.nonzero(weights_QK < 0)
        axes.plot(columns + 0.5, rows + 0.5, linestyle="none", marker="_", color="black", ms=2.5)
        rows, columns = np.nonzero(~allowed_QK)
        if len(rows):
            axes.add_collection(
                PolyCollection(
                    list(_cells(rows, columns)),
                    facecolors=BARRED_FILL,
                    edgecolors=BARRED,
                    hatch="//////",
                    linewidths=0,
                )
            )
        axes.set(xlim=(0, n_keys), ylim=(n_queries, 0))
        axes.spines[:].set(color=GREY, linewidth=0.5)

    def _name_pieces(self, axes: Axes, with_queries: bool) -> None:
        named: dict[str, Any] = {
            "fontsize": self.layout.font,
            "color": INK,
            "family": list(self.families),
        }
        places = [place + 0.5 for place in range(len(self.keys))]
        axes.set_xticks(places, self.keys, rotation=90, **named)
        places = [place + 0.5 for place in range(len(self.queries))]
        if with_queries:
            axes.set_yticks(places, self.queries, **named)
        else:
            axes.set_yticks([])
        axes.tick_params(length=0, pad=1.5)

    def _draw_legend(
        self, figure: Figure, legend_height: float, layers: Sequence[LayerMaps]
    ) -> None:
        """What the cells mean, at the bottom."""
        from matplotlib.patches import Rectangle

        width, height = figure.get_size_inches()
        axes = self._axes(figure, 0.0, height - legend_height, width, legend_height)
        axes.set(xlim=(0, width), ylim=(0, legend_height))
        axes.axis("off")
        words: dict[str, Any] = {"fontsize": NOTE, "color": GREY, "va": "center"}
        y, size = legend_height - 0.15, 0.1
        is_signed = any((layer.weights_HQK < 0).any() for layer in layers)
        is_barred = any((~layer.allowed_HQK).any() for layer in layers)
        x = max(MARGIN, (width - 3.3 - 0.6 * is_signed - 0.95 * is_barred) / 2)
        axes.add_patch(Rectangle((x, y), size, size, fill=False, ec=GREY, lw=0.5))
        axes.text(x + 0.15, y + size / 2, "weight exactly 0", **words)
        x += 1.1
        self._draw_bar(axes, x, y, size)
        told = f"above 0 to {self.largest:.3g}" + ("; –: below 0" if is_signed else "")
        axes.text(x + BAR_WIDTH + 0.12, y + size / 2, told, **words)
        if is_barred:
            x += BAR_WIDTH + 0.97 + 0.6 * is_signed
            axes.add_patch(
                Rectangle((x, y), size, size, fc=BARRED_FILL, ec=BARRED, hatch="//////", lw=0)
            )
            axes.text(x + 0.15, y + size / 2, "may not be seen", **words)
        begins = any(piece.startswith(WORD_START) for piece in (*self.queries, *self.keys))
        told = ROWS.get(self.site, ROWS["encoder_self"])
        told += f" {WORD_START} begins a word." if begins else ""
        for number, line in enumerate([told, *self.notes]):
            axes.text(width / 2, legend_height - 0.42 - LINE * number, line, ha="center", **words)

    def _draw_bar(self, axes: Axes, x: float, y: float, height: float) -> None:
        """Which colour is which weight."""
        from matplotlib.patches import Rectangle

        n_steps = 60
        step = BAR_WIDTH / n_steps
        for place in range(n_steps):
            colour = _colours()(place / (n_steps - 1))
            axes.add_patch(
                Rectangle((x + step * place, y), 1.05 * step, height, color=colour, lw=0)
            )
        ticks = BAR_TICKS if self.largest == 1 else [self.largest * tick for tick in BAR_TICKS]
        for tick in ticks:
            at = x + BAR_WIDTH * tick / self.largest
            axes.plot([at, at], [y, y - 0.03], color=GREY, linewidth=0.5)
            name = f"{tick:.2g}"
            axes.text(at, y - 0.045, name, fontsize=NOTE, color=GREY, ha="center", va="top")


def _cells(rows: npt.NDArray[np.int64], columns: npt.NDArray[np.int64]) -> Weights:
    """Corners of cells, (N, 4, 2)."""
    corners = np.array([[0, 0], [1, 0], [1, 1], [0, 1]], dtype=np.float64)
    return np.stack((columns, rows), axis=-1)[:, None, :] + corners


def _colours() -> LinearSegmentedColormap:
    """Ever darker; the smallest weight is clearly darker than paper."""
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("weights", ["#c3d9ee", "#5b8fc4", "#0a2a52"])
