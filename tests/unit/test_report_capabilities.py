"""The README's table of what each variant can do where."""

from __future__ import annotations

from pathlib import Path

import pytest

from headwise.config_dir import group_choices
from headwise.report.capabilities import HEAD, built, capability_row, written_into

README = Path(__file__).parents[2] / "README.md"


def test_the_readme_holds_what_the_classes_say() -> None:
    text = README.read_text(encoding="utf-8")
    renew = "python -m headwise.report.capabilities --write README.md"
    assert written_into(text) == text, f"run {renew}"


def test_a_text_without_the_markers_is_refused() -> None:
    with pytest.raises(SystemExit, match="capabilities"):
        written_into("# nothing")


@pytest.mark.parametrize("name", group_choices("attention"))
def test_every_variant_has_a_line(name: str) -> None:
    row = capability_row(name)
    assert len(row) == len(HEAD)
    stands = [cell == "yes" for cell in row[1:4]]
    assert sum(stands) == len(built(name))
