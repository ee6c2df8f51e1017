"""Generated tables of the guide."""

import re
import tomllib
from pathlib import Path

import pytest
from docs.generate import CORPUS_KEYS, PAGES, settings_tables, with_part

from command_line import composer

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("page", "name", "content"),
    [(page, *table) for page, tables in PAGES.items() for table in tables.items()],
)
def test_tables_of_pages_are_up_to_date(page, name, content):
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    assert with_part(text, name, content()) == text, "run python docs/generate.py"


def test_every_training_key_is_documented():
    with composer() as make:
        config = make([])
    documented = set(re.findall(r"^\| `([\w.]+)` \|", settings_tables(), re.MULTILINE))
    typed_groups = ("trainer", "model", "tokenizer", "decode", "data", "tracker", "paths")
    missing = {
        f"{group}.{key}"
        for group in typed_groups
        for key in config[group]
        if key != "_target_" and f"{group}.{key}" not in documented
    }
    assert missing == {f"data.{key}" for key in (*CORPUS_KEYS, "cleaning")}


def test_extras_that_are_named_exist():
    content = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    extras = content["project"]["optional-dependencies"]
    paths = ROOT / "README.md", *ROOT.glob("docs/*.md"), *ROOT.glob("src/**/*.py")
    text = "".join(path.read_text(encoding="utf-8") for path in paths)
    named = re.findall(r"(?:headwise|\.|whl)\[([a-z]+)\]'", text)
    assert {"hf", "slurm"} < set(named) <= extras.keys()
    assert any(name.startswith("accelerate>") for name in extras["hf"])  # for Trainer


def test_text_without_markers_is_rejected():
    with pytest.raises(SystemExit, match="capabilities"):
        with_part("# nothing", "capabilities", "")
