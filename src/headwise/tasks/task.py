"""The interface of a task: its data, model, metrics and the outputs of a run.

The training loop (`headwise.train`) is independent of tasks; `task=` selects one for a command.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, TypeVar, cast

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
from headwise.metrics.metric import Measured, Metric, Score
from headwise.model.family import Model
from headwise.runs.folder import RunFolder
from headwise.tasks.evaluation import head_values, measure_losses
from headwise.tasks.reading import Inspected, Items, Reading
from headwise.tasks.samples import Samples
from headwise.track.base import HeadValues, Tracker
from headwise.train.distributed import Ranks
from headwise.train.trainer import Validation, WriteOutputs, write_nothing

Sizes = Mapping[str, int]  # of the vocabularies, by column of a batch


class Corpus(Protocol):
    """Data whose files are located but not read yet."""

    @property
    def test_sets(self) -> Sequence[str]:
        """Names of the splits that are evaluated at the end of a run."""
        ...

    def hashes(self) -> list[str]:
        """Hashes of the training and validation data; part of the run folder's name."""
        ...


class Data(Protocol):
    """Prepared data, ready for training."""

    @property
    def sizes(self) -> Sizes:
        """Sizes of the vocabularies."""
        ...

    @property
    def vocabulary(self) -> str:
        """Hash of the vocabularies."""
        ...

    @property
    def fingerprint(self) -> str:
        """Hash of the ids."""
        ...

    @property
    def report(self) -> dict[str, Any]:
        """Counts of the preparation."""
        ...

    @property
    def folder(self) -> Path | None:
        """Its folder in the cache; None without files."""
        ...

    def save(self, folder: Path) -> None:
        """Write what a finished run needs, such as tokenizers, to the run folder."""
        ...


class Validator(Protocol):
    """Validation during training."""

    @property
    def uses_part(self) -> bool:
        """Whether a call measures a part of the validation set, unless asked for the whole."""
        ...

    def __call__(self, whole: bool = False) -> Validation:
        """Measure the model with its current weights; `whole`: on the whole validation set."""
        ...

    def heads(self) -> dict[str, HeadValues]:
        """Current statistics of the heads, on the first rank."""
        ...


