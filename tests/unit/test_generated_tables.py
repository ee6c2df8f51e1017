"""Generated tables of the guide."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from command_line import composer
from headwise.attention import capabilities
from headwise.attention.capabilities import HEADER, attentions_by_site, capability_row
from headwise.config.folders import group_choices
from headwise.markdown import with_part
from headwise.runs import settings

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("page", "module", "name", "content"),
    [
        *(("docs/variants.md", capabilities, *part) for part in capabilities.TABLES.items()),
        ("docs/settings.md", settings, settings.NAME, settings.tables),
    ],
)
def test_tables_of_pages_are_up_to_date(
    page: str, module: ModuleType, name: str, content: Callable[[], str]
) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    renew = f"python -m {module.__name__} --write {page}"
    assert with_part(text, name, content()) == text, f"run {renew}"


def test_every_training_key_is_documented() -> None:
    with composer() as make:
        config = make([])
    documented = set(re.findall(r"^\| `([\w.]+)` \|", settings.tables(), re.MULTILINE))
    typed_groups = ("trainer", "model", "tokenizer", "decode", "data", "tracker", "paths")
    missing = {
        f"{group}.{key}"
        for group in typed_groups
        for key in config[group]
        if key != "_target_" and f"{group}.{key}" not in documented
    }
    assert missing == {f"data.{key}" for key in (*settings.CORPUS_KEYS, "cleaning")}


def test_text_without_markers_is_rejected() -> None:
    with pytest.raises(SystemExit, match="capabilities"):
        with_part("# nothing", "capabilities", "")


@pytest.mark.parametrize("name", group_choices("attention"))
def test_every_variant_has_a_line(name: str) -> None:
    row = capability_row(name)
    assert len(row) == len(HEADER)
    supported = [cell == "yes" for cell in row[1:4]]
    assert sum(supported) == len(attentions_by_site(name))
