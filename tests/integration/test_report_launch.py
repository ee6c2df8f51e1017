"""`headwise report` and the trainings it names: a command that is typed, and launch=true."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest

from command_line import SMALL, CommandLine, train_small
from fabricated_runs import facts, write_paper


@pytest.fixture(scope="module")
def softmax_trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Outputs with one run, of softmax and seed 1."""
    folder = tmp_path_factory.mktemp("trained")
    train_small(folder, "attention=softmax", "seed=1")
    return folder


def real_paper(folder: Path, **changes: Any) -> str:
    recipe = (*SMALL, "data.test=[test_a]")
    return write_paper(
        folder, recipe, columns={"mine": {"label": "Mine", "test": "test_a"}}, **changes
    )


def test_the_command_named_for_a_missing_cell_fills_it(
    headwise: CommandLine, softmax_trained: Path, tmp_path: Path
) -> None:
    configs = real_paper(tmp_path, seeds=[1])
    report = (
        "report", "--config-dir", configs, "paper=tiny", f"runs=[{softmax_trained / 'outputs'}]",
        f"output={tmp_path / 'tables'}",
    )  # fmt: skip
    ended = headwise(*report)
    (command,) = re.findall(r"`(headwise train .*)`", ended.out)
    words = shlex.split(command)
    assert words[:2] == ["headwise", "train"]
    assert headwise(*words[1:]).code == 0
    ended = headwise(*report)
    assert "## Missing" not in ended.out
    assert len(facts(tmp_path, quantity="bleu_tokenised_mean")) == 2


def test_launch_trains_what_is_missing_and_goes_on_after_a_failure(
    headwise: CommandLine, softmax_trained: Path, tmp_path: Path
) -> None:
    shutil.copytree(softmax_trained, tmp_path / "here")
    text, outputs = (tmp_path / "here" / name for name in ("text", "outputs"))
    recipe = (*SMALL, "data.test=[test_a]", f"paths.outputs={outputs}")
    overrides = {
        "softmax": [*recipe, "attention=softmax", "data.dir=/nowhere"],
        "entmax15": [*recipe, "attention=entmax15", f"data.dir={text}"],
    }
    cells = [{"row": row, "column": "mine", "overrides": given} for row, given in overrides.items()]
    configs = write_paper(
        tmp_path, seeds=[1, 2], cells=cells, columns={"mine": {"label": "Mine", "test": "test_a"}}
    )
    ended = headwise(
        "report", "--config-dir", configs, "paper=tiny", f"runs=[{outputs}]", "launch=true",
        f"output={tmp_path / 'tables'}",
    )  # fmt: skip
    assert ended.code == 1
    assert "1 of the commands launched failed" in ended.err
    assert "attention=softmax" in ended.err
    assert {r["seed"] for r in facts(tmp_path, row="entmax15", quantity="bleu")} == {"1", "2"}
    assert [r["seed"] for r in facts(tmp_path, row="softmax", quantity="missing")] == ["2"]


def test_the_heads_of_the_runs_that_fill_cells_are_looked_at_and_drawn(
    headwise: CommandLine, softmax_trained: Path, tmp_path: Path
) -> None:
    configs = real_paper(tmp_path, seeds=[1])
    tables = tmp_path / "tables"
    ended = headwise(
        "report", "--config-dir", configs, "paper=tiny", f"runs=[{softmax_trained / 'outputs'}]",
        f"output={tables}", "heads=true", "figures=true",
    )  # fmt: skip
    assert ended.code == 0
    assert "## Heads, Mine" in (tables / "tiny.md").read_text(encoding="utf-8")
    assert "density, mean, cross-attention" in ended.out
    assert (tables / "figures" / "diversity_heads.png").is_file()
