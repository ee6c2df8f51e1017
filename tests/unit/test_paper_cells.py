"""Runs of a column of a paper's table: pairs of one seed, comparable runs only."""

from __future__ import annotations

import os
import re
import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fabricated_runs import MACHINE, METRICS, REFERENCES, translations
from headwise.config.folders import group_node
from headwise.config.schema import DecodeConfig
from headwise.metrics.bleu import score_translations
from headwise.metrics.metric import Measured, Metric
from headwise.metrics.significance import Comparison
from headwise.runs.folder import RunFolder
from headwise.runs.results import Results
from headwise.studies.cells import (
    ColumnRuns,
    Missing,
    cell_facts,
    column_runs,
    judge,
)
from headwise.studies.match import Matching
from headwise.studies.paper import Cell, Column, Paper, Recipe
from headwise.studies.paper_tables import paper_tables
from headwise.studies.render import Table, fact_table, select
from headwise.tasks.translation import Translation

PAPER = Paper(
    name="tiny",
    title="",
    metrics=METRICS,
    baseline="softmax",
    rows={"softmax": "softmax", "sparse": "sparse"},
    columns={"mine": Column("Mine", "test", train_pairs=1000)},
)
RESAMPLES = 20
KEY = "trainer.precision"


def make_run(
    folder: Path,
    seed: int,
    hypotheses: Sequence[str] | None = None,
    references: Sequence[str] = REFERENCES,
    speed: float | None = 1000.0,
    train_pairs: int | None = None,
) -> Any:
    """A finished run with `hypotheses`, or with translations drawn by the seed."""
    lines = translations(3, seed) if hypotheses is None else hypotheses
    (folder / "hypotheses").mkdir(parents=True)
    (folder / "hypotheses" / "test.ref.sha256").write_text(str(hash(tuple(references))))
    measured = score_translations(lines, references, "en")
    RunFolder(folder).write_sums("test", "translation", measured.items)
    config: Any = SimpleNamespace(
        data=SimpleNamespace(target="en"),
        decode=DecodeConfig(),
        loss=group_node("loss", "cross_entropy"),
    )
    return SimpleNamespace(
        folder=folder,
        seed=seed,
        updates=0,
        text="0" * 64,
        train_pairs=train_pairs,
        tokens_per_second=speed,
        machine=MACHINE,
        results=Results({"test": dict(measured.scores())}),
        task=Translation(config),
        references=Translation.references,
        config=config,
        settings={"trainer": {"precision": "float32"}, "data": {}},
    )


def recipes(*overrides: str) -> list[Recipe]:
    return [Recipe(Cell(row, "mine"), overrides, {}, 0, {}) for row in PAPER.rows]


def column_of(softmax: list[Any], sparse: list[Any]) -> ColumnRuns:
    """The column of these runs, compared where allowed."""
    used = {("softmax", "mine"): softmax, ("sparse", "mine"): sparse}
    (column,) = column_runs(PAPER, recipes(), Matching(used=used))
    judge(PAPER, [column], RESAMPLES)
    return column


def scores(column: ColumnRuns, row: str, metric: str = "bleu_tokenised") -> dict[int, float]:
    """Score by seed."""
    return dict(zip(column.runs_of(row).seed, column.runs_of(row)[metric], strict=True))


def tables(
    column: ColumnRuns, paper: Paper = PAPER, missing: Sequence[Missing] = ()
) -> list[Table]:
    facts = fact_table(cell_facts(paper, [column], missing))
    return paper_tables(paper, facts, RESAMPLES, {column.name: column.sign})


