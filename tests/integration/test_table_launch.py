"""`headwise table` and the commands of missing runs: by hand and with launch=true."""

import re
import shlex
import shutil
from pathlib import Path

import pytest

from command_line import SMALL, assert_rejected, train_small
from fabricated_runs import csv_rows, write_study
from headwise.commands.table import _ready
from headwise.runs.folder import RunFolder
from headwise.studies.missing import Missing

RECIPE = (*SMALL, "data.test=[test_a]")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def softmax_trained(tmp_path_factory):
    """Outputs with one run, of softmax and seed 1."""
    folder = tmp_path_factory.mktemp("trained")
    train_small(folder, "attention=softmax", "seed=1")
    return folder


def column(*overrides, **more):
    return {"label": "Mine", "test": "test_a", "overrides": [*RECIPE, *overrides], **more}


def write_real_study(folder, **changes):
    write_study(folder, **{"columns": {"mine": column()}, "seeds": [1], **changes})


def table(headwise, folder, outputs, *more):
    return headwise(
        "table", "--config-dir", f"{folder}/configs", "study=tiny", f"runs=[{outputs}]",
        f"output={folder}/tables", *more,
    )  # fmt: skip


def test_listed_command_fills_a_cell(headwise, softmax_trained, tmp_path):
    write_real_study(tmp_path)
    result = table(headwise, tmp_path, softmax_trained / "outputs")
    (command,) = re.findall(r"`(headwise train .*)`", result.out)
    arguments = shlex.split(command)
    assert arguments[:2] == ["headwise", "train"]
    headwise.ok(*arguments[1:])
    result = table(headwise, tmp_path, softmax_trained / "outputs")
    assert "## Missing" not in result.out
    assert len(csv_rows(tmp_path, metric="bleu_tokenised")) == 2


def test_launch_trains_missing_runs_and_continues_after_a_failure(
    headwise, softmax_trained, tmp_path
):
    text, outputs = softmax_trained / "text", tmp_path / "outputs"
    rows = {
        "softmax": {"overrides": ["attention=softmax", "data.dir=/nowhere"]},
        "entmax15": {"overrides": ["attention=entmax15", f"data.dir={text}"]},
    }
    shutil.copytree(softmax_trained / "outputs", outputs)
    columns = {"mine": column(f"paths.outputs={outputs}")}
    write_real_study(tmp_path, rows=rows, columns=columns, seeds=[1, 2])
    result = table(headwise, tmp_path, outputs, "launch=true")
    assert_rejected(result, 1, "1 of the launched commands failed", "attention=softmax")
    assert {r["seed"] for r in csv_rows(tmp_path, row="entmax15", metric="bleu")} == {"1", "2"}
    assert "- softmax × Mine, seed 2: `" in result.out


def test_runs_start_from_the_runs_of_another_column(headwise, softmax_trained, tmp_path):
    outputs = tmp_path / "outputs"
    shared = [f"paths.outputs={outputs}", f"data.dir={softmax_trained / 'text'}"]
    shared += ["attention=softmax", "trainer.max_updates=2", "trainer.validate_every=2"]
    columns = {
        "tuned": column(*shared, "optimizer.eps=1e-6", init="first"),
        "first": column(*shared),
    }
    rows = {"softmax": {"overrides": []}}
    write_study(tmp_path, columns=columns, rows=rows, seeds=[1, 2])
    result = table(headwise, tmp_path, outputs, "launch=true")
    assert result.code == 0
    assert "## Missing" not in result.out
    folders = {
        name: {
            row["seed"]: Path(row["run"])
            for row in csv_rows(tmp_path, row="softmax", column=name, metric="bleu")
        }
        for name in columns
    }
    for seed, folder in folders["tuned"].items():
        origin = RunFolder(folder).read_config()["init_from"]
        assert Path(origin) == folders["first"][seed]


def test_heads_of_runs_in_cells_are_analysed(headwise, softmax_trained, tmp_path):
    write_real_study(tmp_path)
    result = table(headwise, tmp_path, softmax_trained / "outputs", "heads=true")
    assert result.code == 0
    assert "## Heads, Mine" in (tmp_path / "tables" / "tiny.md").read_text(encoding="utf-8")
    assert "density, mean, cross-attention" in result.out


def test_heads_of_records_without_weights(headwise, softmax_trained, tmp_path):
    write_real_study(tmp_path)
    records = tmp_path / "records"
    shutil.copytree(softmax_trained / "outputs", records)
    analysed = table(headwise, tmp_path, records, "heads=true")
    for checkpoints in records.rglob("checkpoints"):
        shutil.rmtree(checkpoints)
    heads = analysed.out[analysed.out.index("## Heads, Mine") :]
    assert heads in table(headwise, tmp_path, records, "heads=true").out
    for analysis in records.rglob("analysis"):
        shutil.rmtree(analysis)
    result = table(headwise, tmp_path, records, "heads=true")
    assert result.code == 0
    assert " without weights, such as " in result.out
    assert "## Heads" not in result.out


def test_run_that_several_columns_score_is_launched_once():
    cells = [
        Missing("softmax", f"copy_{n}", (1, 2), ("experiment=length/copy",)) for n in (64, 256)
    ]
    tried = set()
    assert _ready(cells, tried) == cells[:1]
    assert _ready(cells, tried) == []
