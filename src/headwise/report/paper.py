"""A paper's tables as data: what `conf/paper/*.yaml` may say, and the recipe of each cell.

A paper yaml lists rows, columns and cells; a cell has the paper's number, the overrides of the
training command that makes ours, or both. The numbers carry how certain they are.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omegaconf import MISSING, DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from headwise.config.schema import SITE_NAMES, Config, typed
from headwise.errors import ConfigError, refuse, require
from headwise.report.quantities import QUANTITIES
from headwise.runs.fingerprint import comparable
from headwise.tasks.settings import settle
from headwise.tasks.task import task_of

MARKS = {
    "OK": "read in a source",
    "r+": "recalled in detail, not read again: a target, not a test",
    "r-": "recalled vaguely or inferred: no target",
}
MEASURES = {  # of what pruning tables say -> the key that it needs
    "removable": "tolerance",
    "kept": "tolerance",
    "score_left": "removed",
    "one_left": "layer",
}


@dataclass
class Column:
    """A column of the table: a test set, or a quantity that only the paper has."""

    label: str = MISSING
    test: str | None = None  # as results.json names it; null: the paper's numbers only
    unit: str | None = None  # of a column with another quantity than the paper's metric
    decimals: int = 2  # that the paper gives
    note: str | None = None
    train_pairs: int | None = None  # about how many the paper trained on


@dataclass
class Cell:
    """One number of the paper, one recipe of ours, or both."""

    row: str = MISSING
    column: str = MISSING
    overrides: list[str] = field(default_factory=list)  # of the training command; seed is added
    paper: float | None = None
    mark: str | None = None  # of `paper`: one of MARKS


@dataclass
class Number:
    """A number of the paper with its mark."""

    value: float = MISSING
    mark: str = MISSING


@dataclass
class HeadNumber:
    """What the paper tells of the heads of its models, by row of the table."""

    quantity: str = MISSING  # one of `quantities.QUANTITIES`
    site: str | None = None  # of a quantity that sites are told apart by
    values: dict[str, float] = field(default_factory=dict)  # row -> number; shares are of 1
    text: dict[str, str] = field(default_factory=dict)  # row -> what it has instead of a number
    mark: str = MISSING  # one of MARKS


@dataclass
class PruningFact:
    """A statement of the paper on heads removed, and how a run's pruning tables answer it."""

    table: str = MISSING  # the heading it stands under
    label: str = MISSING
    paper: float | None = None
    text: str | None = None  # what the paper has instead of one number
    mark: str | None = None
    unit: str | None = None  # null: of the metric of the runs
    measure: str | None = None  # one of MEASURES; null: no table of ours answers it
    sites: list[str] = field(default_factory=list)  # empty: all
    layer: int | None = None  # of one_left
    removed: float | None = None  # of score_left: the share of the heads of `sites`
    tolerance: float | None = None  # of removable and kept: how much of the score may be lost


@dataclass
class Paper:
    """One paper: `conf/paper/<name>.yaml`."""

    name: str = MISSING
    title: str = MISSING
    metrics: dict[str, str] = field(default_factory=dict)  # name -> label; the first is compared
    baseline: str | None = None  # the row that others are compared with
    seeds: list[int] = field(default_factory=lambda: [1, 2, 3])
    runs: list[str] = field(default_factory=list)  # where runs are looked for by default
    rows: dict[str, str] = field(default_factory=dict)  # name -> label
    columns: dict[str, Column] = field(default_factory=dict)
    cells: list[Cell] = field(default_factory=list)
    speed: dict[str, Number] = field(default_factory=dict)  # row -> % of the baseline's tokens/s
    heads: list[HeadNumber] = field(default_factory=list)  # shown by heads=true
    heads_note: str | None = None  # on these
    pruning: list[PruningFact] = field(default_factory=list)
    pruned_runs: bool = False  # list runs with fewer heads, as the paper lists its own
    notes: list[str] = field(default_factory=list)

    @property
    def metric(self) -> str:
        """What is compared with the paper."""
        return next(iter(self.metrics))

    def cell(self, row: str, column: str) -> Cell | None:
        """The cell at a place of the table; None where the paper has none."""
        return next((c for c in self.cells if (c.row, c.column) == (row, column)), None)


