"""The look that all figures share, and how they are written.

Sizes are those of print: a figure is as wide as one or two columns of a paper and is put in
there unscaled, so that a font size here is one on paper. Series differ in hue, lightness, dashes,
marker and hatch at once, so that each can be told without colours. Nothing touches pyplot: no
window, no global state, any number of jobs in a process.
"""

from __future__ import annotations

import io
import logging
import math
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headwise.files import replacing
from headwise.schema import SITES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import ListedColormap
    from matplotlib.figure import Figure

SINGLE, DOUBLE = 3.3, 7.0  # width of one and of two columns, in inches
DPI = 300
FORMATS = ("png", "svg", "pdf")
FONT = "DejaVu Sans"  # comes with matplotlib
TITLE, LABEL, TICK, NOTE = 8.5, 7.5, 7.0, 6.5  # points
INK, GREY, GRID = "#222222", "#595959", "#c9c9c9"
MANY_UPDATES = 20  # measured, from which on no tick need be at one of them
REFERENCES = ((1.0, "softmax"), (1.5, "1.5-entmax"), (2.0, "sparsemax"))
RULE_NAMES = {"alpha_entmax": "α-entmax", "entmax15": "1.5-entmax"}

MOST_LETTERS = 20  # named, that no font has

log = logging.getLogger(__name__)

Dash = str | tuple[int, tuple[float, ...]]


@dataclass(frozen=True)
class Style:
    """How one series is drawn everywhere.

    Attributes:
        colour: of its lines, points and edges.
        fill: of its areas, light enough for a hatch.
        dash, marker, hatch: as matplotlib takes them.
    """

    colour: str
    fill: str
    dash: Dash
    marker: str
    hatch: str


# Hues that also the colour-blind tell apart; neighbours in this list differ in lightness.
STYLES = (
    Style("#0b3c6f", "#7fa3cc", "-", "o", ""),
    Style("#c2571a", "#f0c7a6", (0, (5, 1.5)), "s", "////"),
    Style("#5c5c5c", "#dedede", (0, (1.5, 1.2)), "^", "...."),
    Style("#1b7f5c", "#a9d8c5", (0, (6, 1.5, 1.2, 1.5)), "D", "\\\\\\\\"),
    Style("#4aa3df", "#cfe8f8", (0, (3, 1, 1, 1, 1, 1)), "v", "xxxx"),
    Style("#7b2d6b", "#d9b3d1", (0, (9, 2)), "P", "++++"),
    Style("#d9a400", "#f6e6a8", (0, (3, 3)), "X", "oooo"),
    Style("#222222", "#9a9a9a", (0, (1, 1)), "p", "----"),
)
OF_RULES = {"alpha_entmax": STYLES[0], "entmax15": STYLES[1], "softmax": STYLES[2]}
OF_SITES = {
    "encoder_self": STYLES[0],
    "decoder_self": STYLES[1],
    "cross": STYLES[3],
}


