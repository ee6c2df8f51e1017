"""`headwise report` and the commands of missing runs: by hand and with launch=true."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest

from command_line import SMALL, CommandLine, CommandResult, assert_rejected, train_small
from fabricated_runs import csv_rows, write_paper
from headwise.runs.folder import RunFolder

RECIPE = (*SMALL, "data.test=[test_a]")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def softmax_trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Outputs with one run, of softmax and seed 1."""
    folder = tmp_path_factory.mktemp("trained")
    train_small(folder, "attention=softmax", "seed=1")
    return folder


def write_real_paper(folder: Path, **changes: Any) -> None:
    column = {"label": "Mine", "test": "test_a"}
    write_paper(folder, RECIPE, columns={"mine": column}, **{"seeds": [1], **changes})


def report(headwise: CommandLine, folder: Path, outputs: Path, *more: str) -> CommandResult:
    return headwise(
        "report", "--config-dir", f"{folder}/configs", "paper=tiny", f"runs=[{outputs}]",
        f"output={folder}/tables", *more,
    )  # fmt: skip


def test_listed_command_fills_a_cell(
    headwise: CommandLine, softmax_trained: Path, tmp_path: Path
) -> None:
    write_real_paper(tmp_path)
    result = report(headwise, tmp_path, softmax_trained / "outputs")
    (command,) = re.findall(r"`(headwise train .*)`", result.out)
    arguments = shlex.split(command)
    assert arguments[:2] == ["headwise", "train"]
    headwise.ok(*arguments[1:])
    result = report(headwise, tmp_path, softmax_trained / "outputs")
    assert "## Missing" not in result.out
    assert len(csv_rows(tmp_path, quantity="bleu_tokenised_mean")) == 2


def test_launch_trains_missing_runs_and_continues_after_a_failure(
    headwise: CommandLine, softmax_trained: Path, tmp_path: Path
) -> None:
    text, outputs = softmax_trained / "text", tmp_path / "outputs"
    recipes = {
        "softmax": [*RECIPE, f"paths.outputs={outputs}", "attention=softmax", "data.dir=/nowhere"],
        "entmax15": [*RECIPE, f"paths.outputs={outputs}", "attention=entmax15", f"data.dir={text}"],
    }
    cells = [
        {"row": row, "column": "mine", "overrides": overrides} for row, overrides in recipes.items()
    ]
    shutil.copytree(softmax_trained / "outputs", outputs)
    write_real_paper(tmp_path, cells=cells, seeds=[1, 2])
    result = report(headwise, tmp_path, outputs, "launch=true")
    assert_rejected(result, 1, "1 of the launched commands failed", "attention=softmax")
    assert {r["seed"] for r in csv_rows(tmp_path, row="entmax15", quantity="bleu")} == {"1", "2"}
    assert [r["seed"] for r in csv_rows(tmp_path, row="softmax", quantity="missing")] == ["2"]


def test_runs_start_from_the_runs_of_another_column(
    headwise: CommandLine, softmax_trained: Path, tmp_path: Path
) -> None:
    outputs = tmp_path / "outputs"
    shared = [*RECIPE, f"paths.outputs={outputs}", f"data.dir={softmax_trained / 'text'}"]
    shared += ["attention=softmax", "trainer.max_updates=2", "trainer.validate_every=2"]
    columns = {name: {"label": name, "test": "test_a"} for name in ("tuned", "first")}
    later = {"overrides": [*shared, "optimizer.eps=1e-6"], "init": "first"}
    cells = [
        {"row": "softmax", "column": "tuned", **later},
        {"row": "softmax", "column": "first", "overrides": shared},
    ]
    write_paper(tmp_path, RECIPE, columns=columns, seeds=[1, 2], cells=cells)
    result = report(headwise, tmp_path, outputs, "launch=true")
    assert result.code == 0
    assert "## Missing" not in result.out
    folders = {
        column: {
            row["seed"]: Path(row["run"])
            for row in csv_rows(tmp_path, row="softmax", column=column, quantity="updates")
        }
        for column in columns
    }
    for seed, folder in folders["tuned"].items():
        origin = RunFolder(folder).read_config()["init_from"]
        assert Path(origin) == folders["first"][seed]


def test_heads_of_runs_in_cells_are_analysed_and_drawn(
    headwise: CommandLine, softmax_trained: Path, tmp_path: Path
) -> None:
    write_real_paper(tmp_path)
    options = ("heads=true", "figures=true")
    result = report(headwise, tmp_path, softmax_trained / "outputs", *options)
    assert result.code == 0
    assert "## Heads, Mine" in (tmp_path / "tables" / "tiny.md").read_text(encoding="utf-8")
    assert "density, mean, cross-attention" in result.out
    assert (tmp_path / "tables" / "figures" / "diversity_heads.png").is_file()


def test_heads_of_records_without_weights(
    headwise: CommandLine, softmax_trained: Path, tmp_path: Path
) -> None:
    write_real_paper(tmp_path)
    records = tmp_path / "records"
    shutil.copytree(softmax_trained / "outputs", records)
    analysed = report(headwise, tmp_path, records, "heads=true")
    for checkpoints in records.rglob("checkpoints"):
        shutil.rmtree(checkpoints)
    heads = analysed.out[analysed.out.index("## Heads, Mine") :]
    assert heads in report(headwise, tmp_path, records, "heads=true").out
    for analysis in records.rglob("analysis"):
        shutil.rmtree(analysis)
    result = report(headwise, tmp_path, records, "heads=true")
    assert result.code == 0
    assert " without weights, such as " in result.out
    assert "## Heads" not in result.out
