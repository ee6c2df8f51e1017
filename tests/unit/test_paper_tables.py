"""Tables as Markdown, LaTeX and csv: nothing that a cell holds can break them."""

from __future__ import annotations

import csv
import io
import re

import pytest

from headwise.report.tables import TextTable, csv_text, latex, latex_comment

NASTY = r"50 % of a_b & c{d} #1 $x$ ~ ^ \emph|y| <α ± 1> → Δ×"


@pytest.fixture
def table() -> TextTable:
    return TextTable(
        "A title with 100 %",
        "row",
        [("one|two", ["paper", "ours"]), ("alone", [""])],
        [("α_1", ["1.0", "2.0 ± 0.1", NASTY]), ("b", ["–", "3", "4\n5"])],
        ["a note & more"],
    )


def cells(line: str) -> list[str]:
    return re.split(r"(?<!\\)\|", line)[1:-1]


def test_markdown_has_one_cell_a_column_in_every_line(table: TextTable) -> None:
    lines = [line for line in table.markdown().splitlines() if line.startswith("|")]
    assert [len(cells(line)) for line in lines] == [4] * 4
    assert [cell.strip() for cell in cells(lines[0])] == [
        "row", r"one\|two: paper", r"one\|two: ours", "alone",
    ]  # fmt: skip
    assert cells(lines[3])[3].strip() == "4 5"
    assert "\n- a note & more\n" in table.markdown()


def unescaped(text: str) -> str:
    """What LaTeX would print."""
    printed = {
        r"\textbackslash{}": "\\", r"\textasciitilde{}": "~", r"\textasciicircum{}": "^",
        r"\textbar{}": "|", r"\textless{}": "<", r"\textgreater{}": ">", r"$\alpha$": "α",
        r"$\pm$": "±", r"$\rightarrow$": "→", r"$\Delta$": "Δ", r"$\times$": "×",
    }  # fmt: skip
    pattern = "|".join(map(re.escape, printed))
    return re.sub(rf"({pattern})|\\([%_&{{}}#$])", lambda m: printed[m[1]] if m[1] else m[2], text)


def test_latex_prints_what_was_written() -> None:
    assert unescaped(latex(NASTY)) == NASTY
    bare = re.sub(r"\\[%_&{}#$]|\\text\w+\{\}|\$\\\w+\$", "", latex(NASTY))
    assert not set(bare) & set("%_&{}#$~^\\")


def test_latex_rows_have_one_cell_a_column(table: TextTable) -> None:
    text = table.latex("tab:x")
    body = text[text.index(r"\midrule") : text.index(r"\bottomrule")].splitlines()[1:]
    assert [len(re.findall(r"(?<!\\)&", line)) for line in body] == [3, 3]
    assert all(line.endswith(r"\\") for line in body)
    assert r"\begin{tabular}{lrrr}" in text
    assert r"\multicolumn{2}{c}{one\textbar{}two}" in text
    assert r"\cmidrule(lr){2-3} \cmidrule(lr){4-4}" in text
    for name in ("table*", "tabular"):
        assert text.count(rf"\begin{{{name}}}") == text.count(rf"\end{{{name}}}") == 1


def test_a_table_without_groups_has_one_head_line() -> None:
    table = TextTable("t", "", [("a", [""]), ("b", [""])], [("x", ["1", "2"])])
    assert "multicolumn" not in table.latex("l")
    assert " & a & b \\\\\n\\midrule" in table.latex("l")


def test_a_wide_table_takes_the_width_of_a_page_and_long_names_are_broken() -> None:
    name, cell = (
        "a name that is longer than a column of names ought to be",
        "−1.64 [−2.30 to −0.90]",
    )
    narrow = TextTable("t", "", [("a", [""])], [(name, [cell[:20]])], ["a note"])
    wide = TextTable("t", "", [(letter, [""]) for letter in "abcd"], [(name, [cell] * 4)])
    assert narrow.latex("l").startswith("\\begin{table}\n\\centering\\small")
    assert wide.latex("l").startswith("\\begin{table*}\n\\centering\\scriptsize")
    assert wide.latex("l").rstrip().endswith("\\end{table*}")
    assert rf"\raggedright {name}\strut}} & " in narrow.latex("l")
    assert "a note\\par" in narrow.latex("l")


def test_comments_stay_comments() -> None:
    assert latex_comment("a\nb % c") == "% a\n% b % c\n"


def test_csv_keeps_text_as_it_is_and_refuses_unknown_columns() -> None:
    rows = [{"a": 'x,"y"\nz', "b": None}, {"b": 0.5}]
    read = list(csv.DictReader(io.StringIO(csv_text(("a", "b"), rows))))
    assert read == [{"a": 'x,"y"\nz', "b": ""}, {"a": "", "b": "0.5"}]
    with pytest.raises(ValueError, match="c"):
        csv_text(("a",), [{"c": 1}])
