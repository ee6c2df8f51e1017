"""Tables as text: Markdown for reading, LaTeX (booktabs) for papers; and facts as csv."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

NOTHING = "–"  # an empty cell
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
        lines = [[self.corner, *self.heads], ["---", *("---:" for _ in self.heads)]]
        lines += [[label, *cells] for label, cells in self.rows]
        table = "\n".join(f"| {' | '.join(map(_markdown_cell, line))} |" for line in lines)
        notes = "".join(f"\n- {note}" for note in self.notes)
        return f"## {self.title}\n\n{table}\n" + (f"{notes}\n" if notes else "")

    def latex(self, label: str) -> str:
        r"""A `table` environment; the document needs \usepackage{booktabs}.

        Args:
            label: for \ref.
        """
        n_columns = len(self.heads)
        spans = [
            rf"\multicolumn{{{len(names)}}}{{c}}{{{latex(name)}}}" for name, names in self.groups
        ]
        is_grouped = any(name for _, names in self.groups for name in names)
        single = [latex(name) for name, _ in self.groups]
        head = [f" & {' & '.join(spans if is_grouped else single)} \\\\"]
        if is_grouped:
            head += [" ".join(self._rules()), f"{_joined([self.corner, *self._names()])} \\\\"]
        body = [f"{_joined([name, *cells])} \\\\" for name, cells in self.rows]
        notes = [rf"\par\footnotesize {latex(note)}" for note in self.notes]
        return "\n".join(
            [
                r"\begin{table}",
                r"\centering\small",
                rf"\caption{{{latex(self.title)}}}",
                rf"\label{{{label}}}",
                rf"\begin{{tabular}}{{l{'r' * n_columns}}}",
                r"\toprule",
                *head,
                r"\midrule",
                *body,
                r"\bottomrule",
                r"\end{tabular}",
                *notes,
                r"\end{table}",
                "",
            ]
        )

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


def _joined(cells: Sequence[str]) -> str:
    return " & ".join(map(latex, cells))


def _markdown_cell(text: str) -> str:
    return re.sub(r"\s+", " ", text).replace("|", r"\|")


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
