"""Names on the command line that Hydra only accepts in quotes."""

from __future__ import annotations

from pathlib import Path

import pytest

from command_line import CommandLine
from headwise import cli


def test_names_need_no_quotes(headwise: CommandLine, trained: Path, tmp_path: Path) -> None:
    folder = tmp_path / """Läufe=#1; 'beste' "a" [b] (c) {d} \\"""
    folder.symlink_to(trained.parent)
    text = tmp_path / "Übung.de"
    text.write_text("Hund sieht Haus\n", encoding="utf-8")
    result = headwise.ok("translate", f"run={folder / trained.name}", f"input={text}")
    assert result.out == headwise("translate", f"run={trained}", f"input={text}").out


@pytest.mark.parametrize(
    "argument",
    ["a=b", "a=1,2", "a=[ü,b]", 'a="ü"', "a='ü=1'", "a=null", "a=${b}", "--help", "a=x/y z", "~a",
     "--config-dir=ä", "a=\t5", "a=choice(1,2)", "a=glob(*)", "+a=1.5e-3", "a@b=c"],
)  # fmt: skip
def test_hydra_syntax_is_unchanged(argument: str) -> None:
    assert cli._quoted(argument) == argument
