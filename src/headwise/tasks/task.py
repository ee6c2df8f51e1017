"""The interface of a task: its data, model, metrics and outputs, built once for a run's settings.

The training loop (`headwise.train`) is independent of tasks; `task=` selects one for a command.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, fields, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, Self, TypeVar, cast

import torch
from torch import Tensor

from headwise.analysis.survey import ColumnText
from headwise.attention.place import Site
from headwise.config.instantiate import instantiate
from headwise.config.keys import with_changes
from headwise.config.schema import Config
from headwise.data.batch import Batch
from headwise.data.file_corpus import Corpus
from headwise.data.loader import Examples
from headwise.data.sources.digest import content_digest, values_digest
from headwise.data.sources.origins import log_paths
from headwise.errors import ConfigError, DataError, RunError, refuse, require, unknown
from headwise.losses.loss import Loss
from headwise.metrics.metric import Floats, Measured, Metric
from headwise.model.family import Model
from headwise.precision import resolve_precision
from headwise.runs.folder import RunFolder
from headwise.tasks.data import NoFiles, Sides, Sizes
from headwise.tasks.measure import measure_losses
from headwise.tasks.shown import Candidates, Item, given, rows_of, shown_ids
from headwise.track.base import Tracker
from headwise.train.distributed import Ranks

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from headwise.runs.record import Record

# S; logits (R, V) and targets (R,) of the scored positions -> more statistics of each, (R, S)
Extra = tuple[int, Callable[[Tensor, Tensor], Tensor]]


@dataclass(frozen=True)
class Part:
    """The first items of a split that are not too long.

    Attributes:
        split: its name.
        n: number of items; None: all.
        n_outputs: outputs are made of so many of them; None: of all.
        longest: items with more tokens are left out, by tasks whose items differ in length.
        consecutive: whether each token is in one item, whatever the search.
    """

    split: str
    n: int | None = None
    n_outputs: int | None = None
    longest: float = math.inf
    consecutive: bool = False


Source = Part | Path | Sequence[Any]  # a split, a text file, or inputs of a user: `Item.input`


class Outputs:
    """What a model made of items, such as translations; by default nothing is written of it."""

    note = ""  # why there is no loss

    def write(self, folder: RunFolder, name: Path, tracker: Tracker) -> Mapping[str, Any]:
        """Write the outputs of a split; return scores that are no metrics, as in results.json.

        Args:
            folder: where to write.
            name: of the split, with the subfolder.
            tracker: which logs a part of them.
        """
        return {"note": {"loss": self.note}} if self.note else {}

    def write_validation(self, folder: RunFolder, tracker: Tracker, update: int) -> None:
        """Write the outputs of a validation after `update` updates."""


class Evaluation(NamedTuple):
    """Statistics of items with their metrics, and the outputs."""

    measured: Sequence[Measured]  # one for each unit of items
    outputs: Outputs = Outputs()


@dataclass(frozen=True)
class TrainedRun:
    """A run folder with its model, of any task; a task may have a subclass with more methods.

    Attributes:
        folder: its paths and small files.
        task: with the settings of its training, and of its search.
        model: in evaluation mode, on `device`, with the weights of `checkpoint`.
        sizes: of its vocabularies.
        checkpoint: the file of its weights.
        device: of the model.
    """

    folder: RunFolder
    task: Task[Any]
    model: Model
    sizes: Sizes
    checkpoint: Path
    device: torch.device

    @property
    def config(self) -> Config:
        """The settings of its training, and of its search."""
        return self.task.config

    @property
    def weights(self) -> dict[str, str]:
        """Name and content hash of the checkpoint."""
        return {"checkpoint": self.checkpoint.stem, "weights": content_digest(self.checkpoint)}

    @property
    def search(self) -> dict[str, Any]:
        """Settings below `decode` that affect the scores; recorded with them."""
        decode = self.config.decode
        names = [field.name for field in fields(decode) if field.name[0] != "_"]
        return {name: getattr(decode, name) for name in names} if self.task.searches else {}

    def searching(self, changes: Mapping[str, Any]) -> Self:
        """The run with other settings below `decode`; None leaves a setting unchanged.

        Raises:
            ConfigError: an unknown `decode.<key>`, or a value that is not allowed.
        """
        if not self.task.searches:
            for key in (key for key, value in changes.items() if value is not None):
                raise unknown("decode.", key, [])
            return self
        decode = with_changes(self.config.decode, "decode", changes)
        task = self.task.changed(decode=decode)
        task.check_search()
        decode.precision = resolve_precision(decode.precision, self.device)
        return replace(self, task=task)

    def test_sets(self, folder: str | None = None) -> Sequence[str]:
        """Its test sets, or those of the data in a folder."""
        task, named = self.task, self.config.data.test
        saved = [] if folder else task.saved_tests(self.folder.path)
        return named or saved or task.reopened(folder).test_sets

    def data(self, splits: Sequence[str], folder: str | None = None) -> Any:
        """Splits, encoded as in the training; see `Task.restored`."""
        return self.task.restored(self.folder.path, splits, folder)


D = TypeVar("D")


class Task(ABC, Generic[D]):
    """Base class of tasks; the constructor takes the config and the keys below `task`.

    Attributes:
        data: the class of its `data`, or several.
        searches: whether settings below `decode` affect its scores.
        run: the class of a loaded run.
        command: that applies a finished run; empty if there is none.
        data_files: patterns of the files in a run folder with which it reads its data.
        references: file in a run folder with the hash of the references; `{split}` is replaced.
    """

    data: ClassVar[type | tuple[type, ...]] = object
    searches: ClassVar[bool] = False
    run: ClassVar[type[TrainedRun]] = TrainedRun
    command: ClassVar[str] = ""
    data_files: ClassVar[tuple[str, ...]] = ("data.json", "tokenizer*.model")
    references: ClassVar[str] = ""

    def __init__(self, config: Config) -> None:
        self.config = config

    @property
    def name(self) -> str:
        """Name in the yaml files of data."""
        return type(self).__name__.lower()

    @property
    def cache(self) -> Path:
        """Folder of encoded data and downloads."""
        return Path(self.config.paths.cache)

    @property
    def metric(self) -> Metric:
        """The metric of tables and curves, and of `trainer.monitor` by default."""
        return self.metrics()[0]

    @property
    def languages(self) -> tuple[str, ...]:
        """Language codes of the data, source first."""
        codes = (getattr(self.config.data, key, None) for key in ("source", "target", "language"))
        return tuple(code for code in codes if code)

    @property
    def unit(self) -> str:
        """What its items are, in the plural."""
        return "sentences"

    @property
    def row_tokens(self) -> int | None:
        """Tokens of every row; None: rows have different numbers of tokens."""
        return None

    @property
    def n_outputs(self) -> int:
        """Number of outputs of a validation."""
        return 0

    @cached_property
    def loss(self) -> Loss:
        """The loss of the config."""
        return instantiate(self.config.loss, "loss", Loss)  # type: ignore[no-any-return]

    def changed(self, **changes: Any) -> Self:
        """The task with other settings of the config."""
        other = copy(self)
        other.config = replace(self.config, **changes)
        return other

    # -- before data is read ------------------------------------------------------------------

    @abstractmethod
    def sites(self) -> tuple[Site, ...]:
        """Attention sites of a model."""

    @abstractmethod
    def sizes(self) -> Sizes:
        """Sizes of the vocabularies before data is read; upper limits if they depend on text."""

    @abstractmethod
    def metrics(self, data: D | None = None) -> Sequence[Metric]:
        """Metrics of a validation, the main one first; some may be known with the data only."""

    def check(self) -> None:
        """Raise `ConfigError` for invalid settings of this task."""

    def check_search(self) -> None:
        """Raise `ConfigError` for invalid settings below `decode`."""

    # -- data, model, training ----------------------------------------------------------------

    def open(self, cache: Path) -> Any:
        """Locate the data, a `Corpus`; by default there are no files."""
        return NoFiles(self.config.data.test, self.sizes())

    def splits(self, corpus: Corpus) -> list[str]:
        """Splits that are evaluated at the end: the validation set and the test sets."""
        return list(dict.fromkeys((self.config.data.valid, *corpus.test_sets)))

    def prepare(self, corpus: Any) -> D:
        """Prepare opened data; the first rank is called first, and fills the cache for all."""
        return cast(D, corpus)

    @abstractmethod
    def model(self, sizes: Sizes, data: D | None = None) -> Model:
        """Build a model for vocabularies of these sizes; with `data` one to train on them."""

    @abstractmethod
    def examples(self, data: D, ranks: Ranks, scratch: Path) -> Examples:
        """Training examples; `scratch` is a folder for temporary files of an epoch."""

    # -- evaluation ---------------------------------------------------------------------------

    @abstractmethod
    def batches(self, data: D, part: Part) -> Sequence[Batch]:
        """Batches of the items of a part; their `rows` count these items from 0."""

    def too_long(self, data: D, part: Part) -> Sequence[int]:
        """Numbers, from 0, of items before the last one of a part that are left out of it."""
        return ()

    def extra(self, data: D) -> Extra | None:
        """Statistics of an item after the loss, its measure, and the number of targets."""
        return None

    def evaluate(
        self, model: Model, data: D, part: Part, ranks: Ranks, progress: bool = False
    ) -> Evaluation:
        """Measure the `metrics` of a part, and make its outputs; with a bar if `progress`.

        Raises:
            DataError: no item has a target.
        """
        n_extra, extra = self.extra(data) or (0, None)
        batches = self.batches(data, part)
        items = measure_losses(model, self.loss, batches, ranks, extra, progress, n_extra).items
        if not items[:, 2].any():
            raise DataError(f"no item of {part.split} has a target, so that it has no score")
        return Evaluation([Measured(items, self.metrics(data))])

    def contents(self, data: D, split: str) -> tuple[str, str]:
        """Hashes of a split, 16 hex digits each: of its content, and of its items.

        Scores of one content are of the same test set. The statistics of items are paired only if
        their hashes are equal, which includes the content: windows of other lengths of one text are
        other items. Both are independent of names, of where the data is, and of the number of items
        in a batch.

        By default, for a task without files, both are of the ids, the scored positions and the
        targets of all rows of `batches`. Of a model with one state per row, the positions are 0.
        """
        rows: dict[int, Any] = {}
        for batch in self.batches(data, Part(split)):
            *_, last = columns = list(batch.columns.values())
            places = batch.scored_R.tolist()
            n = 1 if places == list(range(len(batch))) else last.ids_BN.shape[1]
            ids = zip(*(column.items() for column in columns), strict=True)
            rows |= {row: [of_row, []] for row, of_row in zip(batch.rows, ids, strict=True)}
            for place, target in zip(places, batch.targets_R.tolist(), strict=True):
                rows[batch.rows[place // n]][-1].append((place % n, target))
        return (values_digest(rows[row] for row in sorted(rows)),) * 2

    def labels(self, items: Floats) -> Floats | None:
        """The labels of scored items, for McNemar's test of accuracies; None: it does not apply."""
        return None

    def quick(self) -> Self:
        """The task with the search of validations, which takes less time."""
        return self

    def validates_part(self, data: D) -> bool:
        """Whether a validation computes metrics of a part of the split; see `n_outputs`."""
        return False

    # -- a finished run -----------------------------------------------------------------------

    def saved_tests(self, saved: Path) -> Sequence[str]:
        """Test sets of a run that are in its folder, if `data.test` does not name them."""
        return ()

    def reading(self, folder: str | None) -> Self:
        """The task with data in another folder; None: as configured."""
        if folder is None:
            return self
        has_files = hasattr(self.config.data, "dir")
        require(has_files, "data.dir", f"null with task={self.name}", folder)
        return self.changed(data=replace(self.config.data, dir=folder))

    def reopened(self, folder: str | None) -> Any:
        """Open the data of a run, or in another folder; its paths are logged before."""
        task = self.reading(folder)
        log_paths(task.config.data, task.cache, folder)
        return task.open(task.cache)

    def restored(self, saved: Path, splits: Sequence[str], folder: str | None = None) -> D:
        """Splits of the data of a run, encoded as in its training.

        Args:
            saved: the run folder, with tokenizers and names of labels.
            splits: names.
            folder: of other files of a user, read instead.

        Raises:
            ConfigError: a split or folder that the task does not read.
            DataError: the data does not exist.
        """
        corpus = self.reopened(folder)
        for split in splits:
            if split not in self.splits(corpus):
                raise refuse("a split of the run", split, self.splits(corpus))
        return self.prepare(corpus)

    def of_files(self, saved: Path, sets: Mapping[str, Sides]) -> D:
        """Aligned lines of a user as splits."""
        raise ConfigError(f"data.source_file must be null with task={self.name}")

    def figures(self, run: Record, name: str) -> dict[str, Figure]:
        """File name -> figure of the outputs in a run's folder; `name` is of what was trained."""
        return {}

    # -- heads: analysis and pages ------------------------------------------------------------

    def column_texts(self, model: Model, data: D) -> Mapping[str, ColumnText]:
        """How the ids of each column are written, without the ids; by default as numbers."""
        return {name: ColumnText() for name in model.columns}

    def shown(self, run: Any, source: Source) -> Candidates:
        """What is shown of the items of a source; by default ids, of a model with one column.

        Args:
            run: a finished run of this task.
            source: of a part only the split counts; each line of a file is an item by default.

        Raises:
            DataError: there is no such text, or it cannot be the model's input.
        """
        if len(run.model.columns) != 1:
            raise RunError(f"task={self.name} defines no items to show a run on")
        (name,) = run.model.columns
        if not isinstance(source, Part):
            return given(source, partial(shown_ids, name), self.unit)
        rows = rows_of(self.batches(run.data([source.split]), source), name)

        def item(number: int) -> Item:
            ids = " ".join(map(str, rows[number]))
            return Item(number + 1, ids, {name: ids})

        return Candidates(len(rows), item, partial(shown_ids, name), self.unit)


def task_of(config: Config) -> Task[Any]:
    """The task that a config selects."""
    task: Task[Any] = instantiate(config.task, "task", Task, config=config)
    return task
