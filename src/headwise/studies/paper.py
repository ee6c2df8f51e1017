"""Schema of `conf/paper/*.yaml`, the tables of a paper, and the recipe of each cell.

A paper yaml lists rows, columns and cells; a cell has the paper's number, the overrides of our
training command, or both. Each number has a mark of its certainty.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omegaconf import MISSING, DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from headwise.config.saved import current
from headwise.config.schema import SITE_NAMES, Config, typed
from headwise.errors import ConfigError, refuse, require
from headwise.metrics.metric import Metric
from headwise.runs.fingerprint import comparable
from headwise.studies.quantities import QUANTITIES
from headwise.tasks.settings import resolve
from headwise.tasks.task import task_of

MARKS = {
    "OK": "read in a source",
    "r+": "from memory, in detail, not verified",
    "r-": "from memory, uncertain, or inferred: direction only",
}
MEASURES = {  # measure of pruning tables -> the key that it requires
    "removable": "tolerance",
    "kept": "tolerance",
    "score_left": "removed",
    "one_left": "layer",
}


INIT = "init_from"


@dataclass
class Column:
    """A column of the table: a test set, or a quantity that only the paper has."""

    label: str = MISSING
    test: str | None = None  # its name in results.json; null: the paper's numbers only
    unit: str | None = None  # if the quantity is not the paper's metric
    metric: str | None = None  # one of paper.metrics; null: the first
    decimals: int = 2  # of the paper's numbers
    our_decimals: int = 2  # of our means and differences
    note: str | None = None
    train_pairs: int | None = None  # approximate number in the paper


@dataclass
class Cell:
    """One number of the paper, one recipe of ours, or both."""

    row: str = MISSING
    column: str = MISSING
    overrides: list[str] = field(default_factory=list)  # of the training command; seed is added
    paper: float | None = None
    mark: str | None = None  # of `paper`: one of MARKS
    init: str | None = None  # column whose run, of this row and seed, is init_from


@dataclass
class Number:
    """A number of the paper with its mark."""

    value: float = MISSING
    mark: str = MISSING


@dataclass
class HeadNumber:
    """A quantity of the heads of the paper's models, by row of the table."""

    quantity: str = MISSING  # one of `quantities.QUANTITIES`
    site: str | None = None  # for quantities per site
    values: dict[str, float] = field(default_factory=dict)  # row -> number; shares are of 1
    text: dict[str, str] = field(default_factory=dict)  # row -> text instead of a number
    mark: str = MISSING  # one of MARKS


@dataclass
class PruningFact:
    """A statement of the paper on removed heads, and the measure of our pruning tables for it."""

    table: str = MISSING  # title of its table
    label: str = MISSING
    paper: float | None = None
    text: str | None = None  # text instead of a number
    mark: str | None = None
    unit: str | None = None  # null: of the metric of the runs
    measure: str | None = None  # one of MEASURES; null: not measured by us
    sites: list[str] = field(default_factory=list)  # empty: all
    layer: int | None = None  # of one_left
    removed: float | None = None  # of score_left: the share of the heads of `sites`
    tolerance: float | None = None  # of removable and kept: allowed loss of score


@dataclass
class Paper:
    """One paper: `conf/paper/<name>.yaml`."""

    name: str = MISSING
    title: str = MISSING
    metrics: dict[str, str] = field(default_factory=dict)  # name -> label; see Column.metric
    baseline: str | None = None  # the row that others are compared with
    seeds: list[int] = field(default_factory=lambda: [1, 2, 3])
    runs: list[str] = field(default_factory=list)  # default folders of runs
    rows: dict[str, str] = field(default_factory=dict)  # name -> label
    columns: dict[str, Column] = field(default_factory=dict)
    cells: list[Cell] = field(default_factory=list)
    speed: dict[str, Number] = field(default_factory=dict)  # row -> % of the baseline's tokens/s
    heads: list[HeadNumber] = field(default_factory=list)  # shown with heads=true
    heads_note: str | None = None  # note on `heads`
    pruning: list[PruningFact] = field(default_factory=list)
    pruned_runs: bool = False  # list our runs with fewer heads, as the paper does
    contexts: dict[str, dict[int, float]] = field(default_factory=dict)  # data -> context -> score
    notes: list[str] = field(default_factory=list)

    @property
    def compared(self) -> dict[str, str]:
        """Column -> the metric that is compared with the paper."""
        first = next(iter(self.metrics), "")
        return {name: column.metric or first for name, column in self.columns.items()}

    def cell(self, row: str, column: str) -> Cell | None:
        """Return the cell at a row and column; None if the paper has none."""
        return next((c for c in self.cells if (c.row, c.column) == (row, column)), None)


def read_paper(node: Any) -> Paper:
    """Convert the `paper` config group to its dataclass and validate it.

    Raises:
        ConfigError: an unknown key, a wrong type, or contradictory content; names the key.
    """
    plain = OmegaConf.to_container(node, resolve=True) if isinstance(node, DictConfig) else node
    if not isinstance(plain, Mapping):
        raise ConfigError(f"paper must be the name of a yaml in conf/paper, got {plain!r}")
    try:
        merged = OmegaConf.merge(OmegaConf.structured(Paper), plain)
        paper = OmegaConf.to_object(merged)
    except OmegaConfBaseException as error:
        key = getattr(error, "full_key", None)
        reason = str(error).splitlines()[0]
        raise ConfigError(f"paper.{key}: {reason}" if key else f"paper: {reason}") from error
    assert isinstance(paper, Paper)
    _check(paper)
    return paper


