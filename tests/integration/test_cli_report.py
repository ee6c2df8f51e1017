"""`headwise report`: run folders become a paper's tables; missing runs are listed and started."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from command_line import CommandLine, change_config, composer, read_json
from fabricated_runs import (
    RECIPE,
    ROWS,
    csv_rows,
    translations,
    write_paper,
    write_run,
)

pytestmark = pytest.mark.slow


@pytest.fixture
def make() -> Any:
    """Compose with a new Hydra state, since commands reset it."""

    def composed(overrides: Sequence[str]) -> Any:
        with composer() as compose:
            return compose(overrides)

    return composed


Write = Callable[..., Path]
Report = Callable[..., Any]


@pytest.fixture
def runs(tmp_path: Path, make: Any) -> Write:
    """Write a finished run: folder name, attention, seed, number of wrong words."""

    def write(
        name: str, attention: str, seed: int, n_wrong: int | None, *more: str, **changes: Any
    ) -> Path:
        overrides = [*RECIPE, f"attention={attention}", f"seed={seed}", *more]
        hypotheses = None if n_wrong is None else translations(n_wrong, seed)
        return write_run(tmp_path / "runs" / name, make, overrides, hypotheses, **changes)

    return write


@pytest.fixture
def report(headwise: CommandLine, tmp_path: Path) -> Report:
    """`headwise report paper=tiny` on the written runs, with few resamples."""

    def call(*more: str) -> Any:
        if not (tmp_path / "configs").is_dir():
            write_paper(tmp_path)
        return headwise(
            "report", "--config-dir", str(tmp_path / "configs"), "paper=tiny",
            f"runs=[{tmp_path / 'runs'}]", f"output={tmp_path / 'tables'}", "n_resamples=50", *more,
        )  # fmt: skip

    return call


def value(tmp_path: Path, **columns: str) -> float:
    (row,) = csv_rows(tmp_path, **columns)
    return float(row["value"])


def bleu(folder: Path) -> float:
    results = read_json(folder / "results.json")
    return float(results["scores"]["test"]["bleu_tokenised"]["score"])


def test_runs_fill_cells_by_settings_not_names(runs: Write, report: Report, tmp_path: Path) -> None:
    base = [runs("entmax15-7", "softmax", 1, 1), runs("x", "softmax", 2, 2)]
    slower = {"speed": 700.0}  # one of the speeds 100, 1000, 700 and 2000
    sparse = [
        runs("softmax-1", "entmax15", 1, 4, **slower),
        runs("y", "entmax15", 2, 5, **slower),
    ]
    result = report()
    assert (result.code, result.err) == (0, "")
    means = {
        row: sum(map(bleu, folders)) / 2 for row, folders in zip(ROWS, (base, sparse), strict=True)
    }
    for row, mean in means.items():
        assert value(tmp_path, row=row, quantity="bleu_tokenised_mean") == pytest.approx(
            mean, abs=1e-3
        )
    difference = value(tmp_path, quantity="bleu_tokenised_difference", row="entmax15")
    assert difference == pytest.approx(means["entmax15"] - means["softmax"], abs=1e-3)
    assert difference < 0
    assert 0 < value(tmp_path, quantity="p_value") <= 1
    assert value(tmp_path, quantity="speed_percent", origin="ours") == 85
    assert value(tmp_path, quantity="speed_percent", origin="paper") == 90
    text = result.out
    assert f"| 30.00 | {means['softmax']:.2f} ± " in text
    assert "| 30.50 (r+) |" in text
    assert "(r+): from memory, in detail" in text
    assert "+0.50 (r+)" in text
    assert "Signature of tokenised BLEU: nrefs:1|case:mixed|eff:no|tok:moses-en" in text
    assert "## Missing" not in text
    assert "## Runs not used" not in text
    assert sorted(path.name for path in (tmp_path / "tables").iterdir()) == [
        "tiny.csv", "tiny.md", "tiny.tex",
    ]  # fmt: skip
    assert (tmp_path / "tables" / "tiny.md").read_text(encoding="utf-8") in text
    assert r"30.50 (r+)" in (tmp_path / "tables" / "tiny.tex").read_text(encoding="utf-8")


def test_differences_to_the_recipe_are_reported(
    runs: Write, report: Report, tmp_path: Path
) -> None:
    runs("a", "softmax", 1, 1)
    runs("b", "softmax", 2, 1, "model.dropout=0.3")
    runs("c", "sparsemax", 1, 1)
    runs("d", "softmax", 9, 1)
    text = report().out
    assert "nearest softmax × mine, but model.dropout=0.3 (recipe: 0.1)" in text
    assert "attention=Sparsemax (recipe: " in text
    assert "seed 9 is not among the requested seeds (1, 2)" in text
    assert [
        row["seed"] for row in csv_rows(tmp_path, quantity="bleu_tokenised", origin="ours")
    ] == ["1"]
    assert len(csv_rows(tmp_path, quantity="unused")) == 3


def test_irrelevant_settings_do_not_exclude_runs(
    runs: Write, report: Report, tmp_path: Path
) -> None:
    more = ("trainer.device=cpu", "trainer.log_every=7", "trainer.max_updates=10005")
    runs("a", "softmax", 1, 1, "data.dir=/elsewhere", *more)
    text = report().out
    assert len(csv_rows(tmp_path, quantity="bleu_tokenised", origin="ours")) == 1
    assert "10,005 updates instead of the recipe's 10,000" in text
    # commands of missing runs use the text of this run
    assert "data.dir=/elsewhere" in csv_rows(tmp_path, quantity="missing")[0]["note"]


def test_run_with_fewer_updates_fills_no_cell(runs: Write, report: Report, tmp_path: Path) -> None:
    runs("a", "softmax", 1, 1, "trainer.max_updates=5")
    runs("b", "softmax", 2, 1, updates=50, stopped_early=True)
    assert "softmax × mine, seed 1: ended at 5 of the recipe's 10,000 updates" in report().out
    (used,) = csv_rows(tmp_path, quantity="bleu_tokenised", origin="ours")
    assert used["seed"] == "2"
    assert csv_rows(tmp_path, quantity="missing", row="softmax")[0]["seed"] == "1"
    report('overrides=["trainer.max_updates=5"]')
    assert len(csv_rows(tmp_path, quantity="bleu_tokenised", origin="ours")) == 2


def test_unfinished_run_is_not_used(runs: Write, report: Report, tmp_path: Path) -> None:
    runs("a", "softmax", 1, None)
    failed = runs("b", "softmax", 2, None)
    runs("c", "entmax15", 1, 1, status="interrupted")
    (failed / "error.json").write_text('{"error": "DataError", "message": "no\\ntext"}')
    text = report().out
    assert "softmax × mine, seed 1: not finished (0 updates done)" in text
    assert "softmax × mine, seed 2: failed: no text" in text
    assert "entmax15 × mine, seed 1: not finished" in text
    assert not csv_rows(tmp_path, quantity="bleu_tokenised_mean")
    assert {row["seed"] for row in csv_rows(tmp_path, quantity="missing", row="softmax")} == {
        "1",
        "2",
    }


@pytest.mark.parametrize(
    ("updates", "used_name", "unused_name"), [(20_000, "b", "a"), (10_000, "a", "b")]
)
def test_longer_of_two_runs_with_one_seed_is_used(
    runs: Write, report: Report, tmp_path: Path, updates: int, used_name: str, unused_name: str
) -> None:
    runs("a", "softmax", 1, 3, updates=10_000)
    runs("b", "softmax", 1, 1, updates=updates)
    assert "duplicate seed 1" in report().out
    (used,) = csv_rows(tmp_path, quantity="bleu_tokenised", origin="ours")
    assert used["run"].endswith(f"/{used_name}")
    (unused,) = csv_rows(tmp_path, quantity="unused")
    assert unused["run"].endswith(f"/{unused_name}")


def test_seeds_and_recipes_can_be_changed(runs: Write, report: Report, tmp_path: Path) -> None:
    runs("a", "softmax", 7, 1, "model.dropout=0.3")
    text = report("seeds=[7]", 'overrides=["model.dropout=0.3"]').out
    assert "Every recipe is changed by: model.dropout=0.3" in text
    assert len(csv_rows(tmp_path, quantity="bleu_tokenised", origin="ours")) == 1
    assert [row["seed"] for row in csv_rows(tmp_path, quantity="missing")] == ["7"]


def test_pruning_facts_are_compared_with_the_paper(
    runs: Write, report: Report, tmp_path: Path
) -> None:
    folder = runs("a", "softmax", 1, 1)
    runs("b", "softmax", 2, 1)
    (folder / "pruning").mkdir()
    (folder / "pruning" / "curve.json").write_text(
        '{"sites": ["encoder_self", "decoder_self", "cross"], "metric": "bleu", "rows": '
        '[{"removed": 0.0, "encoder_self": 4, "decoder_self": 3, "cross": 3, "bleu": 20.0}, '
        '{"removed": 0.2, "encoder_self": 4, "decoder_self": 1, "cross": 3, "bleu": 19.8}, '
        '{"removed": 0.3, "encoder_self": 3, "decoder_self": 1, "cross": 3, "bleu": 10.0}]}'
    )
    fact = {"table": "Heads", "label": "can go", "paper": 20.0, "mark": "OK", "unit": "%",
            "measure": "removable", "tolerance": 0.5}  # fmt: skip
    write_paper(tmp_path, rows={}, columns={}, cells=[], baseline=None, speed={}, pruning=[fact])
    text = report().out
    assert "| can go | 20 % | 20 % (1) |" in text
    assert f"headwise prune run={tmp_path / 'runs' / 'b'} table=true" in text
    assert value(tmp_path, row="can go", origin="ours") == 20


def test_run_with_an_unknown_key_is_rejected(runs: Write, report: Report) -> None:
    change_config(runs("a", "softmax", 1, 1), trainer__an_old_key=2)
    result = report()
    assert result.code == 1
    assert "runs/a/config.yaml" in result.err
    assert "trainer.an_old_key is not known" in result.err


def test_missing_folder_is_rejected_with_a_suggestion(report: Report, tmp_path: Path) -> None:
    (tmp_path / "runz").mkdir()
    result = report()
    assert result.code == 1
    message = f"runs={tmp_path / 'runs'}: folder not found"
    assert f"{message}. Did you mean runs={tmp_path / 'runz'}?" in result.err


def test_page_and_figures_get_the_given_arguments(
    headwise: CommandLine, runs: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    from headwise.page import write
    from headwise.studies import figures

    calls: list[Any] = []
    monkeypatch.setattr(write, "write_page", lambda of, _: calls.append((of.run, of.compare)))
    monkeypatch.setattr(figures, "draw_figures", lambda *arguments: calls.append(arguments) or [])
    folder = runs("a", "softmax", 1, 1)
    one_run_command = (f"run={folder}", "compare=other", "page=true", "figures=true")
    many_runs_command = (f"runs=[{folder.parent}/*]", "figures=true", "output=drawn")
    assert [
        headwise("report", *arguments).code for arguments in (one_run_command, many_runs_command)
    ] == [0, 0]
    drawn = [([folder], folder / "figures"), ([folder], Path("drawn"))]
    assert calls == [(str(folder), "other"), *drawn]
