"""What a task is to the commands: it makes what the loop trains, measures and leaves behind.

The loop itself (`headwise.train`) knows no task; commands know the one that `task=` names.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar, cast

import torch

from headwise.analysis.survey import ColumnText
from headwise.attention.place import Site
from headwise.config.instantiate import instantiate
from headwise.config.schema import Config, PruneDataConfig
from headwise.data.batch import Batch
from headwise.data.digest import content_digest
from headwise.data.loader import Examples
from headwise.errors import RunError, refuse, require
from headwise.files import machine_cache_dir
from headwise.losses.loss import Loss
from headwise.metrics.metric import Measured, Metric
from headwise.model.family import Model
from headwise.runs.folder import RunFolder
from headwise.tasks.evaluation import head_values, measure_losses
from headwise.tasks.reading import Items, Reading
from headwise.track.base import HeadValues, Tracker
from headwise.train.distributed import Ranks
from headwise.train.trainer import Validation

Sizes = Mapping[str, int]  # of the vocabularies, by column of a batch


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
    def sizes(self) -> Sizes:
        """Sizes of the vocabularies."""
        ...

    @property
    def vocabulary(self) -> str:
        """Hash of what the ids stand for."""
        ...

    @property
    def fingerprint(self) -> str:
        """Hash of the ids."""
        ...

    @property
    def report(self) -> dict[str, Any]:
        """What its preparation counted."""
        ...

    @property
    def folder(self) -> Path | None:
        """Its place in the cache; None: there are no files."""
        ...

    def save(self, folder: Path) -> None:
        """Write what a finished run needs of it, such as tokenizers, into the run folder."""
        ...


class Validator(Protocol):
    """What the trainer calls at a validation."""

    def __call__(self) -> Validation:
        """Measure the model as it is."""
        ...

    def heads(self) -> dict[str, HeadValues]:
        """Statistics of the heads as they are, on the first rank."""
        ...


@dataclass(frozen=True)
class TrainedRun:
    """A run folder with its model, of any task.

    Attributes:
        model: in evaluation mode, on `device`, with the weights of `checkpoint`.
        sizes: of its vocabularies.
        checkpoint: the file of its weights.
    """

    folder: RunFolder
    config: Config
    task: Task[Any, Any]
    model: Model
    sizes: Sizes
    checkpoint: Path
    device: torch.device

    @property
    def weights(self) -> dict[str, str]:
        """Which weights these are, by name and by content."""
        return {"checkpoint": self.checkpoint.stem, "weights": content_digest(self.checkpoint)}

    @property
    def search(self) -> dict[str, Any]:
        """What else decides its scores, as it is recorded beside them."""
        return {}

    @property
    def facts(self) -> dict[str, str]:
        """Name -> what the page of the run says of it beside what every run has."""
        return {}


@dataclass(frozen=True)
class Inspected:
    """Items of a split (sentences, windows) that heads are looked at on.

    Attributes:
        split: its name.
        batches: all items; their `rows` are places in the lists that follow.
        texts: of each column of the batches.
        numbers: of the items in the split, from 1.
        measure: what a validation measures, on these items with the model as it is.
        n_left_out: items that are too long.
    """

    split: str
    batches: Sequence[Batch]
    texts: Mapping[str, ColumnText]
    numbers: Sequence[int]
    measure: Callable[[Loss], Sequence[Measured]]
    n_left_out: int = 0

    def digest(self) -> str:
        """Hash of the ids."""
        ids = {name: [list(map(int, row)) for row in t.ids] for name, t in self.texts.items()}
        return hashlib.sha256(json.dumps(ids).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class NoFiles:
    """The `Corpus` and the `Data` of a task that makes its examples itself."""

    test_sets: Sequence[str]
    sizes: Sizes
    vocabulary = fingerprint = "no files"
    folder = None

    def hashes(self) -> list[str]:
        """None: all that the examples depend on stands in the settings."""
        return []

    @property
    def report(self) -> dict[str, Any]:
        """Nothing was prepared."""
        return {}

    def save(self, folder: Path) -> None:
        """A finished run needs nothing more."""


@dataclass(frozen=True)
class SplitValidator:
    """A `Validator` of two functions."""

    measure: Callable[[], Sequence[Measured]]
    heads: Callable[[], dict[str, HeadValues]]

    def __call__(self) -> Validation:
        """Measure the model as it is."""
        return Validation(self.measure(), self.heads())


C = TypeVar("C", bound=Corpus)
D = TypeVar("D", bound=Data)


class Task(Generic[C, D]):
    """A task; each is one file beside this one.

    Attributes:
        monitor: the metric that `best` and early stopping look at unless another is chosen.
    """

    monitor: str
    data: type = object  # the class of its `data`
    command = ""  # that shows what a finished run can do, if there is one
    references = ""  # file of a run folder, by {split}, that its items are judged against

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

    def languages(self, config: Config) -> tuple[str, ...]:
        """Codes of the languages of the data, from the one that is read on."""
        return ()

    def judged_by(self, config: Config) -> Metric:
        """What tables and curves of runs show: the monitor, or what a run has in its place."""
        known = {metric.name: metric for metric in self.metrics(config)}
        return known.get(self.monitor) or known[config.trainer.monitor or ""]

    def check(self, config: Config) -> None:
        """Refuse settings of this task that cannot be, before data is read."""

    def sizes(self, config: Config) -> Sizes:
        """Sizes of the vocabularies before data is read: upper limits where the text decides."""
        raise NotImplementedError

    def open(self, config: Config, cache: Path) -> C:
        """Find the data; there are no files unless a task defines this."""
        return cast(C, NoFiles(config.data.test, self.sizes(config)))

    def prepare(self, corpus: C, config: Config, progress: bool) -> D:
        """Make it ready, once; the ranks after the first find it so."""
        return cast(D, corpus)

    def model(self, config: Config, sizes: Sizes) -> Model:
        """A model for vocabularies of these sizes."""
        raise NotImplementedError

    def examples(self, config: Config, data: D, ranks: Ranks, scratch: Path) -> Examples:
        """What a run trains on; `scratch` is a folder for what an epoch needs."""
        raise NotImplementedError

    def batches(
        self, data: D, config: Config, split: str, n_items: int | None = None
    ) -> Sequence[Batch]:
        """A split for evaluation, its first `n_items` or all; `rows` count them from 0.

        What follows needs it, unless a task defines that itself.
        """
        raise NotImplementedError

    def measured(
        self,
        model: Model,
        loss: Loss,
        data: D,
        config: Config,
        ranks: Ranks,
        split: str,
        n_items: int | None = None,
    ) -> Measured:
        """The `metrics` of a split, or of its first items."""
        return measure_losses(model, loss, self.batches(data, config, split, n_items), ranks)

    def validator(
        self, model: Model, loss: Loss, data: D, config: Config, ranks: Ranks
    ) -> Validator:
        """What measures the model in between, on the validation split."""
        split, n_items = config.data.valid, config.trainer.head_sentences
        return SplitValidator(
            lambda: [self.measured(model, loss, data, config, ranks, split)],
            lambda: head_values(model, self.batches(data, config, split, n_items), ranks),
        )

    def scorer(
        self, model: Model, loss: Loss, data: D, config: Config, ranks: Ranks
    ) -> Callable[[str, RunFolder, Tracker], dict[str, Any]]:
        """(split, folder, tracker) -> its scores as results.json holds them.

        What the scores are of is left in the folder and shown by the tracker.
        """

        def score(split: str, folder: RunFolder, tracker: Tracker) -> dict[str, Any]:
            found = self.measured(model, loss, data, config, ranks, split)
            if ranks.is_main:
                folder.write_sums(Path(f"{split}.{found.metrics[0].unit}.npy"), found.items)
            return {**found.scores()}

        return score

    def loaded(self, run: TrainedRun, search: Mapping[str, Any]) -> TrainedRun:
        """The run with what this task can do with it.

        Args:
            search: settings of a search that differ from the run's; tasks without one ignore them.
        """
        return run

    def inspected(
        self, run: TrainedRun, data: PruneDataConfig, max_tokens: int, longest: float
    ) -> Inspected:
        """What heads are looked at on: unless a task defines it, the first items of a split.

        Args:
            data: which split, and how many of its items.
            max_tokens: of a batch, with padding.
            longest: items with more tokens are left out.

        Raises:
            DataError: there is no such split, or nothing is left of it.
        """
        trainer = replace(run.config.trainer, max_tokens=max_tokens)
        config = replace(run.config, trainer=trainer)
        split = data.split or config.data.valid
        prepared = self.prepared_split(run, split, data.dir)
        batches = self.batches(prepared, config, split, data.sentences)
        texts = {
            name: self.column_text(
                prepared, config, [row for b in batches for row in b.columns[name].items()]
            )
            for name in batches[0].columns
        }
        shared = prepared, config, Ranks(0, 1, run.device), split, data.sentences
        return Inspected(
            split,
            batches,
            texts,
            range(1, sum(map(len, batches)) + 1),
            lambda loss: [self.measured(run.model, loss, *shared)],
        )

    def prepared_split(self, run: TrainedRun, split: str, folder: str | None) -> D:
        """Data with a split of the run's own; tasks that have text can read another folder."""
        require(folder is None, "data.dir", f"null with task={self.name}", folder)
        corpus = self.open(run.config, machine_cache_dir())
        if split not in self.splits(run.config, corpus):
            raise refuse("data.split", split, self.splits(run.config, corpus))
        return self.prepare(corpus, run.config, False)

    def column_text(self, data: D, config: Config, rows: list[list[int]]) -> ColumnText:
        """Rows of ids with the name of each id: the number itself unless a task has tokens."""
        return ColumnText("", rows, str)

    def items(self, run: TrainedRun, most: int, path: Path | None) -> Items:
        """What a run is shown on: items of its first test set, or the first ones of a file.

        Raises:
            DataError: there is no text, or it cannot be read.
            RunError: the task does not define it.
        """
        raise RunError(f"task={self.name} defines no items to show a run on")

    def readings(self, run: TrainedRun, texts: Sequence[str]) -> Iterator[tuple[int, Reading]]:
        """Each text as the model goes through it, with its place, in no certain order.

        Raises:
            DataError: a text that the model cannot read.
        """
        raise NotImplementedError

    def splits(self, config: Config, corpus: C) -> list[str]:
        """What is scored at the end: the validation set and the test sets."""
        return list(dict.fromkeys((config.data.valid, *corpus.test_sets)))


def task_of(config: Config) -> Task[Any, Any]:
    """The task that a config names."""
    task: Task[Any, Any] = instantiate(config.task, "task", Task)
    return task