def test_runs_are_paired_by_seed(tmp_path: Path) -> None:
    softmax = [make_run(tmp_path / f"a{seed}", seed, translations(seed)) for seed in (1, 2, 3)]
    sparse = [make_run(tmp_path / f"b{seed}", seed, translations(6 - seed)) for seed in (1, 3, 4)]
    column = column_of(softmax, sparse)
    test = column.comparisons["sparse"]
    assert test.n_seeds == 2
    new, old = scores(column, "sparse"), scores(column, "softmax")
    expected = sum(new[seed] - old[seed] for seed in (1, 3)) / 2
    assert test.difference == pytest.approx(expected, abs=1e-9)
    assert list(column.comparisons) == ["sparse"]
    unpaired = column_of(softmax[1:2], sparse)
    assert (unpaired.comparisons, unpaired.speeds) == ({}, {})


def test_speeds_are_compared_over_shared_seeds(tmp_path: Path) -> None:
    fast, slow = {1: 100.0, 2: 5000.0, 3: 400.0, 4: 6000.0}, {1: 50.0, 3: 300.0, 4: None, 5: 7000.0}
    softmax, sparse = (
        [make_run(tmp_path / f"{name}{seed}", seed, speed=speed) for seed, speed in by_seed.items()]
        for name, by_seed in (("a", fast), ("b", slow))
    )
    # medians 175 and 250 of the seeds 1 and 3; 50 of 100, and 300 of 400
    assert column_of(softmax, sparse).speeds["sparse"] == pytest.approx((70, 50, 75))


Change = Callable[[Any], Any]


def with_other_signature(metric: str) -> Change:
    """Return a change of the signature of a run's score."""

    def change(run: Any) -> None:
        run.results.scores["test"][metric]["signature"] = "of another version"

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (with_other_signature("bleu"), "bleu has several signatures: .*of another version in "),
        (with_other_signature("bleu_tokenised"), "bleu_tokenised has several signatures: "),
        (lambda run: vars(run).update(text="1" * 64), "the training text differs "),
    ],
)
@pytest.mark.parametrize("in_base", [True, False])
def test_incomparable_runs_are_not_compared(
    tmp_path: Path, change: Change, message: str, in_base: bool
) -> None:
    softmax = [make_run(tmp_path / f"a{n}", n) for n in (1, 2)]
    sparse = [make_run(tmp_path / "b", 1)]
    odd = softmax[1] if in_base else sparse[0]
    change(odd)
    column = column_of(softmax, sparse)
    (problem,) = column.problems
    assert re.match(message, problem)
    assert problem.endswith(f" in {odd.folder}")
    assert column.comparisons == {}
    rows = dict(tables(column)[0].rows)
    assert rows == {"softmax": ["not averaged"], "sparse": ["not averaged"]}


@pytest.mark.parametrize(
    ("change", "messages"),
    [
        (lambda run: run.settings["trainer"].update(precision="bf16"), ["differ in precision"]),
        (
            lambda run: vars(run).update(updates=600),
            ["600 updates instead of the recipe's 0"],
        ),
        (
            lambda run: (run.folder / "hypotheses" / "test.ref.sha256").write_text("other"),
            ["sparse is not tested against softmax: the references of test differ in "],
        ),
        (
            lambda run: RunFolder(run.folder).write_sums("test", "translation", np.ones((6, 44))),
            [r"sparse is not tested against softmax: the sums in .*/b give 100.00, its results"],
        ),
        (
            lambda run: (run.folder / "sums" / "test.translation.npz").write_bytes(b"?"),
            [r"sparse is not tested against softmax: .*/test.translation.npz is broken"],
        ),
        (
            lambda run: os.truncate(run.folder / "sums" / "test.translation.npz", 200),
            [r"sparse is not tested against softmax: .*/test.translation.npz is broken"],
        ),
        (
            lambda run: (run.folder / "sums" / "test.translation.npz").unlink(),
            [r"sparse is not tested against softmax: .*/b has no sums/test.translation.npz"],
        ),
        (lambda run: vars(run).update(machine={"gpu": "H200"}), ["tokens/s of .* not compared"]),
    ],
)
def test_caveats_are_noted(tmp_path: Path, change: Change, messages: list[str]) -> None:
    softmax, sparse = make_run(tmp_path / "a", 1), make_run(tmp_path / "b", 1)
    change(sparse)
    column = column_of([softmax], [sparse])
    assert column.problems == []
    assert len(column.notes) == len(messages)
    assert all(re.search(text, note) for text, note in zip(messages, column.notes, strict=True))
    assert column.notes[0] in " ".join(tables(column)[0].notes)


