"""Tables of text as Markdown and LaTeX (booktabs)."""

from __future__ import annotations

import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from headwise.markdown import markdown_table

EMPTY = "–"  # text of an empty cell
ARROWS = {1: "↑", -1: "↓"}  # which way a score is better, by the sign of its metric
ARROW_NOTE = "↑: higher is better, ↓: lower is better."
DECIMALS = {1: 2, -1: 3}  # of per cent and of losses and bits
_MATHS = {
    **{"α": r"\alpha", "Δ": r"\Delta", "±": r"\pm", "×": r"\times", "→": r"\rightarrow"},
    **{"↑": r"\uparrow", "↓": r"\downarrow", "−": "-", "≤": r"\leq", "≥": r"\geq", "²": "^2"},
    **{"†": r"\dagger", "<": "<", ">": ">", "|": "|"},
}
_ESCAPED = {letter: f"\\{letter}" for letter in "{}&%$#_"}
_WORDS = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
_LATEX = {**{k: f"${v}$" for k, v in _MATHS.items()}, **_ESCAPED, **_WORDS, "–": "--", '"': "''"}


def mean_and_deviation(values: Sequence[float], decimals: int = 2) -> str:
    """Format `12.34 ± 0.56`; a single value has no deviation."""
    mean = f"{statistics.fmean(values):.{decimals}f}"
    return f"{mean} ± {statistics.stdev(values):.{decimals}f}" if len(values) > 1 else mean


def signed(value: float, decimals: int = 2) -> str:
    """Format a difference: `+0.12`, `−0.12`, and `0.00` without a sign."""
    text = f"{value:+.{decimals}f}".replace("-", "−")
    return text if float(f"{value:.{decimals}f}") else text[1:]


def interval(bounds: tuple[float, float] | None, decimals: int = 2) -> str:
    """Format `[−0.12 to +0.34]`; a dash for None."""
    return EMPTY if bounds is None else f"[{' to '.join(signed(x, decimals) for x in bounds)}]"


@dataclass
class TextTable:
    """A table of text.

    Attributes:
        title: may be empty.
        frame: one text per cell; the index names the rows, the columns have one name or (group,
            name), where the name may be empty.
        notes: below the table.
        bold: which cells are bold, as an array of the frame's shape; None: none.
    """

    title: str
    frame: pd.DataFrame
    notes: list[str] = field(default_factory=list)
    bold: np.ndarray | None = None

    @property
    def headers(self) -> list[str]:
        """Headers of the columns."""
        return [": ".join(filter(None, names)) for names in self._names()]

    @property
    def rows(self) -> list[tuple[str, list[str]]]:
        """Name and texts of each row."""
        return [(str(name), list(cells)) for name, *cells in self.frame.itertuples(name=None)]

    def _names(self) -> list[tuple[str, ...]]:
        return [name if isinstance(name, tuple) else (name,) for name in self.frame.columns]

    def markdown(self) -> str:
        """Return heading, table and notes as Markdown."""
        frame = self.frame
        if self.bold is not None:
            frame = frame.mask(self.bold, "**" + frame + "**")
        rows = [list(map(str, cells)) for cells in frame.itertuples(name=None)]
        table = markdown_table(["", *self.headers], rows)
        notes = "".join(f"\n- {note}" for note in self.notes)
        heading = f"## {self.title}\n\n" if self.title else ""
        return f"{heading}{table}\n" + (f"{notes}\n" if notes else "")

    def latex(self, label: str) -> str:
        r"""Return a `table` environment; the document needs \usepackage{booktabs,adjustbox}.

        A table wider than the text is scaled down.

        Args:
            label: for \ref.
        """
        frame = self.frame.map(latex)
        names = [tuple(map(latex, name)) for name in self._names()]
        is_grouped = any(len(name) > 1 and name[1] for name in names)
        frame.columns = (
            pd.MultiIndex.from_tuples(names) if is_grouped else [name[0] for name in names]
        )
        frame.index = [latex(name) for name, _ in self.rows]
        styler = frame.style
        if self.bold is not None:
            styler.apply(lambda _: np.where(self.bold, "textbf:--rwrap", ""), axis=None)
        body = styler.to_latex(
            hrules=True, multicol_align="c", column_format=f"l{'r' * len(names)}"
        )
        caption = f"\\caption{{{latex(self.title)}}}\n" if self.title else ""
        notes = "".join(f"{latex(note)}\\par\n" for note in self.notes)
        below = f"\\par\\smallskip\\parbox{{\\linewidth}}{{\\footnotesize\\raggedright\n{notes}}}\n"
        return (
            f"\\begin{{table}}\n\\centering\n{caption}"
            f"\\label{{{label}}}\n\\begin{{adjustbox}}{{max width=\\linewidth}}\n{body}"
            f"\\end{{adjustbox}}\n{below if notes else ''}\\end{{table}}\n"
        )


def latex(text: str) -> str:
    """Escape text for LaTeX (pdflatex included); line breaks become spaces."""
    return "".join(_LATEX.get(letter, letter) for letter in " ".join(text.split()))


def latex_comment(text: str) -> str:
    """Return text as LaTeX comment lines, unescaped."""
    return re.sub(r"(?m)^", "% ", text.rstrip()).replace("% \n", "%\n") + "\n" if text else ""