def styles_of(names: Iterable[str]) -> dict[str, Style]:
    """A style a name: the rules of the papers have the same in every figure."""
    names = list(dict.fromkeys(names))
    known = {name: OF_RULES[name] for name in names if name in OF_RULES}
    free = [style for style in STYLES if style not in known.values()]
    others = [name for name in names if name not in known]
    for place, name in enumerate(others):
        # after one round the hues come again, with other dashes and markers
        hue, form = free[place % len(free)], free[(place + place // len(free)) % len(free)]
        known[name] = Style(hue.colour, hue.fill, form.dash, form.marker, form.hatch)
    return known


def shown(name: str) -> str:
    """The name of a row, with the rules in it as papers write them."""
    rules = "|".join(RULE_NAMES)
    return re.sub(rf"\b({rules})\b", lambda found: RULE_NAMES[found[1]], name)


def known_sites(sites: Iterable[str]) -> list[str]:
    """The sites in the order of the model, others behind."""
    there = set(sites)
    return [site for site in SITES if site in there] + sorted(there - set(SITES))


def layer_colours(n_layers: int) -> ListedColormap:
    """One colour a layer along viridis, dark to light, whose light end is cut off."""
    from matplotlib import colormaps
    from matplotlib.colors import ListedColormap

    viridis = colormaps["viridis"]
    step = 0.86 / max(1, n_layers - 1)
    return ListedColormap([viridis(layer * step) for layer in range(n_layers)])


def layer_bar(figure: Figure, panels: Sequence[Axes], colours: ListedColormap) -> None:
    """Which colour is which layer, right of the panels."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import BoundaryNorm

    n_layers = colours.N
    edges = [layer + 0.5 for layer in range(n_layers + 1)]
    mappable = ScalarMappable(BoundaryNorm(edges, n_layers), colours)
    step = math.ceil(n_layers / 12)
    bar = figure.colorbar(mappable, ax=list(panels), aspect=30, pad=0.02)
    bar.set_ticks(list(range(1, n_layers + 1, step)), minor=False)
    bar.ax.minorticks_off()
    bar.ax.tick_params(length=0, labelsize=TICK, colors=INK)
    bar.set_label("layer", fontsize=LABEL, color=INK)
    bar.outline.set_visible(False)


def new_figure(width_inches: float, height_inches: float) -> Figure:
    """An empty figure that no window and no pyplot knows of."""
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    engine = ConstrainedLayoutEngine(w_pad=0.04, h_pad=0.04)  # inches
    return Figure(figsize=(width_inches, height_inches), layout=engine)


def headline(figure: Figure, title: str, note: str = "") -> None:
    """Say above the panels what is shown, and below them how to read it."""
    width = figure.get_size_inches()[0]
    title = textwrap.fill(title, int(width * 15))  # letters that fit
    figure.suptitle(title, fontsize=TITLE, color=INK, fontweight="bold")
    if note:
        lines = textwrap.fill(note, int(width * 20))
        figure.supxlabel(lines, fontsize=NOTE, color=GREY, linespacing=1.25)


def dress(axes: Axes, x: str = "", y: str = "", title: str = "") -> None:
    """The frame, the fonts and the words of a panel."""
    axes.set_title(title, fontsize=LABEL, color=INK)
    axes.set_xlabel(x, fontsize=LABEL, color=INK, labelpad=2)
    axes.set_ylabel(y, fontsize=LABEL, color=INK, labelpad=3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set(color=INK, linewidth=0.6)
    axes.tick_params(labelsize=TICK, colors=INK, width=0.6, length=2.5, pad=2)


def dress_updates(axes: Axes, measured: Iterable[float]) -> None:
    """A horizontal axis from update 0 on, with ticks where something was measured.

    Args:
        measured: updates. Where there are few, the last has a tick, and so have others that leave
            room for it; where there are many, round numbers will do.
    """
    from matplotlib.ticker import EngFormatter, FixedLocator, MaxNLocator

    axes.set_xlabel("update", fontsize=LABEL, color=INK, labelpad=2)
    places = sorted({0.0, *measured}, reverse=True)
    last = places[0] or 1.0
    room = 0.19 * last
    ticks = places[:1]
    for place in places[1:]:
        if ticks[-1] - place >= room and (place == 0 or place >= room):
            ticks.append(place)
    if len(places) > MANY_UPDATES:
        axes.xaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 2.5, 5, 10], integer=True))
    else:
        axes.xaxis.set_major_locator(FixedLocator(ticks[::-1]))
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.set_xlim(-0.04 * last, 1.04 * last)  # markers stand clear of both ends


def dress_layers(axes: Axes, n_layers: int) -> None:
    """A horizontal axis of layers, each named where there is room."""
    from matplotlib.ticker import FixedLocator

    axes.set_xlabel("layer", fontsize=LABEL, color=INK, labelpad=2)
    step = math.ceil(n_layers / 12)
    axes.xaxis.set_major_locator(FixedLocator(list(range(1, n_layers + 1, step))))
    axes.set_xlim(0.75, n_layers + 0.25)


def legend(axes: Axes, **options: Any) -> None:
    """The names of a panel's series, where they hide least."""
    given = {"frameon": False, "fontsize": TICK, "labelcolor": INK, "handlelength": 3.2}
    axes.legend(**{**given, **options})


def panels_width(n_panels: int) -> float:
    """Width in inches of a figure with a row of panels."""
    return min(DOUBLE, 1.2 + 2.1 * n_panels)


def number_of(count: int, what: str) -> str:
    """`1 seed`, `3 seeds`."""
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def typeset(labels: Sequence[Sequence[str]]) -> tuple[list[str], list[list[str]]]:
    """Fonts for names in any writing.

    Returns:
        Families to be tried in this order, and the names; one that no font of this machine has
        the letters for is replaced by its place, as `#3`.
    """
    from matplotlib import font_manager, ft2font

    lacking = {letter for names in labels for name in names for letter in name}
    families = []
    fonts = {
        font.name: font.fname
        for font in font_manager.fontManager.ttflist
        if not font.name.startswith("Last Resort")  # has a box for every letter
        and font.style == "normal"
        and font.weight in (400, "normal", "regular", "book")
    }
    fonts[FONT] = font_manager.findfont(FONT)
    for name in sorted(fonts, key=lambda name: (name != FONT, "CJK" not in name, name)):
        if not lacking:
            break
        held = {chr(code) for code in ft2font.FT2Font(fonts[name]).get_charmap()}
        if name == FONT or lacking & held:
            families.append(name)
            lacking -= held
    if lacking:
        _warn_of_letters("".join(sorted(lacking)))
    shown_names = [
        [f"#{place}" if lacking & set(name) else name for place, name in enumerate(names, start=1)]
        for names in labels
    ]
    return families or [FONT], shown_names


@cache
def _warn_of_letters(lacking: str) -> None:
    log.warning(
        "no font here has %s: what is written with them is drawn as its place, #3 for the third. "
        "Install one (Noto Sans CJK for Japanese) and draw again",
        lacking if len(lacking) <= MOST_LETTERS else f"{lacking[:MOST_LETTERS]}…",
    )


def save(figure: Figure, out: Path, formats: Sequence[str] = FORMATS) -> tuple[Path, ...]:
    """Write a figure; the same figure gives the same bytes.

    Args:
        out: where; its suffix is replaced by that of each format. Its folder is made.
    """
    from matplotlib import rc_context

    out.parent.mkdir(parents=True, exist_ok=True)
    # a fixed salt and no date, else every drawing would be another file
    dated: Mapping[str, dict[str, None]] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
    # laid out once, not for each format anew
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    files = []
    for kind in formats:
        drawn = io.BytesIO()
        settings = rc_context(
            {"svg.hashsalt": "headwise", "svg.fonttype": "path", "pdf.fonttype": 42}
        )
        with settings, _quiet_subsetting():
            figure.savefig(drawn, format=kind, dpi=DPI, metadata=dated.get(kind, {}))
        path = out.with_name(f"{out.stem}.{kind}")
        with replacing(path) as temporary:
            temporary.write_bytes(drawn.getvalue())
        files.append(path)
    return tuple(files)


@contextmanager
def _quiet_subsetting() -> Iterator[None]:
    """Without what fontTools tells of every font that a pdf holds."""
    logger = logging.getLogger("fontTools.subset")
    level = logger.level
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(level)
