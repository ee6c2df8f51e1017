"""Imports run downwards through the rooms of `docs/inside.md`, those for types included."""

from __future__ import annotations

import ast
import graphlib
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from guide import DOCS, ROOT

PACKAGE = ROOT / "src" / "headwise"
CHAPTER = (DOCS / "inside.md").read_text(encoding="utf-8")
ROOMS = tuple(re.findall(r"^\| `(\w+)/` \|", CHAPTER, re.M))  # from the lowest floor to the highest
DOORS = ("", "cli")  # what starts the rest
LEAVES = tuple(sorted({path.stem for path in PACKAGE.glob("*.py")} - {"__init__", *DOORS}))
# Rooms of files, records and numbers know of each other what stands here, no more.
BESIDE_EACH_OTHER = {"data", "metrics", "track", "runs", "plots"}
PLAINLY_NEEDED = {("runs", "track"), ("plots", "track")}
# Words of one task, and the rooms where they are at home.
TASK_WORDS = re.compile(
    r"\bSITES\b|(encoder|decoder|enc|dec)_self|[Tt]ranslat|\b(bleu|BLEU)|[Hh]ypothes"
    r"|\b(source|src)_|_(source|src)\b|\.source\b"
)
TASK_ROOMS = {"tasks", "data", "decode", "metrics", "config", "commands"}
WITH_TASK_WORDS = {  # and why
    "cli": "names the commands",
    "model.transformer": "the family with a source and a target",
}


@cache
def modules() -> dict[str, Path]:
    """Dotted name below `headwise` -> file."""
    named = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        named[".".join(part for part in parts if part != "__init__")] = path
    return named


@cache
def imports(module: str) -> frozenset[str]:
    """Modules of the package that a module imports anywhere in its file."""
    targets = set()
    for name in imported_names(modules()[module]):
        while name and name not in modules():
            name = name.rpartition(".")[0]
        targets.add(name)
    return frozenset(targets - {module, ""})


def imported_names(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}: a relative import"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        yield from (name.removeprefix("headwise.") for name in names if name.startswith("headwise"))


def room(module: str) -> str:
    return module.partition(".")[0]


def floor(module: str) -> int:
    """Leaves, then the rooms in their order, then the doors."""
    if room(module) in LEAVES:
        return 0
    return len(ROOMS) + 1 if room(module) in DOORS else 1 + ROOMS.index(room(module))


def test_chapter_lists_every_room() -> None:
    assert sorted(ROOMS) == sorted(path.parent.name for path in PACKAGE.glob("*/__init__.py"))


@pytest.mark.parametrize("name", [*LEAVES, *ROOMS, *DOORS])
def test_imports_run_downwards(name: str) -> None:
    for module in modules():
        if room(module) == name:
            above = {other for other in imports(module) if floor(other) > floor(module)}
            assert not above, module


def test_no_circle_of_modules() -> None:
    graphlib.TopologicalSorter({module: imports(module) for module in modules()}).prepare()


def test_rooms_of_files_and_numbers_do_not_know_each_other() -> None:
    for module in modules():
        if room(module) in BESIDE_EACH_OTHER:
            others = {(room(module), room(other)) for other in imports(module)}
            known = {pair for pair in others if pair[1] in BESIDE_EACH_OTHER - {pair[0]}}
            assert known <= PLAINLY_NEEDED, module


def test_files_that_the_chapter_names_exist() -> None:
    for name in set(re.findall(r"`([\w/]+(?:\.py|/csrc))`", CHAPTER)):
        assert (PACKAGE / name).exists() or (ROOT / name).exists(), name


def test_words_of_one_task_stand_where_there_is_a_reason() -> None:
    spoken = {n for n, path in modules().items() if TASK_WORDS.search(path.read_text("utf-8"))}
    assert {name for name in spoken if room(name) not in TASK_ROOMS} == WITH_TASK_WORDS.keys()
