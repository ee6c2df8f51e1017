"""The checkout: layers of packages, light imports, generated tables, versions in every file.

A package imports only packages above it in the table of `docs/inside.md`, types included.
"""

import ast
import graphlib
import re
import subprocess
import sys
import tomllib
from functools import cache

import pytest
from docs.generate import CORPUS_KEYS, PAGES, settings_tables, with_part

from command_line import composer
from guide import DOCS, ROOT
from headwise import __version__

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


# -- light imports --------------------------------------------------------------------------------


LIGHT = {  # modules -> packages that they must not load
    "data.builtin, data.sources.archive, data.sources.hub": "torch hydra wandb",
    ", ".join(
        f"tasks.translation.{name}" for name in ("corpus", "prepare", "encoding")
    ): "torch hydra wandb",
    "entmax, nn": "headwise.config hydra omegaconf sentencepiece datasets wandb triton",
    "hf": "headwise.config headwise.analysis hydra omegaconf datasets wandb transformers.trainer",
    "commands.runs": "torch pandas matplotlib",
    "runs.record": "torch pandas hydra",
    "tasks.load, commands.translate, commands.analyze": "torch._dynamo",
    "commands.outcome, track": "matplotlib pandas seaborn wandb",
}


def python(code):
    """Run code in a process of its own."""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


@pytest.mark.slow
@pytest.mark.parametrize("modules", LIGHT)
def test_heavy_packages_are_not_imported(modules):
    names = ", ".join(f"headwise.{name}" for name in modules.split(", "))
    code = f"import sys, {names}; print(sorted(set({LIGHT[modules].split()}) & set(sys.modules)))"
    assert python(code).stdout.strip() == "[]"


@pytest.mark.slow
def test_missing_transformers_are_named():
    code = "import sys; sys.modules['transformers'] = None; import headwise.hf"
    run = python(code)
    assert run.stderr.splitlines()[-1].startswith("ImportError: headwise.hf needs")
    assert "pip install 'headwise[hf]'" in run.stderr


@pytest.mark.slow
def test_formulas_of_flops_need_no_other_import():
    code = """from headwise.ops.flops import register_flops
register_flops()
import torch
from headwise.ops import linear
from torch.utils.flop_counter import flop_registry
ours, theirs = torch.ops.headwise, [torch.ops.mkldnn._linear_pointwise] if linear.DTYPES else []
counted = {ours.attention, ours.attention_backward, ours.attention_of_few, *theirs}
print(counted - flop_registry.keys())"""
    assert python(code).stdout.strip() == "set()"


# -- generated tables -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("page", "name", "content"),
    [
        pytest.param(page, *table, marks=pytest.mark.slow if page == "corpora.md" else ())
        for page, tables in PAGES.items()
        for table in tables.items()
    ],
)
def test_tables_of_pages_are_up_to_date(page, name, content):
    text = (DOCS / page).read_text(encoding="utf-8")
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


# -- versions -------------------------------------------------------------------------------------


CHECKED_HELP = """
import argparse, sys, types

def checked(parser, action):  # as of Python 3.14
    try:
        action.help % {"prog": "headwise"}
    except (TypeError, KeyError, ValueError):
        raise ValueError("badly formed help string") from None

argparse.ArgumentParser._check_help = checked
from headwise.cli import main
sys.argv = ["headwise", "runs", "--help"]
try:
    main()
except SystemExit as end:
    assert not end.code
for text in (object(), "text", "%(default", "%(key)s"):
    try:
        argparse.ArgumentParser()._check_help(types.SimpleNamespace(help=text))
        print("accepted")
    except ValueError:
        print("refused")
"""


def test_help_of_hydra_is_accepted_and_text_checked():
    result = python(CHECKED_HELP)
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("usage: headwise runs")
    assert result.stdout.split()[-4:] == ["accepted", "accepted", "refused", "refused"]


def test_supported_pythons_are_the_same_everywhere():
    project, makefile, readme, guide = (
        (ROOT / name).read_text(encoding="utf-8")
        for name in ("pyproject.toml", "Makefile", "README.md", "docs/contributing.md")
    )
    versions = re.findall(r"Python :: 3\.(\d+)", project)
    first, last = versions[0], versions[-1]
    assert f'requires-python = ">=3.{first},<3.{int(last) + 1}"' in project
    assert f"(3, {first}) <= sys.version_info[:2] <= (3, {last})" in makefile
    assert all(f"python3.{version}" in makefile for version in versions)
    named = ", ".join(f"3.{version}" for version in versions[:-1]) + f" or 3.{last}"
    assert f"Python 3.{first} to 3.{last}" in readme
    assert f"Python {named}" in makefile
    assert f"Python 3.{first} to 3.{last}" in guide


def test_version_is_the_same_everywhere():
    citation, changes = (
        (ROOT / name).read_text(encoding="utf-8") for name in ("CITATION.cff", "CHANGELOG.md")
    )
    assert f"\nversion: {__version__}\n" in citation
    newest = re.search(r"^## (?!Unreleased)(\S+)", changes, re.MULTILINE)
    assert newest is not None
    assert newest[1] == __version__
