"""A study, `conf/study/NAME.yaml`: rows and columns, and the recipe of each cell.

Rows and columns have overrides of the training command; a cell is trained with those of its column
and then those of its row. Columns may have a paper's numbers, with a mark of their certainty.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from omegaconf import MISSING, DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from headwise.config.register import typed
from headwise.config.saved import current, saved_settings
from headwise.config.schema import Config
from headwise.errors import ConfigError, refuse, require
from headwise.metrics.metric import Metric
from headwise.runs.folder import comparable
from headwise.tasks.check import resolve
from headwise.tasks.task import task_of

MARKS = {
    "OK": "read in a source",
    "r+": "from memory, in detail, not verified",
    "r-": "from memory, uncertain, or inferred: direction only",
}
INIT = "init_from"


@dataclass
class Published:
    """Numbers of a paper."""

    values: dict[str, float] = field(default_factory=dict)  # row -> number; shares are of 1
    mark: str = MISSING  # one of MARKS


@dataclass
class Row:
    """A row of the table, such as a rule of attention."""

    label: str | None = None  # null: its name
    overrides: list[str] | None = None  # null: in the paper only


@dataclass
class Column:
    """A column of the table: a test set, or a quantity that only the paper has."""

    label: str = MISSING
    overrides: list[str] | None = None  # without the seed; null: in the paper only
    rows: dict[str, list[str]] = field(default_factory=dict)  # trained rows -> more overrides
    init: str | None = None  # a column: its run of the same row and seed, if any, is init_from
    test: str | None = None  # the name of the test set in results.json
    metric: str | None = None  # one of study.metrics; null: the first
    learned: float | None = None  # the least validation score of a run that is averaged; null: any
    decimals: int | None = None  # null: by the metric
    unit: str | None = None  # if the quantity is not a metric
    note: str | None = None
    paper: Published | None = None
    train_pairs: int | None = None  # approximate number in the paper


@dataclass(frozen=True)
class Cell:
    """A row and a column that are trained together.

    Attributes:
        overrides: of the training command; the seed is added.
        init: column whose run of this row and seed is init_from.
    """

    row: str
    column: str
    overrides: tuple[str, ...]
    init: str | None = None


@dataclass
class Study:
    """One study: `conf/study/<name>.yaml`."""

    name: str = MISSING
    title: str = MISSING
    metrics: dict[str, str] = field(default_factory=dict)  # name -> label; see Column.metric
    baseline: str | None = None  # the row that others are compared with
    seeds: list[int] = field(default_factory=lambda: [1, 2, 3])
    runs: list[str] = field(default_factory=list)  # default folders of runs
    rows: dict[str, Row] = field(default_factory=dict)
    columns: dict[str, Column] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def compared(self) -> dict[str, str]:
        """Column -> the metric of its table."""
        first = next(iter(self.metrics), "")
        return {name: column.metric or first for name, column in self.columns.items()}

    @property
    def labels(self) -> dict[str, str]:
        """Row -> label."""
        return {name: row.label or name for name, row in self.rows.items()}

    @property
    def cells(self) -> list[Cell]:
        """The cells with a recipe, by column."""
        places = {
            (name, column_name): (*column.overrides, *row.overrides, *column.rows.get(name, ()))
            for column_name, column in self.columns.items()
            if column.overrides is not None
            for name, row in self.rows.items()
            if row.overrides is not None and (not column.rows or name in column.rows)
        }
        inits = {name: column.init for name, column in self.columns.items()}
        return [
            Cell(row, column, overrides, inits[column] if (row, inits[column]) in places else None)
            for (row, column), overrides in places.items()
        ]


def read_study(node: Any) -> Study:
    """Convert the `study` config group to its dataclass and validate it.

    Raises:
        ConfigError: an unknown key, a wrong type, or contradictory content; names the key.
    """
    plain = OmegaConf.to_container(node, resolve=True) if isinstance(node, DictConfig) else node
    if not isinstance(plain, Mapping):
        raise ConfigError(f"study must be the name of a yaml in conf/study, got {plain!r}")
    try:
        study = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(Study), plain))
    except OmegaConfBaseException as error:
        key = getattr(error, "full_key", None)
        reason = str(error).splitlines()[0]
        raise ConfigError(f"study.{key}: {reason}" if key else f"study: {reason}") from error
    assert isinstance(study, Study)
    _check(study)
    return study


def selected(study: Study, rows: Sequence[str] | None, columns: Sequence[str] | None) -> Study:
    """Return a study with some of its rows and columns; None: all.

    Columns whose runs others start from are kept. Without its baseline it has no comparisons.
    """
    for key, names, known in (("rows", rows, study.rows), ("columns", columns, study.columns)):
        for name in names or ():
            if name not in known:
                raise refuse(key, name, known)
    kept = {*(study.columns if columns is None else columns)}
    kept |= {str(study.columns[name].init) for name in kept}
    return replace(
        study,
        rows={k: v for k, v in study.rows.items() if rows is None or k in rows},
        columns={k: v for k, v in study.columns.items() if k in kept},
        baseline=study.baseline if rows is None or study.baseline in rows else None,
    )


def _check(study: Study) -> None:
    for key, value, allowed in _choices(study):
        if value is not None and value not in allowed:
            raise refuse(key, value, allowed)
    is_name = re.fullmatch(r"[\w.-]+", study.name) is not None
    require(is_name, "study.name", "letters, digits, _, - and .", study.name)
    check_seeds("study.seeds", study.seeds)
    if study.columns and not study.metrics:
        raise ConfigError("study.metrics is missing: study.columns needs it")
    for name, column in study.columns.items():
        if column.overrides is None and column.paper is None:
            raise ConfigError(f"study.columns.{name} needs overrides, paper or both")
        if column.overrides is not None and column.test is None:
            raise ConfigError(f"study.columns.{name} has overrides, so it needs a test")
    if any(o.partition("=")[0] == "seed" for cell in study.cells for o in cell.overrides):
        raise ConfigError("overrides of a study must not set seed: use study.seeds")


def _choices(study: Study) -> Iterator[tuple[str, str | None, Collection[str]]]:
    """Yield key, value and allowed values of every key with a fixed set of values."""
    yield "study.baseline", study.baseline, study.rows
    for name, column in study.columns.items():
        key = f"study.columns.{name}"
        yield f"{key}.metric", column.metric, study.metrics
        yield f"{key}.init", column.init, study.columns
        yield from ((f"{key}.rows", row, study.rows) for row in column.rows)
        if column.paper is not None:
            yield f"{key}.paper.mark", column.paper.mark, MARKS
            yield from ((f"{key}.paper.values", row, study.rows) for row in column.paper.values)


def check_seeds(key: str, seeds: Sequence[int]) -> None:
    """Validate seeds: unique numbers of at least 0."""
    is_valid = bool(seeds) and len(set(seeds)) == len(seeds) and min(seeds) >= 0
    require(is_valid, key, "one or more different numbers of at least 0", list(seeds))


# -- recipes --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Recipe:
    """The composed configuration of a cell's training command.

    Attributes:
        cell: of the study.
        overrides: of the command, those of the whole table included; without the seed.
        decisive: flat keys that determine the result of a run, without the seed, and without
            precision auto.
        max_updates: maximum number of updates.
        metrics: those of its task, by name.
    """

    cell: Cell
    overrides: tuple[str, ...]
    decisive: Mapping[str, Any]
    max_updates: int
    metrics: Mapping[str, Metric]


def recipe(cell: Cell, changes: Sequence[str] = ()) -> Recipe:
    """Compose the configuration of a cell as `headwise train` does with its overrides.

    Hydra must be initialised with the configs, as in every command.

    Args:
        changes: overrides of the whole table, applied after those of the cell.

    Raises:
        ConfigError: the overrides do not compose.
    """
    from hydra import compose
    from hydra.errors import HydraException

    overrides = (*cell.overrides, *changes)
    try:
        node = compose("train", overrides=list(overrides))
        precision = node.trainer.precision
        # training may run on another machine
        node.trainer.precision, node.trainer.device = "fp32", "cpu"
        task = task_of(typed(node, Config))
        resolve(task)
        container = saved_settings(task.config)
    except (HydraException, OmegaConfBaseException) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(
            f"study: {cell.row} × {cell.column} does not compose ({' '.join(overrides)}): {reason}"
        ) from error
    container["trainer"]["precision"] = precision
    metrics = {metric.name: metric for metric in task.metrics()}
    max_updates = container["trainer"]["max_updates"]
    keys = decisive(current(container)) | {INIT: cell.init is not None}
    return Recipe(cell, overrides, keys, max_updates, metrics)


def recipes(cells: Iterable[Cell], changes: Sequence[str] = ()) -> list[Recipe]:
    """Return the `recipe` of each cell; equal overrides are composed once."""
    made: dict[tuple[tuple[str, ...], bool], Recipe] = {}
    of_cells = []
    for cell in cells:
        key = cell.overrides, cell.init is not None
        made[key] = made.get(key) or recipe(cell, changes)
        of_cells.append(replace(made[key], cell=cell))
    return of_cells


def check_metrics(study: Study, of_cells: Sequence[Recipe]) -> None:
    """Validate that each metric of the study is defined by the task of some recipe."""
    known = {name for one in of_cells for name in one.metrics}
    for name in study.metrics:
        if of_cells and name not in known:
            raise refuse("study.metrics", name, known)


def decisive(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the flat keys of `current` settings that determine a result, seed excluded.

    Of `init_from`, only whether it is set: runs of several seeds start from several others.
    """
    flat = comparable(settings)
    flat.pop("seed", None)
    flat[INIT] = flat.get(INIT) is not None
    if flat.get("trainer.precision") == "auto":
        del flat["trainer.precision"]
    return flat
