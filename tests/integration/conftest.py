"""A finished run for commands that take one, and runs in separate processes."""

import shutil

import pytest

from command_line import train_small
from training_runs import runs, without_figures

__all__ = ["runs", "without_figures"]  # fixtures


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """The folder of a small run; no test writes in it."""
    return train_small(tmp_path_factory.mktemp("run"))


@pytest.fixture
def run(trained, tmp_path):
    """A copy of the run in another folder."""
    shutil.copytree(trained, tmp_path / "moved")
    return tmp_path / "moved"
