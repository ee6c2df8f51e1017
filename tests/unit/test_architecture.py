"""The package is built as `docs/inside.md` says: parts import downwards, files are there."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from guide import DOCS, ROOT

PACKAGE = ROOT / "src" / "headwise"
PARTS = sorted(path.parent.name for path in PACKAGE.glob("*/__init__.py"))
CHAPTER = (DOCS / "inside.md").read_text(encoding="utf-8")
ABOVE_ALL = {"cli"}  # files that no part imports


def told() -> dict[str, set[str]]:
    """Part -> parts that it may import, by the table of the chapter."""
    rows = re.findall(r"^\| `(\w+)` \| [^|]*\|([^|]*)\|$", CHAPTER, re.M)
    return {part: set(re.findall(r"`(\w+)`", may)) for part, may in rows}


def imported(path: Path) -> Iterator[str]:
    """The first name below `headwise` of every import, those for types alone left out."""
    waiting: list[ast.AST] = [ast.parse(path.read_text(encoding="utf-8"))]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        yield from (name.split(".")[1] for name in names if name.startswith("headwise."))
        waiting += ast.iter_child_nodes(node)


def test_the_chapter_knows_every_part() -> None:
    assert sorted(told()) == PARTS


@pytest.mark.parametrize("part", PARTS)
def test_a_part_imports_what_stands_below_it(part: str) -> None:
    forbidden = (set(PARTS) | ABOVE_ALL) - told()[part] - {part}
    for path in sorted((PACKAGE / part).rglob("*.py")):
        assert not set(imported(path)) & forbidden, path


def test_files_beside_the_parts_know_no_part_but_their_kernels() -> None:
    beside = re.search(r"any part may import: (.*?)\.\n", CHAPTER, re.S)
    assert beside
    for name in re.findall(r"`(\w+)\.py`", beside[1]):
        known = set(imported(PACKAGE / f"{name}.py")) & set(PARTS)
        assert known <= {"entmax"}, name


def test_no_two_parts_import_each_other() -> None:
    below = told()
    for _ in PARTS:  # close the relation
        below = {part: may.union(*(below[other] for other in may)) for part, may in below.items()}
    assert all(part not in may for part, may in below.items())


def test_every_file_the_chapter_names_is_there() -> None:
    for name in set(re.findall(r"`([\w/]+(?:\.py|/csrc))`", CHAPTER)):
        assert (PACKAGE / name).exists() or (ROOT / name).exists(), name
