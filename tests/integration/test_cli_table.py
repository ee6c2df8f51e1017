"""`headwise table`: run folders become a study's tables; missing runs are listed."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from command_line import assert_rejected, change_config, composer, read_json
from fabricated_runs import (
    RECIPE,
    ROWS,
    csv_rows,
    translations,
    write_run,
    write_study,
)

pytestmark = pytest.mark.slow


@pytest.fixture
def make():
    """Compose with a new Hydra state, since commands reset it."""

    def composed(overrides):
        with composer() as compose:
            return compose(overrides)

    return composed


Write = Callable[..., Path]
Tabulate = Callable[..., Any]


@pytest.fixture
def runs(tmp_path, make):
    """Write a finished run: folder name, attention, seed, number of wrong words."""

    def write(name, attention, seed, n_wrong, *more, **changes):
        overrides = [*RECIPE, f"attention={attention}", f"seed={seed}", *more]
        hypotheses = None if n_wrong is None else translations(n_wrong, seed)
        return write_run(tmp_path / "runs" / name, make, overrides, hypotheses, **changes)

    return write


@pytest.fixture
def table(headwise, tmp_path):
    """`headwise table study=tiny` on the written runs, with few resamples."""

    def call(*more):
        if not (tmp_path / "configs").is_dir():
            write_study(tmp_path)
        return headwise(
            "table", "--config-dir", str(tmp_path / "configs"), "study=tiny",
            f"runs=[{tmp_path / 'runs'}]", f"output={tmp_path / 'tables'}", "n_resamples=50", *more,
        )  # fmt: skip

    return call


def bleu(folder):
    results = read_json(folder / "results.json")
    return float(results["scores"]["test"]["bleu_tokenised"]["score"])


def test_runs_fill_cells_by_settings_not_names(runs, table, tmp_path):
    base = [runs("entmax15-7", "softmax", 1, 1), runs("x", "softmax", 2, 2)]
    sparse = [runs("softmax-1", "entmax15", 1, 4), runs("y", "entmax15", 2, 5)]
    result = table()
    assert (result.code, result.err) == (0, "")
    means = {
        row: sum(map(bleu, folders)) / 2 for row, folders in zip(ROWS, (base, sparse), strict=True)
    }
    (difference,) = csv_rows(tmp_path, "-differences")
    expected = means["entmax15"] - means["softmax"]
    assert float(difference["difference"]) == pytest.approx(expected, abs=1e-9)
    assert expected < 0 < float(difference["p_value"]) <= 1
    text = result.out
    assert f"| 30.0 (r+) | {means['softmax']:.2f} ± " in text
    assert "| 30.5 (r+) |" in text
    assert "(r+): from memory, in detail" in text
    assert "+0.5 (r+)" in text
    assert "Signature of tokenised BLEU: nrefs:1|case:mixed|eff:no|tok:moses-en" in text
    assert "## Missing" not in text
    assert "## Runs not used" not in text
    assert sorted(path.name for path in (tmp_path / "tables").iterdir()) == [
        "tiny-differences.csv", "tiny.csv", "tiny.md", "tiny.tex",
    ]  # fmt: skip
    assert (tmp_path / "tables" / "tiny.md").read_text(encoding="utf-8") in text
    assert "## Difference to 1.5-entmax" in table("baseline=entmax15").out
    assert_rejected(table("baseline=entmax"), 2, "softmax", "entmax15")
    assert r"30.5 (r+)" in (tmp_path / "tables" / "tiny.tex").read_text(encoding="utf-8")


def test_differences_to_the_recipe_are_reported(runs, table, tmp_path):
    runs("a", "softmax", 1, 1)
    runs("b", "softmax", 2, 1, "model.dropout=0.3")
    runs("c", "sparsemax", 1, 1)
    runs("d", "softmax", 9, 1)
    text = table().out
    assert "nearest softmax × mine, but model.dropout=0.3 (recipe: 0.1)" in text
    assert "attention=Sparsemax (recipe: " in text
    assert "seed 9 is not among the requested seeds (1, 2)" in text
    assert [row["seed"] for row in csv_rows(tmp_path, metric="bleu_tokenised")] == ["1"]
    assert len(csv_rows(tmp_path, "-unused")) == 3


def test_irrelevant_settings_do_not_exclude_runs(runs, table, tmp_path):
    more = ("trainer.device=cpu", "trainer.log_every=7", "trainer.max_updates=10005")
    runs("a", "softmax", 1, 1, "data.dir=/elsewhere", *more)
    text = table().out
    assert len(csv_rows(tmp_path, metric="bleu_tokenised")) == 1
    assert "10,005 updates instead of the recipe's 10,000" in text
    # commands of missing runs use the text of this run
    assert text.count("data.dir=/elsewhere") == 2


def test_run_with_fewer_updates_fills_no_cell(runs, table, tmp_path):
    runs("a", "softmax", 1, 1, "trainer.max_updates=5")
    runs("b", "softmax", 2, 1, updates=50, stopped_early=True)
    output = table().out
    assert "softmax × mine, seed 1: ended at 5 of the recipe's 10,000 updates" in output
    (used,) = csv_rows(tmp_path, metric="bleu_tokenised")
    assert used["seed"] == "2"
    assert "- softmax × Mine, seed 1: `headwise train" in output
    table('overrides=["trainer.max_updates=5"]')
    assert len(csv_rows(tmp_path, metric="bleu_tokenised")) == 2


def test_unfinished_run_is_not_used(runs, table, tmp_path):
    runs("a", "softmax", 1, None)
    failed = runs("b", "softmax", 2, None)
    runs("c", "entmax15", 1, 1, status="interrupted")
    (failed / "error.json").write_text('{"error": "DataError", "message": "no\\ntext"}')
    text = table().out
    assert "softmax × mine, seed 1: interrupted (0 updates done)" in text
    assert "softmax × mine, seed 2: failed (DataError: no text)" in text
    assert "entmax15 × mine, seed 1: interrupted" in text
    assert not csv_rows(tmp_path)
    assert "- softmax × Mine, seed 1, 2: `headwise train" in text


@pytest.mark.parametrize(
    ("updates_of_a", "updates_of_b", "used_name"),
    [
        (10_000, 20_000, "a"),  # of the recipe's length
        (20_000, 10_000, "b"),
        (15_000, 20_000, "b"),
        (10_000, 10_000, "a"),
    ],
)
def test_one_of_two_runs_with_one_seed_is_used(
    *, runs, table, tmp_path, updates_of_a, updates_of_b,
    used_name
):  # fmt: skip
    runs("a", "softmax", 1, 3, updates=updates_of_a)
    runs("b", "softmax", 1, 1, updates=updates_of_b)
    assert "duplicate seed 1" in table().out
    (used,), (unused,) = csv_rows(tmp_path, metric="bleu_tokenised"), csv_rows(tmp_path, "-unused")
    assert used["run"].endswith(f"/{used_name}")
    assert unused["run"][:-1] == used["run"][:-1]


def test_seeds_and_recipes_can_be_changed(runs, table, tmp_path):
    runs("a", "softmax", 7, 1, "model.dropout=0.3")
    text = table("seeds=[7]", 'overrides=["model.dropout=0.3"]').out
    assert "Every recipe is changed by: model.dropout=0.3" in text
    assert len(csv_rows(tmp_path, metric="bleu_tokenised")) == 1
    assert "- 1.5-entmax × Mine, seed 7: `headwise train" in text
    assert "- softmax × Mine" not in text


def test_archives_give_the_tables_of_the_folders(headwise, runs, table, tmp_path):
    for seed in (1, 2):
        runs(f"a{seed}", "softmax", seed, seed)
        runs(f"b{seed}", "entmax15", seed, 1 + seed)
    runs("c", "softmax", 3, 1)
    path, archive = tmp_path / "runs", tmp_path / "archive"
    sweep = "table", f"runs=[{path}]", f"output={tmp_path / 'sweep'}", "n_resamples=50"
    both = "compare", f"run={path / 'a1'}", f"other={path / 'b1'}"
    from_folders = table("seeds=[1,2]").out, headwise.ok(*sweep).out, headwise.ok(*both).out
    headwise.ok("runs", f"runs=[{path}]", f"export={archive}")
    path.rename(tmp_path / "elsewhere")
    archive.rename(path)
    from_archive = table("seeds=[1,2]").out, headwise.ok(*sweep).out, headwise.ok(*both).out
    assert from_archive == from_folders
    assert all("BLEU" in text for text in from_folders)
    page = headwise("page", f"run={path / 'a1'}")
    assert_rejected(page, 1, "in an archive of records, without weights")


def test_only_equal_items_are_paired(headwise, runs, tmp_path):
    def compare(name, content, *more):
        other = runs(name, "softmax", 1, 2, *more, content=content)
        result = headwise("compare", f"run={first}", f"other={other}", "n_resamples=20")
        cells = (line.split("|")[2:-1] for line in result.out.splitlines() if "BLEU" in line)
        return result, [[cell.strip() for cell in row] for row in cells]

    first = runs("a", "softmax", 1, 2, content="a" * 16)
    same, scores = compare("same", "a" * 16)
    assert "the items of test differ" not in same.out
    other, means = compare("other", "b" * 16)
    assert_rejected(other, 1, "can be paired")
    unfinished = headwise("compare", f"run={first}", f"other={runs('new', 'softmax', 1, None)}")
    assert_rejected(unfinished, 1, "is interrupted; both runs must be finished")
    assert [row[:2] for row in means] == [row[:2] for row in scores]
    assert {cell for row in means for cell in row[3:]} <= {"–", ""}
    assert "the items of test differ (by their hash: another text" in other.out
    assert "the scored text of runs of 0.1.0 is not known" in compare("old", None)[0].out
    older = compare("older", None, "data.dir=elsewhere")[0]
    assert_rejected(older, 1, "can be paired")
    assert "the scored text of test is not known, and the data differs in " in older.out


def test_run_with_an_unknown_key_is_rejected(runs, table):
    change_config(runs("a", "softmax", 1, 1), trainer__an_old_key=2)
    result = table()
    assert result.code == 1
    assert "runs/a/config.yaml" in result.err
    assert "trainer.an_old_key is not known" in result.err


def test_a_row_of_a_study(runs, table):
    runs("a", "softmax", 1, 1)
    text = table("rows=[entmax15]").out
    assert "- 1.5-entmax × Mine, seed 1, 2: `headwise train" in text
    assert "Difference" not in text
    assert "softmax ×" not in text.partition("## Runs not used")[0]


def test_table_of_runs_without_a_study(headwise, runs, tmp_path):
    for seed in (1, 2):
        runs(f"a{seed}", "softmax", seed, 1)
        runs(f"b{seed}", "entmax15", seed, 5)
    sweep = tmp_path / "sweep-1"
    sweep.mkdir()
    for number, name in enumerate(("a1", "b1")):
        job = {"overrides": [f"attention={name}"], "run": str(tmp_path / "runs" / name)}
        (sweep / f"{number}.json").write_text(json.dumps(job), encoding="utf-8")
    shared = f"output={tmp_path / 'tables'}", "n_resamples=50"
    text = headwise.ok("table", f"runs=[{tmp_path / 'runs'}]", *shared).out
    assert "| BLEU test ↑, entmax15 | **−" in text
    assert (tmp_path / "tables" / "runs.tex").read_text(encoding="utf-8").count("textbf") == 2
    text = headwise.ok("table", f"runs=[{sweep}]", *shared).out
    assert "| BLEU test ↑, entmax15 |" in text
    (sweep / "notes.json").write_text("of somebody else")
    assert headwise.ok("table", f"runs=[{sweep}]", *shared).out == text
    text = headwise.ok("table", f"runs=[{tmp_path / 'runs' / 'a1'}]", *shared).out
    assert "| softmax | " in text
    assert headwise("table").code == 2
    assert "launch=… needs study=NAME" in headwise("table", "launch=true", f"runs=[{sweep}]").err


def test_missing_folder_is_rejected(table, tmp_path):
    result = table()
    assert result.code == 1
    assert f"{tmp_path / 'runs'}: folder not found" in result.err


def test_page_and_figures_get_the_given_arguments(headwise, runs, monkeypatch):
    from headwise.commands import figures, page

    calls = []
    monkeypatch.setattr(page, "write_page", lambda of, _: calls.append((of.run, of.other)))
    monkeypatch.setattr(
        figures,
        "draw_figures",
        lambda runs, output: calls.append(([run.folder for run in runs], output)) or [],
    )
    folder = runs("a", "softmax", 1, 1)
    headwise.ok("page", f"run={folder}", "other=other")
    headwise.ok("figures", f"run={folder}")
    headwise.ok("figures", f"runs=[{folder.parent}/*]", "output=drawn")
    drawn = [([folder], folder / "figures"), ([folder], Path("drawn"))]
    assert calls == [(str(folder), "other"), *drawn]
