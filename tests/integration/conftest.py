"""A finished run for the commands that are given one, and runs in processes of their own."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from command_line import train_small
from training_runs import Runs


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a small run, one for all tests of a file."""
    return train_small(tmp_path_factory.mktemp("run"))


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    """A copy of its own, in another place than where it was trained."""
    shutil.copytree(trained, tmp_path / "moved")
    return tmp_path / "moved"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    """Starts runs that all tests of a file may look at."""
    with Runs(tmp_path_factory.mktemp("runs")) as started:
        yield started
