"""A finished run for commands that take one, and runs in separate processes."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from command_line import train_small
from training_runs import Runs


@pytest.fixture(autouse=True, scope="session")
def _without_figures() -> Iterator[None]:
    """Skip the figures, which take a second per training; the tests of the guide draw them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("headwise.commands.train.draw", lambda folder, tracker: None)
        yield


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a small run; no test writes in it."""
    return train_small(tmp_path_factory.mktemp("run"))


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    """A copy of the run in another folder."""
    shutil.copytree(trained, tmp_path / "moved")
    return tmp_path / "moved"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """Starts runs that all tests of a file may read."""
    return Runs(tmp_path_factory.mktemp("runs"))