def test_smaller_training_text_than_the_papers_is_noted(tmp_path: Path) -> None:
    softmax = make_run(tmp_path / "a", 1, train_pairs=1000)
    sparse = make_run(tmp_path / "b", 1, train_pairs=790)
    (note,) = column_of([softmax], [sparse]).notes
    assert "OTHER TEXT: ours was trained on 790 pairs, the paper on about 1,000" in note
    sparse.train_pairs = 800
    assert column_of([softmax], [sparse]).notes == []


# -- tables ---------------------------------------------------------------------------------------


def test_tables_of_each_bleu_and_of_differences(tmp_path: Path) -> None:
    softmax = [make_run(tmp_path / f"a{seed}", seed, translations(seed)) for seed in (1, 2, 3)]
    sparse = make_run(tmp_path / "b", 1, translations(5))
    for run in (*softmax, sparse):
        run.results.scores["test"]["bleu"]["score"] = 7.0 + run.seed
    column = column_of(softmax, [sparse])
    column.comparisons["sparse"] = Comparison(1.234, -0.5, 2.0, 1 / 21, 1, 6, 20)
    by_title = {table.title: dict(table.rows) for table in tables(column)}
    softmax_scores = list(scores(column, "softmax").values())
    mean, deviation = statistics.fmean(softmax_scores), statistics.stdev(softmax_scores)
    assert by_title["Tokenised BLEU"] == {
        "softmax": [f"{mean:.2f} ± {deviation:.2f} (3)"],
        "sparse": [f"{scores(column, 'sparse')[1]:.2f} (1)"],
    }
    assert by_title["The same runs in BLEU (13a)"] == {
        "softmax": ["9.00 ± 1.00 (3)"],
        "sparse": ["8.00 (1)"],
    }
    difference = "Difference to softmax, in tokenised BLEU"
    interval = "+1.23 [−0.50 to +2.00] (1 of 3)"
    assert by_title[difference] == {"Mine ↑, sparse": [interval, "≤ 0.05"]}
    facts = fact_table(cell_facts(PAPER, [column], []))
    for row, name, value in (("softmax", "sd", deviation), ("sparse", "low", -0.5)):
        (shown,) = select(facts, row=row, quantity=f"bleu_tokenised_{name}").value
        assert shown == pytest.approx(value, abs=1e-4)
    column.comparisons["sparse"] = replace(column.comparisons["sparse"], p_value=2 / 21)
    assert dict(tables(column)[2].rows) == {"Mine ↑, sparse": [interval, "0.095"]}


@pytest.mark.parametrize(("unit", "is_shown"), [(None, True), ("min", False)])
def test_differences_in_the_paper_are_shown_for_bleu_only(unit: str | None, is_shown: bool) -> None:
    column = Column("Mine", "test", unit=unit, decimals=1)
    paper_cells = [
        Cell(row, "mine", [], value, mark)
        for row, value, mark in (("softmax", 30.0, "r+"), ("sparse", 31.5, "OK"))
    ]
    paper = replace(PAPER, columns={"mine": column}, cells=paper_cells)
    shown_tables = tables(column_runs(paper, [], Matching())[0], paper)
    differences = [table.rows for table in shown_tables if table.title.startswith("Difference")]
    assert differences == ([[("Mine ↑, sparse", ["+1.5 (r+)"])]] if is_shown else [])
    assert shown_tables[0].rows == [("softmax", ["30.0 (r+)"]), ("sparse", ["31.5"])]


