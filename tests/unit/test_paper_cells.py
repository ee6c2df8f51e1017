"""What the runs of a column come to: pairs of one seed, and nothing averaged of two kinds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fabricated_runs import MACHINE, REFERENCES, translations
from headwise.metrics.bleu import score_translations
from headwise.report.paper import Column, Paper
from headwise.report.paper_cells import CellFigures, ColumnFigures, judge
from headwise.report.paper_tables import paper_tables

PAPER = Paper(
    name="tiny",
    title="",
    baseline="softmax",
    rows={"softmax": "softmax", "sparse": "sparse"},
    columns={"mine": Column("Mine", "test", train_pairs=1000)},
)
RESAMPLES = 20


def finished(
    folder: Path,
    seed: int,
    hypotheses: Sequence[str] | None = None,
    references: Sequence[str] = REFERENCES,
    speed: float = 1000.0,
    train_pairs: int | None = None,
) -> Any:
    """A run and its translations, those of the seed unless others are given."""
    lines = translations(3, seed) if hypotheses is None else hypotheses
    (folder / "hypotheses").mkdir(parents=True)
    for ending, text in ((".txt", lines), (".ref.txt", references)):
        path = folder / "hypotheses" / f"test{ending}"
        path.write_text("".join(f"{line}\n" for line in text), encoding="utf-8")
    return SimpleNamespace(
        folder=folder,
        seed=seed,
        updates=0,
        text=None,
        train_pairs=train_pairs,
        tokens_per_second=speed,
        machine=MACHINE,
        results={"scores": {"test": dict(score_translations(lines, references, "en"))}},
        config=SimpleNamespace(
            data=SimpleNamespace(target="en"), trainer=SimpleNamespace(precision="float32")
        ),
    )


def judged(softmax: list[Any], sparse: list[Any]) -> ColumnFigures:
    """The column of these runs, compared as far as it may be."""
    cells = {
        row: CellFigures(None, runs=runs)
        for row, runs in (("softmax", softmax), ("sparse", sparse))
    }
    figures = ColumnFigures("mine", PAPER.columns["mine"], PAPER.metric, cells)
    judge(PAPER, [figures], RESAMPLES)
    return figures


def test_only_runs_of_one_seed_are_tested_against_each_other(tmp_path: Path) -> None:
    base = [finished(tmp_path / f"a{seed}", seed, translations(seed)) for seed in (1, 2, 3)]
    own = [finished(tmp_path / f"b{seed}", seed, translations(6 - seed)) for seed in (1, 3, 4)]
    found = judged(base, own)
    test = found.cells["sparse"].comparison
    assert test is not None
    assert test.n_seeds == 2
    new, old = found.scores("sparse"), found.scores("softmax")
    wanted = sum(new[seed] - old[seed] for seed in (1, 3)) / 2
    assert test.difference == pytest.approx(wanted, abs=1e-9)
    assert found.cells["softmax"].comparison is None
    alone = judged(base[1:2], own).cells["sparse"]
    assert (alone.comparison, alone.speed) == (None, None)


def test_speeds_are_compared_over_the_seeds_that_both_rows_have(tmp_path: Path) -> None:
    fast, slow = {1: 100.0, 2: 5000.0, 3: 400.0, 4: 6000.0}, {1: 50.0, 3: 300.0, 5: 7000.0}
    base, own = (
        [finished(tmp_path / f"{name}{seed}", seed, speed=speed) for seed, speed in of.items()]
        for name, of in (("a", fast), ("b", slow))
    )
    # medians 175 and 250 of the seeds 1 and 3; 50 of 100, and 300 of 400
    assert judged(base, own).cells["sparse"].speed == pytest.approx((70, 50, 75))


@pytest.mark.parametrize("separator", ["\u2028", "\x85", "\x0c", "\r"])
@pytest.mark.parametrize("is_in_both", [False, True])
def test_what_only_looks_like_the_end_of_a_line_ends_none(
    tmp_path: Path, separator: str, is_in_both: bool
) -> None:
    base, own = translations(3), translations(1)
    own[1] = own[1].replace("child ", f"child{separator}", 1)
    if is_in_both:
        base[4] = base[4].replace("sees ", f"sees{separator}", 1)
    references = [line.replace("blue ", f"blue{separator}", 1) for line in REFERENCES]
    runs = [
        finished(tmp_path / name, 1, lines, references) for name, lines in (("a", base), ("b", own))
    ]
    found = judged(runs[:1], runs[1:])
    assert found.notes == []
    test = found.cells["sparse"].comparison
    assert test is not None
    assert test.n_sentences == len(REFERENCES)
    assert test.difference == pytest.approx(
        found.scores("sparse")[1] - found.scores("softmax")[1], abs=1e-9
    )


@pytest.mark.parametrize("metric", ["bleu", "bleu_tokenised"])
def test_one_signature_is_wanted_of_plain_bleu_too(tmp_path: Path, metric: str) -> None:
    base, own = finished(tmp_path / "a", 1), finished(tmp_path / "b", 1)
    score = own.results["scores"]["test"][metric]
    own.results["scores"]["test"][metric] = {**score, "signature": "of another version"}
    found = judged([base], [own])
    (problem,) = found.problems
    assert problem.startswith(f"{metric} was computed in several ways: ")
    assert problem.endswith(f"of another version in {own.folder}")
    assert found.cells["sparse"].comparison is None


@pytest.mark.parametrize("away", [0.004, -0.004, 0.02, -0.02])
def test_translations_give_the_score_but_for_its_rounding(tmp_path: Path, away: float) -> None:
    base, own = finished(tmp_path / "a", 1), finished(tmp_path / "b", 1)
    own.results["scores"]["test"]["bleu_tokenised"]["score"] += away
    found = judged([base], [own])
    is_rounding = abs(away) < 0.005
    assert (found.cells["sparse"].comparison is not None) == is_rounding
    told = (
        []
        if is_rounding
        else [f"sparse is not tested against softmax: the translations in {own.folder}"]
    )
    assert [note.partition(" score ")[0] for note in found.notes] == told


def test_the_least_text_of_a_column_is_held_against_the_papers(tmp_path: Path) -> None:
    base = finished(tmp_path / "a", 1, train_pairs=1000)
    own = finished(tmp_path / "b", 1, train_pairs=790)
    notes = paper_tables(PAPER, [judged([base], [own])])[0].notes
    (told,) = (note for note in notes if "OTHER TEXT" in note)
    assert "ours was trained on 790 pairs where the paper has about 1,000" in told
