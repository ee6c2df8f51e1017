"""What the runs of a column come to: pairs of one seed, and nothing averaged of two kinds."""

from __future__ import annotations

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
from headwise.metrics.bleu import score_translations
from headwise.metrics.significance import Comparison
from headwise.report.cells import (
    ColumnRuns,
    Missing,
    cell_facts,
    column_runs,
    judge,
)
from headwise.report.paper import Cell, Column, Paper, Recipe
from headwise.report.paper_runs import Matching
from headwise.report.paper_tables import paper_tables
from headwise.report.tables import Table, fact_table, select
from headwise.runs.folder import RunFolder
from headwise.runs.results import Results
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


def finished(
    folder: Path,
    seed: int,
    hypotheses: Sequence[str] | None = None,
    references: Sequence[str] = REFERENCES,
    speed: float | None = 1000.0,
    train_pairs: int | None = None,
) -> Any:
    """A run and its translations, those of the seed unless others are given."""
    lines = translations(3, seed) if hypotheses is None else hypotheses
    (folder / "hypotheses").mkdir(parents=True)
    for ending, text in ((".txt", lines), (".ref.txt", references)):
        path = folder / "hypotheses" / f"test{ending}"
        path.write_text("".join(f"{line}\n" for line in text), encoding="utf-8")
    measured = score_translations(lines, references, "en")
    RunFolder(folder).write_sums("test.translation.npy", measured.items)
    return SimpleNamespace(
        folder=folder,
        seed=seed,
        updates=0,
        text="0" * 64,
        train_pairs=train_pairs,
        tokens_per_second=speed,
        machine=MACHINE,
        results=Results({"test": dict(measured.scores())}),
        task=Translation(),
        config=SimpleNamespace(
            data=SimpleNamespace(target="en"),
            loss=group_node("loss", "cross_entropy"),
            trainer=SimpleNamespace(precision="float32"),
        ),
    )


def recipes(*overrides: str) -> list[Recipe]:
    return [Recipe(Cell(row, "mine"), overrides, {}, 0, ()) for row in PAPER.rows]


def judged(softmax: list[Any], sparse: list[Any]) -> ColumnRuns:
    """The column of these runs, compared as far as it may be."""
    used = {("softmax", "mine"): softmax, ("sparse", "mine"): sparse}
    (found,) = column_runs(PAPER, recipes(), Matching(used=used))
    judge(PAPER, [found], RESAMPLES)
    return found


def scores(found: ColumnRuns, row: str, metric: str = "bleu_tokenised") -> dict[int, float]:
    """Score by seed."""
    return dict(zip(found.of(row).seed, found.of(row)[metric], strict=True))


def tables(found: ColumnRuns, paper: Paper = PAPER, missing: Sequence[Missing] = ()) -> list[Table]:
    return paper_tables(paper, fact_table(cell_facts(paper, [found], missing)), RESAMPLES)


def test_only_runs_of_one_seed_are_tested_against_each_other(tmp_path: Path) -> None:
    base = [finished(tmp_path / f"a{seed}", seed, translations(seed)) for seed in (1, 2, 3)]
    own = [finished(tmp_path / f"b{seed}", seed, translations(6 - seed)) for seed in (1, 3, 4)]
    found = judged(base, own)
    test = found.comparisons["sparse"]
    assert test.n_seeds == 2
    new, old = scores(found, "sparse"), scores(found, "softmax")
    wanted = sum(new[seed] - old[seed] for seed in (1, 3)) / 2
    assert test.difference == pytest.approx(wanted, abs=1e-9)
    assert list(found.comparisons) == ["sparse"]
    alone = judged(base[1:2], own)
    assert (alone.comparisons, alone.speeds) == ({}, {})


def test_speeds_are_compared_over_the_seeds_that_both_rows_have(tmp_path: Path) -> None:
    fast, slow = {1: 100.0, 2: 5000.0, 3: 400.0, 4: 6000.0}, {1: 50.0, 3: 300.0, 4: None, 5: 7000.0}
    base, own = (
        [finished(tmp_path / f"{name}{seed}", seed, speed=speed) for seed, speed in of.items()]
        for name, of in (("a", fast), ("b", slow))
    )
    # medians 175 and 250 of the seeds 1 and 3; 50 of 100, and 300 of 400
    assert judged(base, own).speeds["sparse"] == pytest.approx((70, 50, 75))


Change = Callable[[Any], Any]