def _check(paper: Paper) -> None:
    for key, value, allowed in _choices(paper):
        if value not in allowed:
            raise refuse(key, value, allowed)
    is_name = re.fullmatch(r"[\w.-]+", paper.name) is not None
    require(is_name, "paper.name", "letters, digits, _, - and .", paper.name)
    check_seeds("paper.seeds", paper.seeds)
    if paper.columns and not paper.metrics:
        raise ConfigError("paper.metrics is missing: paper.columns needs it")
    places = [(cell.row, cell.column) for cell in paper.cells]
    for number, cell in enumerate(paper.cells):
        key = f"paper.cells[{number}]"
        if places.count((cell.row, cell.column)) > 1:
            raise ConfigError(f"{key}: duplicate cell {cell.row} × {cell.column}")
        if not cell.overrides and cell.paper is None:
            raise ConfigError(f"{key} needs paper, overrides or both")
        if cell.overrides and paper.columns[cell.column].test is None:
            raise ConfigError(f"{key} has overrides, so paper.columns.{cell.column} needs a test")
        if any(o.partition("=")[0] == "seed" for o in cell.overrides):
            raise ConfigError(f"{key}.overrides must not set seed: use paper.seeds")
        if cell.init is not None and (cell.row, cell.init) not in places:
            raise ConfigError(f"{key}.init: no cell {cell.row} × {cell.init} to start from")
    for column in paper.columns.keys() - {column for _, column in places}:
        raise ConfigError(f"paper.columns.{column} has no cell in paper.cells")
    for number, fact in enumerate(paper.pruning):
        key, needed = f"paper.pruning[{number}]", MEASURES.get(fact.measure or "")
        if needed is not None and getattr(fact, needed) is None:
            raise ConfigError(f"{key}.{needed} is missing: {fact.measure} needs it")
        if fact.measure == "one_left":
            is_one = len(fact.sites) == 1
            require(is_one, f"{key}.sites", "one site, for one_left", list(fact.sites))


def _choices(paper: Paper) -> Iterator[tuple[str, str | None, Collection[str]]]:
    """Yield key, value and allowed values of every key with a fixed set of values."""
    if paper.baseline is not None:
        yield "paper.baseline", paper.baseline, paper.rows
    for name, column in paper.columns.items():
        if column.metric is not None:
            yield f"paper.columns.{name}.metric", column.metric, paper.metrics
    for number, cell in enumerate(paper.cells):
        key = f"paper.cells[{number}]"
        yield f"{key}.row", cell.row, paper.rows
        yield f"{key}.column", cell.column, paper.columns
        if cell.paper is not None:
            yield f"{key}.mark", cell.mark, MARKS
    for row, speed in paper.speed.items():
        yield "paper.speed", row, paper.rows
        yield f"paper.speed.{row}.mark", speed.mark, MARKS
    for number, head_number in enumerate(paper.heads):
        key = f"paper.heads[{number}]"
        yield f"{key}.quantity", head_number.quantity, QUANTITIES
        if head_number.site is not None:
            yield f"{key}.site", head_number.site, SITE_NAMES
        yield from ((f"{key}.values", row, paper.rows) for row in head_number.values)
        yield from ((f"{key}.text", row, paper.rows) for row in head_number.text)
        yield f"{key}.mark", head_number.mark, MARKS
    for number, fact in enumerate(paper.pruning):
        key = f"paper.pruning[{number}]"
        yield from ((f"{key}.sites", site, SITE_NAMES) for site in fact.sites)
        if fact.measure is not None:
            yield f"{key}.measure", fact.measure, MEASURES
        if fact.paper is not None or fact.text is not None:
            yield f"{key}.mark", fact.mark, MARKS


def check_seeds(key: str, seeds: Sequence[int]) -> None:
    """Validate seeds: unique numbers of at least 0."""
    is_valid = bool(seeds) and len(set(seeds)) == len(seeds) and min(seeds) >= 0
    require(is_valid, key, "one or more different numbers of at least 0", list(seeds))


# -- recipes --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Recipe:
    """The composed configuration of a cell's training command.

    Attributes:
        cell: of the paper.
        overrides: of the command, those of the whole report included; without the seed.
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
        changes: overrides of the whole report, applied after those of the cell.

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
        config = typed(node, Config)
        container = resolve(config)
    except (HydraException, OmegaConfBaseException) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(
            f"paper: {cell.row} × {cell.column} does not compose ({' '.join(overrides)}): {reason}"
        ) from error
    container["trainer"]["precision"] = precision
    metrics = {metric.name: metric for metric in task_of(config).metrics()}
    max_updates = container["trainer"]["max_updates"]
    keys = decisive(current(container)) | {INIT: cell.init is not None}
    return Recipe(cell, overrides, keys, max_updates, metrics)


def check_metrics(paper: Paper, recipes: Sequence[Recipe]) -> None:
    """Validate that each metric of the paper is defined by the task of some recipe."""
    known = {name for recipe in recipes for name in recipe.metrics}
    for name in paper.metrics:
        if recipes and name not in known:
            raise refuse("paper.metrics", name, known)


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


def default_output(paper: Paper) -> Path:
    """Return the default folder of the tables."""
    return Path("outputs") / "reports" / paper.name