def read_paper(node: Any) -> Paper:
    """The dataclass of what the `paper` group holds, checked.

    Raises:
        ConfigError: an unknown key, a wrong type, or content that contradicts itself, by key.
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
        raise ConfigError("paper.metrics is missing: what the columns show")
    places = [(cell.row, cell.column) for cell in paper.cells]
    for number, cell in enumerate(paper.cells):
        key = f"paper.cells[{number}]"
        if places.count((cell.row, cell.column)) > 1:
            raise ConfigError(f"{key}: {cell.row} × {cell.column} is there twice")
        if not cell.overrides and cell.paper is None:
            raise ConfigError(f"{key} needs paper, overrides or both")
        if cell.overrides and paper.columns[cell.column].test is None:
            raise ConfigError(f"{key} has overrides, so paper.columns.{cell.column} needs a test")
        if any(o.partition("=")[0] == "seed" for o in cell.overrides):
            raise ConfigError(f"{key}.overrides: seeds stand in paper.seeds")
    for column in paper.columns.keys() - {column for _, column in places}:
        raise ConfigError(f"paper.columns.{column}: no cell of paper.cells is in this column")
    for number, fact in enumerate(paper.pruning):
        key, needed = f"paper.pruning[{number}]", MEASURES.get(fact.measure or "")
        if needed is not None and getattr(fact, needed) is None:
            raise ConfigError(f"{key}.{needed} is missing: {fact.measure} needs it")
        if fact.measure == "one_left":
            is_one = len(fact.sites) == 1
            require(is_one, f"{key}.sites", "one site, for one_left", list(fact.sites))


def _choices(paper: Paper) -> Iterator[tuple[str, str | None, Collection[str]]]:
    """Every key that names one of several things: the key, its value, what is allowed."""
    if paper.baseline is not None:
        yield "paper.baseline", paper.baseline, paper.rows
    for number, cell in enumerate(paper.cells):
        key = f"paper.cells[{number}]"
        yield f"{key}.row", cell.row, paper.rows
        yield f"{key}.column", cell.column, paper.columns
        if cell.paper is not None:
            yield f"{key}.mark", cell.mark, MARKS
    for row, speed in paper.speed.items():
        yield "paper.speed", row, paper.rows
        yield f"paper.speed.{row}.mark", speed.mark, MARKS
    for number, of_heads in enumerate(paper.heads):
        key = f"paper.heads[{number}]"
        yield f"{key}.quantity", of_heads.quantity, QUANTITIES
        if of_heads.site is not None:
            yield f"{key}.site", of_heads.site, SITE_NAMES
        yield from ((f"{key}.values", row, paper.rows) for row in of_heads.values)
        yield from ((f"{key}.text", row, paper.rows) for row in of_heads.text)
        yield f"{key}.mark", of_heads.mark, MARKS
    for number, fact in enumerate(paper.pruning):
        key = f"paper.pruning[{number}]"
        yield from ((f"{key}.sites", site, SITE_NAMES) for site in fact.sites)
        if fact.measure is not None:
            yield f"{key}.measure", fact.measure, MEASURES
        if fact.paper is not None or fact.text is not None:
            yield f"{key}.mark", fact.mark, MARKS


def check_seeds(key: str, seeds: Sequence[int]) -> None:
    """Refuse seeds that are no list of different numbers."""
    fits = bool(seeds) and len(set(seeds)) == len(seeds) and min(seeds) >= 0
    require(fits, key, "different numbers of at least 0, at least one of them", list(seeds))


# -- recipes --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Recipe:
    """What a cell's training command comes to.

    Attributes:
        cell: of the paper.
        overrides: of the command, those of the whole report included; without the seed.
        decisive: flat keys that decide a run's result, without the seed; without the precision
            where the recipe leaves it to the machine.
        max_updates: at most this long.
        metrics: names of what its task measures.
    """

    cell: Cell
    overrides: tuple[str, ...]
    decisive: Mapping[str, Any]
    max_updates: int
    metrics: tuple[str, ...]


def recipe(cell: Cell, changes: Sequence[str] = ()) -> Recipe:
    """Compose a cell's configuration, as `headwise train` with its overrides would.

    Hydra must have been initialised with the configs, as it is inside of every command.

    Args:
        changes: overrides of the whole report, behind those of the cell.

    Raises:
        ConfigError: they do not compose.
    """
    from hydra import compose
    from hydra.errors import HydraException

    overrides = (*cell.overrides, *changes)
    try:
        node = compose("train", overrides=list(overrides))
        precision = node.trainer.precision
        # this machine need not be the one that trains
        node.trainer.precision, node.trainer.device = "fp32", "cpu"
        config = typed(node, Config)
        container = settle(config)
    except (HydraException, OmegaConfBaseException) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(
            f"paper: {cell.row} × {cell.column} does not compose ({' '.join(overrides)}): {reason}"
        ) from error
    container["trainer"]["precision"] = precision
    metrics = tuple(metric.name for metric in task_of(config).metrics(config))
    max_updates = container["trainer"]["max_updates"]
    return Recipe(cell, overrides, decisive(container), max_updates, metrics)


def check_metrics(paper: Paper, recipes: Sequence[Recipe]) -> None:
    """Refuse metrics that no recipe's task measures."""
    known = {name for recipe in recipes for name in recipe.metrics}
    for name in paper.metrics:
        if recipes and name not in known:
            raise refuse("paper.metrics", name, known)


def decisive(container: Mapping[str, Any]) -> dict[str, Any]:
    """Flat keys of a resolved configuration that decide its result, seed aside."""
    flat = comparable(container)
    flat.pop("seed", None)
    if flat.get("trainer.precision") == "auto":
        del flat["trainer.precision"]
    return flat


def default_output(paper: Paper) -> Path:
    """Where the tables go unless told otherwise."""
    return Path("outputs") / "reports" / paper.name