def signed(metric: str) -> Change:
    """A change of the signature of a run's score."""

    def change(run: Any) -> None:
        run.results.scores["test"][metric]["signature"] = "of another version"

    return change


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (signed("bleu"), "bleu has several signatures: .*of another version in "),
        (signed("bleu_tokenised"), "bleu_tokenised has several signatures: "),
        (lambda run: vars(run).update(text="1" * 64), "the training text differs "),
    ],
)
@pytest.mark.parametrize("in_base", [True, False])
def test_two_kinds_of_runs_are_not_compared(
    tmp_path: Path, change: Change, told: str, in_base: bool
) -> None:
    base = [finished(tmp_path / f"a{n}", n) for n in (1, 2)]
    own = [finished(tmp_path / "b", 1)]
    odd = base[1] if in_base else own[0]
    change(odd)
    found = judged(base, own)
    (problem,) = found.problems
    assert re.match(told, problem)
    assert problem.endswith(f" in {odd.folder}")
    assert found.comparisons == {}
    rows = dict(tables(found)[0].rows)
    assert rows == {"softmax": ["not averaged"], "sparse": ["not averaged"]}


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda run: vars(run.config.trainer).update(precision="bf16"), ["differ in precision"]),
        (
            lambda run: vars(run).update(updates=600),
            ["600 updates instead of the recipe's 0"],
        ),
        (
            lambda run: (run.folder / "hypotheses" / "test.ref.txt").write_text("other\n" * 6),
            ["sparse is not tested against softmax: the references of test differ in "],
        ),
        (
            lambda run: RunFolder(run.folder).write_sums("test.translation.npy", np.ones((6, 44))),
            [r"sparse is not tested against softmax: the sums in .*/b give 100.00, its results"],
        ),
        (
            lambda run: (run.folder / "sums" / "test.translation.npy").write_bytes(b"?"),
            [r"sparse is not tested against softmax: .*/test.translation.npy is broken"],
        ),
        (
            lambda run: (run.folder / "sums" / "test.translation.npy").unlink(),
            [r"sparse is not tested against softmax: .*/b has no sums/test.translation.npy"],
        ),
        (lambda run: vars(run).update(machine={"gpu": "H200"}), ["tokens/s of .* not compared"]),
    ],
)
def test_what_a_reader_must_know_is_noted(tmp_path: Path, change: Change, told: list[str]) -> None:
    base, own = finished(tmp_path / "a", 1), finished(tmp_path / "b", 1)
    change(own)
    found = judged([base], [own])
    assert found.problems == []
    assert len(found.notes) == len(told)
    assert all(re.search(text, note) for text, note in zip(told, found.notes, strict=True))
    assert found.notes[0] in " ".join(tables(found)[0].notes)


def test_the_least_text_of_a_column_is_held_against_the_papers(tmp_path: Path) -> None:
    base = finished(tmp_path / "a", 1, train_pairs=1000)
    own = finished(tmp_path / "b", 1, train_pairs=790)
    (told,) = judged([base], [own]).notes
    assert "OTHER TEXT: ours was trained on 790 pairs, the paper on about 1,000" in told
    own.train_pairs = 800
    assert judged([base], [own]).notes == []


# -- what is shown --------------------------------------------------------------------------------


def test_each_bleu_has_its_own_table_and_a_difference_its_interval(tmp_path: Path) -> None:
    base = [finished(tmp_path / f"a{seed}", seed, translations(seed)) for seed in (1, 2, 3)]
    own = finished(tmp_path / "b", 1, translations(5))
    for run in (*base, own):
        run.results.scores["test"]["bleu"]["score"] = 7.0 + run.seed
    found = judged(base, [own])
    found.comparisons["sparse"] = Comparison(1.234, -0.5, 2.0, 1 / 21, 1, 6, 20)
    by_title = {table.title: dict(table.rows) for table in tables(found)}
    of_base = list(scores(found, "softmax").values())
    mean, deviation = statistics.fmean(of_base), statistics.stdev(of_base)
    assert by_title["Tokenised BLEU"] == {
        "softmax": [f"{mean:.2f} ± {deviation:.2f} (3)"],
        "sparse": [f"{scores(found, 'sparse')[1]:.2f} (1)"],
    }
    assert by_title["The same runs in BLEU (13a)"] == {
        "softmax": ["9.00 ± 1.00 (3)"],
        "sparse": ["8.00 (1)"],
    }
    difference = "Difference to softmax, in tokenised BLEU"
    interval = "+1.23 [−0.50 to +2.00] (1 of 3)"
    assert by_title[difference] == {"Mine, sparse": [interval, "≤ 0.05"]}
    facts = fact_table(cell_facts(PAPER, [found], []))
    for row, name, value in (("softmax", "sd", deviation), ("sparse", "low", -0.5)):
        (told,) = select(facts, row=row, quantity=f"bleu_tokenised_{name}").value
        assert told == pytest.approx(value, abs=1e-4)
    found.comparisons["sparse"] = replace(found.comparisons["sparse"], p_value=2 / 21)
    assert dict(tables(found)[2].rows) == {"Mine, sparse": [interval, "0.095"]}


@pytest.mark.parametrize(("unit", "is_told"), [(None, True), ("min", False)])
def test_only_bleu_of_the_paper_are_told_as_differences(unit: str | None, is_told: bool) -> None:
    column = Column("Mine", "test", unit=unit, decimals=1)
    of_paper = [
        Cell(row, "mine", [], value, mark)
        for row, value, mark in (("softmax", 30.0, "r+"), ("sparse", 31.5, "OK"))
    ]
    paper = replace(PAPER, columns={"mine": column}, cells=of_paper)
    found = tables(column_runs(paper, [], Matching())[0], paper)
    differences = [table.rows for table in found if table.title.startswith("Difference")]
    assert differences == ([[("Mine, sparse", ["+1.5 (r+)"])]] if is_told else [])
    assert found[0].rows == [("softmax", ["30.0 (r+)"]), ("sparse", ["31.5"])]