@dataclass(frozen=True)
class TrainedRun:
    """A run folder with its model, of any task.

    Attributes:
        folder: its paths and small files.
        config: the settings of its training.
        task: selected by the config.
        model: in evaluation mode, on `device`, with the weights of `checkpoint`.
        sizes: of its vocabularies.
        checkpoint: the file of its weights.
        device: of the model.
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
        """Name and content hash of the checkpoint."""
        return {"checkpoint": self.checkpoint.stem, "weights": content_digest(self.checkpoint)}

    @property
    def search(self) -> dict[str, Any]:
        """Settings of the search that affect the scores; recorded with them."""
        return {}

    @property
    def facts(self) -> dict[str, str]:
        """Name -> value of additional facts for the page of the run."""
        return {}


@dataclass(frozen=True)
class NoFiles:
    """The `Corpus` and `Data` of a task that generates its examples."""

    test_sets: Sequence[str]
    sizes: Sizes
    vocabulary = fingerprint = "no files"
    folder = None

    def hashes(self) -> list[str]:
        """Empty: the examples depend on the settings alone."""
        return []

    @property
    def report(self) -> dict[str, Any]:
        """Empty: there is no preparation."""
        return {}

    def save(self, folder: Path) -> None:
        """Write nothing: a finished run needs no files."""


@dataclass(frozen=True)
class SplitValidator:
    """A `Validator` made of functions of the whole set; `write` is that of its `Validation`."""

    measure: Callable[[], Sequence[Measured]]
    heads: Callable[[], dict[str, HeadValues]]
    write: WriteOutputs = write_nothing
    uses_part: ClassVar[bool] = False

    def __call__(self, whole: bool = False) -> Validation:
        """Measure the model with its current weights."""
        return Validation(self.measure(), self.heads, self.write)


C = TypeVar("C", bound=Corpus)
D = TypeVar("D", bound=Data)


class Task(Generic[C, D]):
    """Base class of tasks; each task is one module of `headwise.tasks`.

    Attributes:
        monitor: default metric for the `best` checkpoint and early stopping.
        data: the class of its `data`, or several.
        command: that applies a finished run; empty if there is none.
        references: file in a run folder with the hash of the references; `{split}` is replaced.
    """

    monitor: str
    data: type | tuple[type, ...] = object
    command = ""
    references = ""

    @property
    def name(self) -> str:
        """Name in the yaml files of data."""
        return type(self).__name__.lower()

    def sites(self, config: Config) -> tuple[Site, ...]:
        """Attention sites of a model of this task."""
        raise NotImplementedError

    def metrics(self, config: Config) -> Sequence[Metric]:
        """Metrics of a validation, available before data is read."""
        raise NotImplementedError

    def validation_metrics(self, config: Config) -> Sequence[Metric]:
        """`metrics` with the scope of validations."""
        return self.metrics(config)

    def languages(self, config: Config) -> tuple[str, ...]:
        """Language codes of the data, source first."""
        return ()

    def monitored(self, config: Config) -> str:
        """Metric that selects the best checkpoint unless `trainer.monitor` is set."""
        return self.monitor

    def main_metric(self, config: Config) -> Metric:
        """Metric of tables and curves: the task's monitor if measured, else the run's monitor."""
        metrics = {metric.name: metric for metric in self.metrics(config)}
        return metrics.get(self.monitored(config)) or metrics[config.trainer.monitor or ""]

    def check(self, config: Config) -> None:
        """Raise `ConfigError` for invalid settings of this task, before data is read."""

    def sizes(self, config: Config) -> Sizes:
        """Sizes of the vocabularies before data is read; upper limits if they depend on text."""
        raise NotImplementedError

    def open(self, config: Config, cache: Path) -> C:
        """Locate the data; by default there are no files."""
        return cast(C, NoFiles(config.data.test, self.sizes(config)))

    def prepare(self, corpus: C, config: Config, progress: bool) -> D:
        """Prepare the data; the first rank is called first and fills the cache for the others."""
        return cast(D, corpus)

    def model(self, config: Config, sizes: Sizes) -> Model:
        """Build a model for vocabularies of these sizes."""
        raise NotImplementedError

    def training_model(self, config: Config, data: D) -> Model:
        """Build a model to train on prepared data; by default `model`."""
        return self.model(config, data.sizes)

    def examples(self, config: Config, data: D, ranks: Ranks, scratch: Path) -> Examples:
        """Training examples; `scratch` is a folder for temporary files of an epoch."""
        raise NotImplementedError

    def batches(
        self, data: D, config: Config, split: str, n_items: int | None = None
    ) -> Sequence[Batch]:
        """Batches of the first `n_items` of a split, or of all; their `rows` start at 0.

        Used by the default methods below.
        """
        raise NotImplementedError

    def measured(
        self, model: Model, loss: Loss, data: D, config: Config, ranks: Ranks,
        split: str, n_items: int | None = None, progress: bool = False,
    ) -> Measured:  # fmt: skip
        """The `metrics` of a split, or of its first `n_items`; with a bar if `progress`."""
        batches = self.batches(data, config, split, n_items)
        return measure_losses(model, loss, batches, ranks, progress=progress)

    def scores(self, measured: Measured) -> dict[str, Score]:
        """Scores at the end of a run, in the form of results.json."""
        return measured.scores()

    def write_items(self, measured: Measured, data: D, split: str, folder: RunFolder) -> None:
        """Write what was measured of each item at the end of a run; by default nothing more."""

    def validator(
        self, model: Model, loss: Loss, data: D, config: Config, ranks: Ranks
    ) -> Validator:
        """Validator for the validation split."""
        split, n_items = config.data.valid, config.trainer.head_sentences
        return SplitValidator(
            lambda: [self.measured(model, loss, data, config, ranks, split)],
            lambda: head_values(model, self.batches(data, config, split, n_items), ranks),
            self.written(model, loss, config),
        )

    def written(self, model: Model, loss: Loss, config: Config) -> WriteOutputs:
        """Function that writes outputs of the model at a validation; by default none."""
        return write_nothing

    def scorer(
        self, model: Model, loss: Loss, data: D, config: Config, ranks: Ranks
    ) -> Callable[[str, RunFolder, Tracker], dict[str, Any]]:
        """Function (split, folder, tracker) -> scores in the form of results.json.

        It writes the outputs that it scores to the folder and the tracker.
        """

        def score(split: str, folder: RunFolder, tracker: Tracker) -> dict[str, Any]:
            measured = self.measured(model, loss, data, config, ranks, split)
            if ranks.is_main:
                folder.write_sums(split, measured.unit, measured.items)
                self.write_items(measured, data, split, folder)
            return {**self.scores(measured)}

        return score

    def loaded(self, run: TrainedRun, search: Mapping[str, Any]) -> TrainedRun:
        """The run as this task's subclass of `TrainedRun`.

        Args:
            search: settings of the search that replace the run's; ignored without a search.
        """
        return run

    def samples(self, config: Config, folder: RunFolder) -> Samples[Any]:
        """Prompts and files of samples of a run; a RunError if the task draws none."""
        raise RunError(f"{folder.path} is a run of task={self.name}: it draws no samples")

    def inspected(
        self, run: TrainedRun, data: PruneDataConfig, max_tokens: int, longest: float
    ) -> Inspected:
        """Items for the analysis of heads; by default the first items of a split.

        Args:
            data: the split, and the number of its items.
            max_tokens: tokens per batch, with padding.
            longest: items with more tokens are left out; the default leaves none out.

        Raises:
            ConfigError: the split does not exist (the default).
            DataError: its text does not exist, or all its items are too long.
        """
        config = replace(run.config, trainer=replace(run.config.trainer, max_tokens=max_tokens))
        split = data.split or config.data.valid
        prepared = self.prepared_split(run, split, data.dir)
        batches = self.batches(prepared, config, split, data.sentences)
        texts = {
            name: self.column_text(prepared, config, _items_by_row(batches, name))
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
        """Data with a split of the run; tasks on text can read another folder."""
        require(folder is None, "data.dir", f"null with task={self.name}", folder)
        corpus = self.open(run.config, machine_cache_dir())
        if split not in self.splits(run.config, corpus):
            raise refuse("data.split", split, self.splits(run.config, corpus))
        return self.prepare(corpus, run.config, False)

    def column_text(self, data: D, config: Config, rows: list[list[int]]) -> ColumnText:
        """Rows of ids with the name of each id; by default its number."""
        return ColumnText("", rows, str)

    def items(self, run: TrainedRun, max_items: int, path: Path | None) -> Items:
        """Items to show with attention: of the run's first test set, or the first ones of a file.

        Raises:
            DataError: the text is empty or cannot be read.
            RunError: the task does not define it.
        """
        raise RunError(f"task={self.name} defines no items to show a run on")

    def readings(self, run: TrainedRun, texts: Sequence[Any]) -> Iterator[tuple[int, Reading]]:
        """Yield the index and the reading of each text, or `Item.values`, in any order.

        Raises:
            DataError: a text that cannot be the model's input.
        """
        raise NotImplementedError

    def splits(self, config: Config, corpus: C) -> list[str]:
        """Splits that are evaluated at the end: the validation set and the test sets."""
        return list(dict.fromkeys((config.data.valid, *corpus.test_sets)))


def _items_by_row(batches: Sequence[Batch], column: str) -> list[list[int]]:
    """The ids of each item of batches, in the order of their `rows`."""
    items = {
        row: ids
        for b in batches
        for row, ids in zip(b.rows, b.columns[column].items(), strict=True)
    }
    return [items[row] for row in sorted(items)]


def task_of(config: Config) -> Task[Any, Any]:
    """The task that a config selects."""
    task: Task[Any, Any] = instantiate(config.task, "task", Task)
    return task
