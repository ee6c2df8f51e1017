"""Tables as text: Markdown for reading, LaTeX (booktabs) for papers; and facts as csv."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from headwise.markdown import markdown_table

NOTHING = "–"  # an empty cell
COLUMN_WIDTH = 60  # letters of LaTeX's \small in a column of text, about
# Letters of a row -> size of the type.
SIZES = (
    (COLUMN_WIDTH, r"\small"),
    (75, r"\footnotesize\setlength{\tabcolsep}{3pt}"),
)
SMALLEST = r"\scriptsize\setlength{\tabcolsep}{3pt}"
LONG_NAME = 36  # letters of a row's name, behind which LaTeX breaks it
_LATEX = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': "''",
    "α": r"$\alpha$",
    "Δ": r"$\Delta$",
    "±": r"$\pm$",
    "×": r"$\times$",
    "→": r"$\rightarrow$",
    "−": r"$-$",
    "–": "--",
    "≤": r"$\leq$",
    "≥": r"$\geq$",
    "²": r"\textsuperscript{2}",
    "†": r"\textdagger{}",
}


@dataclass
class TextTable:
    """A table whose cells are text already.

    Attributes:
        title: what stands above it.
        corner: the head of the first column.
        groups: heads of the others: a label, and the names of the columns it spans; a group of one
            column without a name has its label alone.
        rows: a label and one text a column each.
        notes: below it.
    """

    title: str
    corner: str
    groups: list[tuple[str, list[str]]]
    rows: list[tuple[str, list[str]]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def heads(self) -> list[str]:
        """One text a column."""
        return [
            f"{label}: {name}" if name else label for label, names in self.groups for name in names
        ]

    def markdown(self) -> str:
        """Heading, table and notes."""
        rows = [[label, *cells] for label, cells in self.rows]
        table = markdown_table([self.corner, *self.heads], rows)
        notes = "".join(f"\n- {note}" for note in self.notes)
        return f"## {self.title}\n\n{table}\n" + (f"{notes}\n" if notes else "")

    def latex(self, label: str) -> str:
        r"""A `table` environment; the document needs \usepackage{booktabs}.

        A wide table is set smaller, and over both columns of a page that has two.

        Args:
            label: for \ref.
        """
        spans = [
            rf"\multicolumn{{{len(names)}}}{{c}}{{{latex(name)}}}" for name, names in self.groups
        ]
        is_grouped = any(name for _, names in self.groups for name in names)
        single = [latex(name) for name, _ in self.groups]
        head = [f" & {' & '.join(spans if is_grouped else single)} \\\\"]
        if is_grouped:
            head += [" ".join(self._rules()), f"{_joined([self.corner, *self._names()])} \\\\"]
        body = [f"{_first_cell(name)} & {_joined(cells)} \\\\" for name, cells in self.rows]
        width = self._width()
        kind = "table*" if width > COLUMN_WIDTH else "table"
        size = next((name for most, name in SIZES if width <= most), SMALLEST)
        notes = [rf"{latex(note)}\par" for note in self.notes]
        below = [r"\par\smallskip\parbox{\linewidth}{\footnotesize\raggedright", *notes, "}"]
        return "\n".join(
            [
                rf"\begin{{{kind}}}",
                rf"\centering{size}",
                rf"\caption{{{latex(self.title)}}}",
                rf"\label{{{label}}}",
                rf"\begin{{tabular}}{{l{'r' * len(self.heads)}}}",
                r"\toprule",
                *head,
                r"\midrule",
                *body,
                r"\bottomrule",
                r"\end{tabular}",
                *(below if notes else []),
                rf"\end{{{kind}}}",
                "",
            ]
        )

    def _width(self) -> int:
        """In letters, about."""
        first = max((min(len(name), LONG_NAME) for name, _ in self.rows), default=0)
        heads = [name or label for label, names in self.groups for name in names]
        cells = [[heads[i], *(row[i] for _, row in self.rows)] for i in range(len(heads))]
        return first + sum(max(map(len, column)) + 2 for column in cells)

    def _names(self) -> list[str]:
        return [name for _, names in self.groups for name in names]

    def _rules(self) -> list[str]:
        rules, first = [], 2
        for _, names in self.groups:
            rules.append(rf"\cmidrule(lr){{{first}-{first + len(names) - 1}}}")
            first += len(names)
        return rules


def latex(text: str) -> str:
    """Text that LaTeX prints as it stands, with pdflatex as well; line breaks become spaces."""
    return "".join(_LATEX.get(letter, letter) for letter in " ".join(text.split()))


def latex_comment(text: str) -> str:
    """The same as comment lines, in which nothing is escaped."""
    return "".join(f"% {line}".rstrip() + "\n" for line in text.splitlines())


def _first_cell(name: str) -> str:
    """A row's name; a long one as lines of a box, for which LaTeX needs no package."""
    if len(name) <= LONG_NAME:
        return latex(name)
    return rf"\parbox[t]{{0.36\linewidth}}{{\raggedright {latex(name)}\strut}}"


def _joined(cells: Sequence[str]) -> str:
    return " & ".join(map(latex, cells))


def csv_text(columns: Sequence[str], rows: Iterable[dict[str, Any]]) -> str:
    """Rows as csv; what a row does not say stays empty.

    Raises:
        ValueError: a row has a column that is not listed.
    """
    out = io.StringIO()
    writer = csv.DictWriter(out, list(columns), restval="", lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({name: "" if value is None else value for name, value in row.items()})
    return out.getvalue()
