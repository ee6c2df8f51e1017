"""Common style of all figures, and how they are saved.

A figure is as wide as one or two columns of a paper. Series differ in colour, dashes and marker, so
that they are distinguishable without colours. Figures do not use pyplot, so there are no windows
and no global state between jobs of a process.
"""

from __future__ import annotations

import io
import logging
import math
import re
import textwrap
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib import font_manager, get_cachedir, style
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, MaxNLocator

from headwise.config.schema import SITE_NAMES
from headwise.files import replacing

P = ParamSpec("P")
T = TypeVar("T")

TWO_COLUMNS = 7.0  # width of two columns, in inches
DPI = 300
MAX_NAME = 120  # characters of a name
MAX_PIXELS = 25_000_000  # of a figure
FORMATS = ("png", "svg", "pdf")
INK, GREY = "#222222", "#595959"
REFERENCES = (1.0, 1.5, 2.0)  # α of softmax, 1.5-entmax and sparsemax
RULE_NAMES = {"alpha_entmax": "α-entmax", "entmax15": "1.5-entmax"}
RULES = ("alpha_entmax", "entmax15", "softmax")  # have the same style in every figure
COLOURS = sns.color_palette("colorblind", 8)
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "p")
DASHES = ("", (5, 1.5), (1.5, 1.2), (6, 1.5, 1.2, 1.5), (3, 1, 1, 1), (9, 2), (3, 3), (1, 1))
# DejaVu Sans is part of matplotlib; the others, if installed, have glyphs missing in it.
JAPANESE = ("Noto Sans CJK JP", "IPAexGothic", "Hiragino Sans", "Yu Gothic")
FONTS = ("DejaVu Sans", *JAPANESE, "Symbola", "Unifont")
GLYPH = r"Glyph (\d+) .*missing from"
STYLE: dict[str, Any] = {
    **sns.axes_style("ticks"),
    **sns.plotting_context("paper", font_scale=0.8),
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 7.5,
    "figure.titlesize": 8.5,
    "figure.titleweight": "bold",
    "figure.constrained_layout.use": True,
    "legend.frameon": False,
    "svg.hashsalt": "headwise",  # makes files reproducible
    "svg.fonttype": "path",
    "text.parse_math": False,  # names may have dollar signs
    "pdf.fonttype": 42,
}

_MISSING: set[str] = set()  # characters that were logged
log = logging.getLogger(__name__)
logging.getLogger("fontTools").setLevel(logging.ERROR)  # it logs every font of a PDF


