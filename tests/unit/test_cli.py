"""Starting Hydra; the versions of Python that are supported."""

import argparse
import re
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

from headwise import __version__, cli

ROOT = Path(__file__).parents[2]


class LazyHelp:
    """As the help of Hydra's --shell-completion."""

    def __repr__(self):
        return "install or uninstall"


def checked(parser, action):
    """As `ArgumentParser._check_help` of Python 3.14."""
    try:
        action.help % {"prog": "headwise"}
    except (TypeError, KeyError, ValueError):
        raise ValueError("badly formed help string") from None


@pytest.mark.parametrize("help_text", [LazyHelp(), "text", "%(default", "%(key)s"])
def test_help_of_hydra_is_accepted_and_text_checked(help_text, monkeypatch):
    is_wrong = isinstance(help_text, str) and "%" in help_text
    monkeypatch.setattr(argparse.ArgumentParser, "_check_help", checked, raising=False)
    action = SimpleNamespace(help=help_text)
    cli._accept_lazy_help.__wrapped__()
    with pytest.raises(ValueError, match="badly") if is_wrong else nullcontext():
        argparse.ArgumentParser._check_help(None, action)


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
