"""What a task is to the commands: it makes what the loop trains, measures and leaves behind.

The loop itself (`headwise.train`) knows no task; commands know the one that `task=` names.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from headwise.attention.place import Site
from headwise.config.instantiate import instantiate
from headwise.config.schema import Config
from headwise.data.loader import Examples
from headwise.data.tokenizer import TokenizerPair
from headwise.losses.loss import Loss
from headwise.metrics.metric import Metric
from headwise.model.family import Model
from headwise.runs.folder import RunFolder
from headwise.track.base import HeadValues, Tracker
from headwise.train.distributed import Ranks
from headwise.train.trainer import Validation

Sizes = tuple[int, int]  # of the vocabularies that are read and written


class Corpus(Protocol):
    """Data that was found and not read yet."""

    @property
    def test_sets(self) -> Sequence[str]:
        """Names of the splits that are scored at the end of a run."""
        ...

    def hashes(self) -> list[str]:
        """Of what a run is trained and validated on: they are part of its folder's name."""
        ...


class Data(Protocol):
    """Data that is ready to train on."""

    @property
    def tokenizers(self) -> TokenizerPair:
        """What makes its ids."""
        ...

    @property
    def fingerprint(self) -> str:
        """Of the ids."""
        ...

    @property
    def report(self) -> dict[str, Any]:
        """What its preparation counted."""
        ...


class Validator(Protocol):
    """What the trainer calls at a validation."""

    def __call__(self) -> Validation:
        """Measure the model as it is."""
        ...

    def heads(self) -> dict[str, HeadValues]:
        """Statistics of the heads as they are, on the first rank."""
        ...


C = TypeVar("C", bound=Corpus)
D = TypeVar("D", bound=Data)


class Task(Generic[C, D]):
    """A task; each is one file beside this one.

    Attributes:
        monitor: the metric that `best` and early stopping look at unless another is chosen.
    """

    monitor: str
    command = ""  # that shows what a finished run can do, if there is one

    @property
    def name(self) -> str:
        """As a yaml of data names it."""
        return type(self).__name__.lower()

    def sites(self, config: Config) -> tuple[Site, ...]:
        """Where a model of this task attends."""
        raise NotImplementedError

    def metrics(self, config: Config) -> Sequence[Metric]:
        """What a validation measures, known before data is read."""
        raise NotImplementedError

    def check(self, config: Config) -> None:
        """Refuse settings of this task that cannot be, before data is read."""

    def open(self, config: Config, cache: Path) -> C:
        """Find the data."""
        raise NotImplementedError

    def prepare(self, corpus: C, config: Config, progress: bool) -> D:
        """Make it ready, once; the ranks after the first find it so."""
        raise NotImplementedError

    def model(self, config: Config, sizes: Sizes) -> Model:
        """A model for vocabularies of these sizes."""
        raise NotImplementedError

    def examples(self, config: Config, data: D, ranks: Ranks, scratch: Path) -> Examples:
        """What a run trains on; `scratch` is a folder for what an epoch needs."""
        raise NotImplementedError

    def validator(
        self, model: Model, loss: Loss, data: D, config: Config, ranks: Ranks
    ) -> Validator:
        """What measures the model in between."""
        raise NotImplementedError

    def scorer(
        self, model: Model, loss: Loss, data: D, config: Config, ranks: Ranks
    ) -> Callable[[str, RunFolder, Tracker], dict[str, Any]]:
        """(split, folder, tracker) -> its scores as results.json holds them.

        What the scores are of is left in the folder and shown by the tracker.
        """
        raise NotImplementedError

    def splits(self, config: Config, corpus: C) -> list[str]:
        """What is scored at the end: the validation set and the test sets."""
        return list(dict.fromkeys((config.data.valid, *corpus.test_sets)))


def task_of(config: Config) -> Task[Any, Any]:
    """The task that a config names."""
    task: Task[Any, Any] = instantiate(config.task, "task", Task)
    return task
