"""Tables of text; the text of cells is escaped in Markdown and LaTeX."""

import re

import numpy as np
import pandas as pd
import pytest

from headwise.studies.render import (
    TextTable,
    interval,
    latex,
    latex_comment,
    signed,
)

NASTY = r"50 % of a_b & c{d} #1 $x$ ~ ^ \emph|y| <α ± 1> → Δ×"


@pytest.fixture
def table():
    heads = [("one|two", "paper"), ("one|two", "ours"), ("alone", "")]
    rows = [["1.0", "2.0 ± 0.1", NASTY], ["–", "3", "4\n5"]]
    frame = pd.DataFrame(rows, index=["α_1", "b"], columns=pd.MultiIndex.from_tuples(heads))
    return TextTable("A title with 100 %", frame, ["a note & more"])


def cells(line):
    return re.split(r"(?<!\\)\|", line)[1:-1]


def test_markdown_has_one_cell_per_column_in_every_line(table):
    lines = [line for line in table.markdown().splitlines() if line.startswith("|")]
    assert [len(cells(line)) for line in lines] == [4] * 4
    assert [cell.strip() for cell in cells(lines[0])] == [
        "", r"one\|two: paper", r"one\|two: ours", "alone",
    ]  # fmt: skip
    assert cells(lines[3])[3].strip() == "4 5"
    assert "\n- a note & more\n" in table.markdown()


def unescaped(text):
    """The text that LaTeX prints."""
    printed = {
        r"\textbackslash{}": "\\", r"\textasciitilde{}": "~", r"\textasciicircum{}": "^",
        "$|$": "|", "$<$": "<", "$>$": ">", r"$\alpha$": "α",
        r"$\pm$": "±", r"$\rightarrow$": "→", r"$\Delta$": "Δ", r"$\times$": "×",
    }  # fmt: skip
    pattern = "|".join(map(re.escape, printed))
    return re.sub(rf"({pattern})|\\([%_&{{}}#$])", lambda m: printed[m[1]] if m[1] else m[2], text)


def test_latex_is_escaped():
    assert unescaped(latex(NASTY)) == NASTY
    bare = re.sub(r"\\[%_&{}#$]|\\text\w+\{\}|\$(\\\w+|[<>|])\$", "", latex(NASTY))
    assert not set(bare) & set("%_&{}#$~^\\")


def test_latex_rows_have_one_cell_per_column(table):
    text = table.latex("tab:x")
    body = text[text.index(r"\midrule") : text.index(r"\bottomrule")].splitlines()[1:]
    assert [len(re.findall(r"(?<!\\)&", line)) for line in body] == [3, 3]
    assert all(line.endswith(r"\\") for line in body)
    assert r"\begin{tabular}{lrrr}" in text
    assert r"\multicolumn{2}{c}{one$|$two}" in text
    for name in ("table", "adjustbox", "tabular"):
        assert text.count(rf"\begin{{{name}}}") == text.count(rf"\end{{{name}}}") == 1


def test_every_line_of_a_latex_comment_is_commented():
    assert latex_comment("a\nb % c") == "% a\n% b % c\n"


def test_bold_cells_are_bold_in_both_formats(table):
    table.bold = np.array([[False, True, False], [False, False, False]])
    assert table.markdown().count("**") == 2
    assert "**2.0 ± 0.1**" in table.markdown()
    assert r"\textbf{2.0 $\pm$ 0.1}" in table.latex("tab:x")
    assert table.latex("tab:x").count("textbf") == 1


def test_differences_have_a_sign_unless_rounded_to_zero():
    assert [signed(0.0123, 4), signed(-0.0123, 4)] == ["+0.0123", "−0.0123"]
    assert [signed(-0.001), signed(1.0)] == ["0.00", "+1.00"]
    assert [interval(x, 1) for x in (None, (-0.25, 1.0))] == ["–", "[−0.2 to +1.0]"]
