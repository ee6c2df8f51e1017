"""One short training of every case."""

import functools
import os
from collections.abc import Callable

import pytest

from tasks.cases import CASES
from tasks.data import write_own_task
from tasks.trained import TrainedCase
from training_runs import runs, without_figures

__all__ = ["runs", "without_figures"]  # fixtures
Trained = Callable[[str], TrainedCase]


@pytest.fixture(scope="session")
def own_task(tmp_path_factory):
    """The files of the guide's own task."""
    return write_own_task(tmp_path_factory.mktemp("own"))


@pytest.fixture(autouse=True, scope="module")
def _plugin(own_task):
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(own_task)
        patch.setenv("HEADWISE_PLUGINS", "majority")
        yield


@pytest.fixture(scope="session")
def trained(tmp_path_factory, own_task):
    """Name of a case -> its run; no test changes its configuration, weights or scores."""
    base = tmp_path_factory.getbasetemp()
    shared = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "cases"
    shared.mkdir(exist_ok=True)

    @functools.cache
    def train(name):
        own = tmp_path_factory.mktemp(name)
        return TrainedCase.of(CASES[name], shared / name, own, own_task)

    return train