@contextmanager
def failure_as_warning(name: str) -> Iterator[None]:
    """Log an exception in the drawing of a figure as one warning: results do not depend on it."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - a figure never blocks a result
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        log.warning("the figure %s is left out (%s)", name, drawable(reason, 200))


def styled(draw: Callable[P, T]) -> Callable[P, T]:
    """Decorate a drawing function to use the style of this file, and not the user's.

    Characters that no font has are logged once per process.
    """

    @wraps(draw)
    def drawn(*args: P.args, **kwargs: P.kwargs) -> T:
        installed = {font.name for font in font_manager.fontManager.ttflist}
        families = [name for name in FONTS if name in installed]
        ours: Any = {**STYLE, "font.family": families}
        with style.context(ours, after_reset=True), warnings.catch_warnings(record=True) as caught:
            warnings.filterwarnings("always", GLYPH)
            result = draw(*args, **kwargs)
        for other in (one for one in caught if not re.match(GLYPH, str(one.message))):
            warnings.warn_explicit(other.message, other.category, other.filename, other.lineno)
        glyphs = [glyph for one in caught for glyph in re.findall(GLYPH, str(one.message))]
        _warn_of_boxes({chr(int(glyph)) for glyph in glyphs})
        return result

    return drawn


def _warn_of_boxes(missing: set[str]) -> None:
    """Log characters that no font has, unless they are logged already."""
    if missing <= _MISSING:
        return
    _MISSING.update(missing)
    characters = drawable("".join(sorted(missing)), 40)
    fonts = "Noto Sans CJK JP (Chinese, Japanese, Korean), Symbola (emoji) or Unifont (others)"
    advice = f"install {fonts}, and delete {get_cachedir()}/fontlist-*.json"
    log.warning("figures have boxes for %s, which no font has: %s", characters, advice)


def display_name(name: str) -> str:
    """Return a name as it is drawn, with normalisers spelt as in papers."""
    rules = "|".join(RULE_NAMES)
    return drawable(re.sub(rf"\b({rules})\b", lambda match: RULE_NAMES[match[1]], name))


def drawable(text: str, longest: int = MAX_NAME) -> str:
    """Return a text in one line of at most `longest` characters; its middle may be left out."""
    text = re.sub(r"[\s\x00-\x1f]+", " ", text)
    end = longest // 3
    return text if len(text) <= longest else f"{text[: longest - 1 - end]}…{text[-end:]}"


def evenly(values: Sequence[T], most: int) -> list[T]:
    """Return at most `most` of the values, evenly spaced, with the first and the last."""
    places = np.linspace(0, len(values) - 1, min(most, len(values))).round().astype(int)
    return [values[place] for place in places]


def series_style(names: Iterable[str]) -> dict[str, Any]:
    """Return colours, markers and dashes of named series, as arguments of seaborn's line plots."""
    names = list(dict.fromkeys(names))
    others = [name for name in names if name not in RULES]
    index = {name: number for number, name in enumerate([*RULES, *others])}
    return {
        "hue_order": names,
        "style_order": names,
        "palette": {name: COLOURS[index[name] % 8] for name in names},
        # colours repeat after 8 series, with other markers and dashes
        "markers": {name: MARKERS[(index[name] + index[name] // 8) % 8] for name in names},
        "dashes": {name: DASHES[(index[name] + index[name] // 8) % 8] for name in names},
    }


def panels(
    table: pd.DataFrame,
    column: str,
    title: str,
    what: str = "",
    note: str = "",
    height: float = 2.4,
    **options: Any,
) -> tuple[Figure, list[tuple[Axes, pd.DataFrame]]]:
    """Create a figure with one panel per value of a column, and the table rows of each panel.

    Args:
        table: the data.
        column: each value has a panel, in order, at most three per line.
        title, note: above and below the panels.
        what: what was trained, for the title.
        height: of a row of panels, in inches.
        options: of matplotlib's `subplots`.
    """
    values = list(table[column].unique())
    n_columns = {4: 2}.get(len(values), min(3, len(values)))
    n_lines = -(-len(values) // n_columns)
    width = min(TWO_COLUMNS, 1.4 + 2.1 * n_columns)
    figure = Figure(figsize=(width, 0.6 + n_lines * height))
    title = f"{title} ({what})" if what else title
    figure.suptitle(textwrap.fill(drawable(title, int(width * 60)), int(width * 15)))
    figure.supxlabel(textwrap.fill(note, int(width * 20)), fontsize=6.5, color=GREY)
    grid = figure.subplots(n_lines, n_columns, squeeze=False, **{"sharey": True, **options})
    for axes, value in zip(grid.flat, values, strict=False):
        axes.set_title(SITE_NAMES.get(value, display_name(str(value))))
    for axes in grid.flat[len(values) :]:
        axes.remove()
    parts = [table[table[column] == value] for value in values]
    return figure, list(zip(grid.flat, parts, strict=False))


def mean_curves(axes: Axes, table: pd.DataFrame, x: str, y: str, series: str, **style: Any) -> None:
    """Draw means over runs with bands from minimum to maximum, where all runs have a value.

    Args:
        axes: to draw on.
        table: columns `run`, x, y and series; runs of one series differ only in their seed.
        style: from `series_style`, of all series of the figure.
    """
    n_runs = table.groupby(series)["run"].transform("nunique")
    n_measured = table.groupby([series, x])["run"].transform("nunique")
    sns.lineplot(
        table[n_runs == n_measured],
        x=x,
        y=y,
        hue=series,
        style=series,
        errorbar=("pi", 100),
        ax=axes,
        **style,
    )


def legend_right(drawn: Sequence[tuple[Axes, Any]], title: str | None = None) -> None:
    """Draw one legend for all panels, to the right of the last."""
    handles: dict[str, Any] = {}
    for axes, _ in drawn:
        handles |= dict(zip(*axes.get_legend_handles_labels()[::-1], strict=True))
        if legend := axes.get_legend():
            legend.remove()
    if handles:
        drawn[-1][0].legend(
            list(handles.values()),
            [SITE_NAMES.get(label, textwrap.fill(display_name(label), 40)) for label in handles],
            loc="center left",
            bbox_to_anchor=(1.0, 0.5),
            title=title,
        )


def update_axis(axes: Axes) -> None:
    """Format the x axis for updates: few ticks, such as 500 or 20k."""
    axes.xaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 2.5, 5, 10], integer=True))
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))


def integer_axis(axis: Axis) -> None:
    """Format an axis for layers or counts."""
    axis.set_major_locator(MaxNLocator(integer=True))


@styled
def save(figure: Figure, out: Path, formats: Sequence[str] = FORMATS) -> list[Path]:
    """Save a figure; equal figures give equal bytes.

    Args:
        figure: to save.
        out: path; a suffix of FORMATS is replaced by that of each format. The folder is created.
        formats: png, svg or pdf.

    Returns:
        The paths of the files; without those that failed.
    """
    out.parent.mkdir(parents=True, exist_ok=True)
    files = []
    for kind in formats:
        stem = out.stem if out.suffix[1:] in FORMATS else out.name  # may end with lr=0.5
        path = out.with_name(f"{stem}.{kind}")
        with failure_as_warning(path.name), replacing(path) as temporary:
            temporary.write_bytes(figure_bytes(figure, kind))
            files.append(path)
    return files


@styled
def figure_bytes(figure: Figure, kind: str) -> bytes:
    """Return a figure as png, svg or pdf, without a date; the larger, the fewer dots per inch."""
    dated: Mapping[str, dict[str, None]] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
    buffer = io.BytesIO()
    dpi = min(DPI, math.sqrt(MAX_PIXELS / figure.get_size_inches().prod()))
    figure.savefig(buffer, format=kind, metadata=dated.get(kind, {}), dpi=dpi)
    return buffer.getvalue()
