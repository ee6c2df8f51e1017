"""A package imports only packages above it in the table of `docs/inside.md`, types included."""

import ast
import graphlib
import re
from functools import cache

import pytest

from guide import DOCS, ROOT

PACKAGE = ROOT / "src" / "headwise"
PAGE = (DOCS / "inside.md").read_text(encoding="utf-8")
PACKAGES = tuple(re.findall(r"^\| `(\w+)/` \|", PAGE, re.M))  # from the lowest layer up
ENTRY_POINTS = ("", "cli")
LEAVES = tuple(sorted({path.stem for path in PACKAGE.glob("*.py")} - {"__init__", *ENTRY_POINTS}))
# These packages do not import each other, except for the allowed pairs.
INDEPENDENT = {"data", "metrics", "track", "runs", "plots"}
ALLOWED_PAIRS = {("runs", "track"), ("plots", "track")}
# Words of the translation task, and the packages that may use them.
TASK_WORDS = re.compile(
    r"\bSITES\b|(encoder|decoder|enc|dec)_self|[Tt]ranslat|\b(bleu|BLEU)|[Hh]ypothes"
    r"|\b(source|src)_|_(source|src)\b|\.source\b"
)
TASK_PACKAGES = {"tasks", "data", "decode", "metrics", "config", "commands"}
WITH_TASK_WORDS = {  # other modules that may, and why
    "cli": "names the commands",
    "hf.heads": "sites of models of Transformers",
    "model.transformer": "the family with a source and a target",
}


@cache
def modules():
    """Map the dotted name below `headwise` to the file."""
    named = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        named[".".join(part for part in parts if part != "__init__")] = path
    return named


@cache
def imports(module):
    """Modules of the package that a module imports anywhere in its file."""
    targets = set()
    for name in imported_names(modules()[module]):
        while name and name not in modules():
            name = name.rpartition(".")[0]
        targets.add(name)
    return frozenset(targets - {module, ""})


def imported_names(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}: a relative import"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        yield from (name.removeprefix("headwise.") for name in names if name.startswith("headwise"))


def package(module):
    return module.partition(".")[0]


def layer(module):
    """0 for leaves, then the packages in their order, then the entry points."""
    if package(module) in LEAVES:
        return 0
    return (
        len(PACKAGES) + 1
        if package(module) in ENTRY_POINTS
        else 1 + PACKAGES.index(package(module))
    )


def test_table_lists_every_package():
    assert sorted(PACKAGES) == sorted(path.parent.name for path in PACKAGE.glob("*/__init__.py"))


@pytest.mark.parametrize("name", [*LEAVES, *PACKAGES, *ENTRY_POINTS])
def test_packages_import_lower_layers_only(name):
    for module in modules():
        if package(module) == name:
            above = {other for other in imports(module) if layer(other) > layer(module)}
            assert not above, module


def test_no_circular_imports():
    graphlib.TopologicalSorter({module: imports(module) for module in modules()}).prepare()


def test_independent_packages_do_not_import_each_other():
    for module in modules():
        if package(module) in INDEPENDENT:
            others = {(package(module), package(other)) for other in imports(module)}
            imported = {pair for pair in others if pair[1] in INDEPENDENT - {pair[0]}}
            assert imported <= ALLOWED_PAIRS, module


def test_files_named_in_the_page_exist():
    for name in set(re.findall(r"`([\w/]+\.py)`", PAGE)):
        assert (PACKAGE / name).exists() or (ROOT / name).exists(), name


def test_translation_words_are_in_allowed_modules():
    users = {n for n, path in modules().items() if TASK_WORDS.search(path.read_text("utf-8"))}
    assert {name for name in users if package(name) not in TASK_PACKAGES} == WITH_TASK_WORDS.keys()
