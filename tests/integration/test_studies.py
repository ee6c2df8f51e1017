"""Every recipe of a study can be trained, and the published tables are made again.

The tables, from the records in `results/`, are equal in every character.
The text of the tables is in `docs/table1/` where the guide shows it whole, else in `tests/golden/`.
After a change of the text that is meant, write the files again:

    WRITE_TABLES=1 .venv/bin/python -m pytest -n 0 tests/integration/test_studies.py
"""

import difflib
import functools
import os
import re
from itertools import combinations

import pytest

from guide import DOCS, ROOT
from headwise.config.folders import group_choices
from headwise.config.register import typed
from headwise.runs.record import archived
from headwise.studies.study import read_study, recipes
from headwise.tasks.check import checked_task

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def _compose_once(make):
    """Let commands, too, compose the same overrides once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hydra.compose", lambda name, overrides: make(overrides, name))
        yield


# Studies whose rows are no groups -> the settings that distinguish their rows.
OF_ROWS = {
    "alpha_settings": {"model.attention_dropout", "optimizer.lr"},
    "cls_tokens": {"model.cls_tokens", "model.pool"},
    "fine_tuning": {"init_from"},
    "how_many_heads": {"model.n_heads"},
    "variants": {"model.cls_tokens"},
    "repulsion_dropout": {"model.dropout", "model.attention_dropout"},
    "yubert": {"positions._target_", "positions.base"},
}


@pytest.mark.parametrize("name", group_choices("study"))
def test_every_study_has_recipes_that_can_be_trained(make, name):
    study = read_study(make([f"study={name}"], "table").study)
    assert study.name == name
    of_cells = recipes(study.cells)
    configs = {}
    for one in of_cells:
        key = one.overrides, one.cell.init is None
        if key not in configs:
            config = make(one.overrides)
            config.init_from = None if one.cell.init is None else "RUN"
            config.trainer.device, config.trainer.precision = "cpu", "fp32"
            configs[key] = typed(config)
            checked_task(configs[key])
        column = study.columns[one.cell.column]
        assert column.test in configs[key].data.test
        for n_updates in re.findall(r"([\d,]+) updates", column.note or ""):
            assert int(n_updates.replace(",", "")) == one.max_updates, one.cell
    for one, other in combinations(of_cells, 2):
        if one.cell.overrides == other.cell.overrides:  # one run, scored on several sets
            continue
        keys = {*one.decisive, *other.decisive}
        differing = {k for k in keys if one.decisive.get(k) != other.decisive.get(k)}
        assert differing, (one.cell, other.cell)
        groups = {key.partition(".")[0] for key in differing - OF_ROWS.get(name, set())}
        if one.cell.column == other.cell.column:  # they differ in the row only
            assert groups <= {"attention", "pattern", "repulsion"} | (
                {"loss", "scaling", "scaling_sites"}
                if name == "variants"
                else {"scaling", "positions"}
                if name == "length"
                else set()
            )


ENCODERS = ("heads=true", "runs=[results/encoder_small,results/how_many_heads,results/mnist]")
LONG = ("heads=true", "runs=[results/correia2019_long]")
# Table -> the other arguments of the command that README.md or a page of docs/ gives for it.
TABLES = {
    "five_tasks": (
        "runs=[results/correia2019_long,results/child2019_small,results/encoder_small,results/mnist]",
    ),
    "child2019_small": ("runs=[results/child2019_small]",),
    "correia2019_long": LONG,
    "alpha_settings": LONG,
    "yubert": ENCODERS,
    "fine_tuning": ENCODERS,
    "cls_tokens": ENCODERS,
    "how_many_heads": ENCODERS,
    "repulsion_layers": ENCODERS,
    "repulsion_dropout": ENCODERS,
    "label_fractions": ENCODERS,
}


@functools.cache  # several tables are of the same runs
def read_once(folder, kind):
    return [*archived(folder, kind)]


def test_command_of_the_readme_is_that_of_its_table():
    command = " ".join(
        ["python scripts/table.py study=five_tasks", *map(repr, TABLES["five_tasks"])]
    )
    assert command in " ".join((ROOT / "README.md").read_text("utf-8").split())


def published(name):
    shown_whole = DOCS / "table1" / name
    return shown_whole if shown_whole.is_file() else ROOT / "tests" / "golden" / name


@pytest.mark.parametrize("table", TABLES)
def test_tables_from_the_records_are_those_published(headwise, monkeypatch, tmp_path, table):
    monkeypatch.chdir(ROOT)  # the text names runs by the paths that the command was given
    monkeypatch.setattr("headwise.runs.record.archived", read_once)
    headwise.ok("table", f"study={table}", *TABLES[table], f"output={tmp_path}")
    for name in (f"{table}.md", f"{table}.tex"):
        text = (tmp_path / name).read_text(encoding="utf-8")
        if os.environ.get("WRITE_TABLES"):
            published(name).write_text(text, encoding="utf-8")
        before = published(name).read_text(encoding="utf-8")
        lines = (before.splitlines(keepends=True), text.splitlines(keepends=True))
        changes = [*difflib.unified_diff(*lines, "published", "now", n=0)]
        assert not changes, f"{name}:\n" + "".join(changes)
