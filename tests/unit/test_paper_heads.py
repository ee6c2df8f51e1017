"""What the heads of a paper's runs became, averaged over the seeds of each cell."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from headwise.analysis.tables import HEADS, LAYERS
from headwise.report.paper import Column, HeadNumber, Paper
from headwise.report.paper_cells import CellFigures, ColumnFigures
from headwise.report.paper_facts import COLUMNS
from headwise.report.paper_heads import head_facts, head_tables, paper_head_facts

PAPER = Paper(name="tiny", title="", rows={"softmax": "softmax", "sparse": "sparse", "no": "none"})


def analysed(folder: Path, density: float, alpha: float | None, n_previous: int = 0) -> Any:
    """A run and its analysis, of two encoder heads."""
    folder.mkdir()
    heads = [
        {
            "site": "encoder_self",
            "layer": 1,
            "head": head,
            "density": density,
            "alpha": alpha,
            "previous_share": 0.1,
            "previous_weight": 0.5,
            "roles": "previous" if head <= n_previous else "",
        }
        for head in (1, 2)
    ]
    HEADS.path(folder).write_text(HEADS.text(heads), encoding="utf-8")
    layer = {"site": "encoder_self", "layer": 1, "diversity_heads": 0.25, "diversity_keys": 0.75}
    LAYERS.path(folder).write_text(LAYERS.text([layer]), encoding="utf-8")
    return SimpleNamespace(folder=folder, seed=1)


def rows_of(table: Any) -> dict[str, list[str]]:
    return dict(table.rows)


def test_values_are_means_over_the_seeds_that_have_them(tmp_path: Path) -> None:
    runs = {
        "softmax": [analysed(tmp_path / "a", 1.0, None), analysed(tmp_path / "b", 1.0, None)],
        "sparse": [analysed(tmp_path / "c", 0.2, 1.4, 1), analysed(tmp_path / "d", 0.4, 1.6, 2)],
        "no": [],
    }
    cells = {row: CellFigures(None, runs=found) for row, found in runs.items()}
    columns = [
        ColumnFigures("x", Column("Corpus"), "bleu", cells),
        ColumnFigures("y", Column("Nothing yet"), "bleu", {"softmax": CellFigures(None)}),
    ]
    own = {run.folder: run.folder for found in runs.values() for run in found}
    (table,) = head_tables(PAPER, columns, own)
    assert table.title == "Heads, Corpus"
    assert table.heads == ["softmax", "sparse"]
    rows = rows_of(table)
    assert rows["density, mean, encoder self-attention"] == ["1.00", "0.30 (0.20 to 0.40)"]
    assert rows["α, mean, encoder self-attention"] == ["–", "1.50 (1.40 to 1.60)"]
    assert rows["heads at -1"] == ["0", "1.5 (1 to 2)"]
    assert rows["their weight at -1, median"] == ["–", "50 %"]
    assert rows["diversity, encoder self-attention layer 1"] == ["0.25", "0.25"]
    assert "softmax 2, sparse 2" in table.notes[0]
    told = " ".join(table.notes)
    assert "at least 90 % of the queries" in told
    assert "question" not in told  # nothing of it is in the table
    (by_keys,) = head_tables(PAPER, columns, own, "keys")
    assert rows_of(by_keys)["diversity, encoder self-attention layer 1"] == ["0.75", "0.75"]
    of_heads = head_facts(columns, own)
    alphas = {f["run"]: f["value"] for f in of_heads if f["quantity"] == "alpha"}
    assert alphas == {str(tmp_path / "c"): 1.4, str(tmp_path / "d"): 1.6}
    ((_, place),) = {(f["quantity"], (f["site"], f["layer"])) for f in of_heads if f["layer"]}
    assert place == ("encoder_self", 1)
    assert set(of_heads[0]) <= set(COLUMNS)


def test_a_mean_over_seeds_is_no_median(tmp_path: Path) -> None:
    runs = [analysed(tmp_path / str(n), density, None) for n, density in enumerate((0.2, 0.4, 0.9))]
    column = ColumnFigures("x", Column("Corpus"), "bleu", {"sparse": CellFigures(None, runs=runs)})
    (table,) = head_tables(PAPER, [column], {run.folder: run.folder for run in runs})
    assert rows_of(table)["density, mean, encoder self-attention"] == ["0.50 (0.20 to 0.90)"]


def test_what_the_paper_tells_stands_beside_ours_or_alone(tmp_path: Path) -> None:
    told = [
        HeadNumber("previous_heads", values={"sparse": 4}, mark="OK"),
        HeadNumber(
            "merge_score_1", "encoder_self", {"sparse": 0.885}, {"softmax": "below 80 %"}, "r+"
        ),
    ]
    paper = replace(PAPER, heads=told, heads_note="Of other corpora.")
    run = analysed(tmp_path / "a", 0.2, 1.4, 1)
    cells = {row: CellFigures(None, runs=[run]) for row in ("sparse", "no")}
    column = ColumnFigures("x", Column("Corpus"), "bleu", cells)
    (beside,) = head_tables(paper, [column], {run.folder: run.folder})
    assert beside.heads == ["sparse: paper", "sparse: ours", "none"]
    assert rows_of(beside)["heads at -1"] == ["4", "1", "1"]
    assert rows_of(beside)["highest merge score"] == ["88.5 % (r+)", "–", "–"]
    empty = ColumnFigures("x", Column("Corpus"), "bleu", {"sparse": CellFigures(None)})
    (alone,) = head_tables(paper, [empty], {})
    assert alone.heads == ["softmax", "sparse"]
    assert dict(alone.rows) == {
        "heads at -1": ["–", "4"],
        "highest merge score": ["below 80 % (r+)", "88.5 % (r+)"],
    }
    for table in (beside, alone):
        assert "Of other corpora." in table.notes
        assert any(note.startswith("(r+): ") for note in table.notes)
    assert head_tables(PAPER, [empty], {}) == []
    facts = paper_head_facts(paper)
    assert [(fact["row"], fact["value"], fact["note"]) for fact in facts] == [
        ("sparse", 4, None),
        ("softmax", None, "below 80 %"),
        ("sparse", 0.885, None),
    ]
    assert all(set(fact) <= set(COLUMNS) for fact in facts)