def test_rows_of_others_are_not_compared_with_our_baseline() -> None:
    cells = [
        Cell("softmax", "mine", ["a=1"], 30.0, "OK"),
        Cell("sparse", "mine", ["a=2"], 31.0, "OK"),
        Cell("earlier", "mine", [], 29.0, "OK"),
    ]
    rows = {**PAPER.rows, "earlier": "best earlier model"}
    paper = replace(PAPER, rows=rows, cells=cells)
    shown_tables = paper_tables(
        paper, fact_table(cell_facts(paper, [], [])), RESAMPLES, {"mine": 1}
    )
    (difference,) = (table for table in shown_tables if table.title.startswith("Difference"))
    assert difference.rows == [("Mine ↑, sparse", ["+1.00"])]


BITS = Metric(
    "bits_per_byte", "lower", lambda sums: sums[0] / sums[1], (0, 1), "s", "window", "bits per byte"
)
DENSITY = SimpleNamespace(metrics=lambda: [BITS])


def make_density_run(folder: Path, seed: int, bits: float) -> Any:
    """A finished run with about `bits` per byte in each of 40 windows."""
    run = make_run(folder, seed)
    windows = np.random.default_rng(0).normal(bits, 0.001, 40)
    items = np.column_stack((windows * 10, np.full(40, 10.0)))
    RunFolder(folder).write_sums("test", "window", items)
    run.results = Results({"test": dict(Measured(items, [BITS]).scores())})
    run.task, run.references = DENSITY, None
    return run


def test_a_table_may_mix_bits_where_lower_is_better_with_bleu(tmp_path: Path) -> None:
    paper = replace(
        PAPER,
        metrics={**METRICS, "bits_per_byte": "bits per byte"},
        columns={
            "bits": Column("Text", "test", metric="bits_per_byte", our_decimals=3),
            "mine": Column("Mine", "test"),
        },
        cells=[Cell("softmax", "bits", [], 1.0, "OK"), Cell("sparse", "bits", [], 0.99, "OK")],
    )
    metrics = {BITS.name: BITS}
    used = {
        ("softmax", "bits"): [make_density_run(tmp_path / "a", 1, 1.125)],
        ("sparse", "bits"): [make_density_run(tmp_path / "b", 1, 1.0)],
        ("softmax", "mine"): [make_run(tmp_path / "c", 1, translations(3))],
        ("sparse", "mine"): [make_run(tmp_path / "d", 1, translations(2))],
    }
    all_recipes = [
        Recipe(Cell(row, column), (), {}, 0, metrics if column == "bits" else {})
        for row, column in used
    ]
    columns = column_runs(paper, all_recipes, Matching(used=used))
    judge(paper, columns, RESAMPLES)
    facts = fact_table(cell_facts(paper, columns, []))
    signs = {column.name: column.sign for column in columns}
    assert signs == {"bits": -1, "mine": 1}
    main, other, differences = paper_tables(paper, facts, RESAMPLES, signs)
    bits = "Text: bits per byte (lower is better)"
    assert main.headers == [f"{bits}: paper", f"{bits}: ours", "Mine: tokenised BLEU: ours"]
    rows = dict(main.rows)
    assert rows["softmax"][:2] == ["1.00", "1.125 (1)"]
    alone = replace(paper, columns={"bits": paper.columns["bits"]})
    (text, *_) = paper_tables(alone, select(facts, column="bits"), RESAMPLES, {"bits": -1})
    assert text.title == "Bits per byte (lower is better), the paper's and ours"
    assert re.fullmatch(r"\d\d\.\d\d \(1\)", rows["sparse"][2])
    assert other.title == "The same runs in BLEU (13a)"
    assert differences.title == "Difference to softmax, in the metric of each column"
    assert [name for name, _ in differences.rows] == ["Text ↓, sparse", "Mine ↑, sparse"]
    (published, ours, p), of_bleu = (texts for _, texts in differences.rows)
    assert published == "−0.01"  # 0.99 bits, which are better than 1.00
    assert re.match(r"−0\.125 \[−0\.12\d to −0\.12\d\]", ours)
    assert p == "≤ 0.05"
    assert of_bleu[1].startswith("+")
