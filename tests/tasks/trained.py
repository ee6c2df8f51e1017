"""A task on small data, and its short training."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, product
from pathlib import Path

import pytest

from command_line import exit_code, read_json, run_folders
from headwise import load
from headwise.files import locked

SMALL = (
    "model=tiny", "model.d_model=16", "model.d_ff=32", "trainer.max_tokens=64",
    "trainer.max_updates=12", "trainer.validate_every=6", "trainer.save_every=6",
    "trainer.log_every=3", "trainer.average=0", "trainer.head_sentences=2",
    "trainer.precision=fp32", "trainer.progress=false", "scheduler.warmup_updates=4",
    "tracker=none",
)  # fmt: skip
Scores = dict[str, float]
PageItems = list[tuple[dict[str, str], str | bytes]]


@dataclass(frozen=True)
class TaskCase:
    """A task on small data.

    Attributes:
        settings: overrides of its training, after `SMALL`.
        sites: site -> numbers of layers and heads.
        score_by_hand: the run -> {"split/metric": score}, from its weights.
        page_items: the run -> texts of each item of its first test set, and the queries of the
            first site, joined, or its values.
        write_data: to a folder; None: the data are drawn.
        slow: all is for `make test-all` alone.
        greedy: settings of the search of validations.
    """

    name: str
    settings: tuple[str, ...]
    sites: Mapping[str, tuple[int, int]]
    score_by_hand: Callable[[TrainedCase], Scores]
    page_items: Callable[[TrainedCase], PageItems]
    write_data: Callable[[Path], object] | None = None
    slow: bool = False
    greedy: tuple[str, ...] = ()

    @property
    def heads(self):
        """(site, layer, head), from 1."""
        numbered = (
            product([site], range(1, n_layers + 1), range(1, n_heads + 1))
            for site, (n_layers, n_heads) in self.sites.items()
        )
        return list(chain(*numbered))


@dataclass(frozen=True)
class TrainedCase:
    """A case, its data and its run; `folder` is shared by all workers, `own` is not."""

    case: TaskCase
    folder: Path
    own: Path
    overrides: list[str]

    @classmethod
    def of(cls, case, folder, own, own_task):
        """Write the data and train, once; `own_task` is the folder of the guide's task."""
        overrides = ["--config-dir", str(own_task / "choices")] if "own" in case.name else []
        overrides += [*SMALL, *case.settings, f"paths.cache={folder}/cache"]
        if case.write_data is not None:
            overrides.append(f"data.dir={folder}/data")
        trained = cls(case, folder, own, overrides)
        folder.mkdir(exist_ok=True)
        with locked(folder / "lock"):
            if not (folder / "whole").exists():
                if case.write_data is not None:
                    case.write_data(folder / "data")
                trained.train(folder / "outputs").rename(folder / "whole")
        return trained

    def train(self, outputs, *changes):
        """Train with other settings, in a folder of its own."""
        arguments = [*self.overrides, *changes, f"paths.outputs={outputs}"]
        with pytest.MonkeyPatch.context() as patch:
            assert exit_code(patch, "train", *arguments) == 0
        (run,) = run_folders(outputs)
        return run

    @cached_property
    def run(self):
        return shutil.copytree(self.folder / "whole", self.own / "run")

    @cached_property
    def stopped(self):
        """A copy of a run of 7 updates; that below `halves` may be resumed."""
        run = self.train(self.own / "halves", "trainer.max_updates=7")
        return shutil.copytree(run, self.own / "stopped")

    @property
    def results(self):
        return read_json(self.run / "results.json")

    def setting(self, key):
        return dict(o.split("=", 1) for o in self.overrides if "=" in o)[key]

    def loaded(self):
        return load(self.run, device="cpu")

    def model(self):
        """In float64."""
        return self.loaded().model.double()

    def data(self, name):
        return self.folder / "data" / name
