"""A finished run for the commands that are given one."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from command_line import train_small


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a small run, one for all tests of a file."""
    return train_small(tmp_path_factory.mktemp("run"))


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    """A copy of its own, in another place than where it was trained."""
    shutil.copytree(trained, tmp_path / "moved")
    return tmp_path / "moved"
