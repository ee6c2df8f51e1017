"""A paper's tables as data: what `conf/paper/*.yaml` may say, and the recipe of each cell.

A paper yaml lists rows, columns and cells; a cell has the paper's number, the overrides of the
training command that makes ours, or both. The numbers carry how certain they are.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omegaconf import MISSING, DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from headwise.config.schema import SITES, typed
from headwise.errors import ConfigError, refuse, require
from headwise.report.quantities import QUANTITIES
from headwise.runs.fingerprint import comparable
from headwise.tasks.settings import settle

MARKS = {
    "OK": "read in a source",
    "r+": "recalled in detail, not read again: a target, not a test",
    "r-": "recalled vaguely or inferred: no target",
}
METRICS = ("bleu", "bleu_tokenised")
MEASURES = ("removable", "kept", "bleu_left", "one_left")


@dataclass
class Column:
    """A column of the table: a test set, or a quantity that only the paper has."""

    label: str = MISSING
    test: str | None = None  # as results.json names it; null: the paper's numbers only
    unit: str | None = None  # of a column that is no BLEU
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
    unit: str = "BLEU"
    measure: str | None = None  # one of MEASURES; null: no table of ours answers it
    sites: list[str] = field(default_factory=lambda: list(SITES))
    layer: int | None = None  # of one_left
    removed: float | None = None  # of bleu_left: the share of the heads of `sites`
    tolerance: float | None = None  # of removable and kept: BLEU that may be lost


@dataclass
class Paper:
    """One paper: `conf/paper/<name>.yaml`."""

    name: str = MISSING
    title: str = MISSING
    metric: str = "bleu_tokenised"  # what is compared with the paper
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
    require(
        re.fullmatch(r"[\w.-]+", paper.name) is not None,
        "paper.name",
        "letters, digits, _, - and .",
        paper.name,
    )
    if paper.metric not in METRICS:
        raise refuse("paper.metric", paper.metric, METRICS)
    check_seeds("paper.seeds", paper.seeds)
    if paper.baseline is not None and paper.baseline not in paper.rows:
        raise refuse("paper.baseline", paper.baseline, paper.rows)
    places = [(cell.row, cell.column) for cell in paper.cells]
    for number, cell in enumerate(paper.cells):
        key = f"paper.cells[{number}]"
        if cell.row not in paper.rows:
            raise refuse(f"{key}.row", cell.row, paper.rows)
        if cell.column not in paper.columns:
            raise refuse(f"{key}.column", cell.column, paper.columns)
        if places.count((cell.row, cell.column)) > 1:
            raise ConfigError(f"{key}: {cell.row} × {cell.column} is there twice")
        _check_number(key, cell.paper, cell.mark)
        if not cell.overrides and cell.paper is None:
            raise ConfigError(f"{key} needs paper, overrides or both")
        if cell.overrides and paper.columns[cell.column].test is None:
            raise ConfigError(f"{key} has overrides, so paper.columns.{cell.column} needs a test")
        if any(o.partition("=")[0] == "seed" for o in cell.overrides):
            raise ConfigError(f"{key}.overrides: seeds stand in paper.seeds")
    for column in paper.columns:
        if all(of != column for _, of in places):
            raise ConfigError(f"paper.columns.{column}: no cell of paper.cells is in this column")
    for row, number_of_row in paper.speed.items():
        if row not in paper.rows:
            raise refuse("paper.speed", row, paper.rows)
        _check_number(f"paper.speed.{row}", number_of_row.value, number_of_row.mark)
    for number, told in enumerate(paper.heads):
        _check_heads(f"paper.heads[{number}]", told, paper)
    for number, fact in enumerate(paper.pruning):
        _check_fact(f"paper.pruning[{number}]", fact)


def check_seeds(key: str, seeds: Sequence[int]) -> None:
    """Refuse seeds that are no list of different numbers."""
    fits = bool(seeds) and len(set(seeds)) == len(seeds) and min(seeds) >= 0
    require(fits, key, "different numbers of at least 0, at least one of them", list(seeds))


def _check_number(key: str, value: float | None, mark: str | None) -> None:
    if value is not None and mark not in MARKS:
        raise refuse(f"{key}.mark", mark, MARKS)


def _check_heads(key: str, told: HeadNumber, paper: Paper) -> None:
    if told.quantity not in QUANTITIES:
        raise refuse(f"{key}.quantity", told.quantity, QUANTITIES)
    if told.site is not None and told.site not in SITES:
        raise refuse(f"{key}.site", told.site, SITES)
    for name, rows in (("values", told.values), ("text", told.text)):
        for row in rows:
            if row not in paper.rows:
                raise refuse(f"{key}.{name}", row, paper.rows)
    _check_number(key, 0.0, told.mark)


def _check_fact(key: str, fact: PruningFact) -> None:
    if fact.paper is not None or fact.text is not None:
        _check_number(key, 0.0, fact.mark)
    for site in fact.sites:
        if site not in SITES:
            raise refuse(f"{key}.sites", site, SITES)
    if fact.measure is None:
        return
    if fact.measure not in MEASURES:
        raise refuse(f"{key}.measure", fact.measure, MEASURES)
    needed = {"one_left": "layer", "bleu_left": "removed", "removable": "tolerance"}
    name = needed.get(fact.measure, "tolerance")
    if getattr(fact, name) is None:
        raise ConfigError(f"{key}.{name} is missing: {fact.measure} needs it")
    if fact.measure == "one_left":
        require(len(fact.sites) == 1, f"{key}.sites", "one site, for one_left", list(fact.sites))


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
    """

    cell: Cell
    overrides: tuple[str, ...]
    decisive: Mapping[str, Any]
    max_updates: int


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
        # this machine need not be the one that trains
        precision, node.trainer.precision, node.trainer.device = (
            node.trainer.precision,
            "fp32",
            "cpu",
        )
        container = settle(typed(node))
    except (HydraException, OmegaConfBaseException) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(
            f"paper: {cell.row} × {cell.column} does not compose ({' '.join(overrides)}): {reason}"
        ) from error
    container["trainer"]["precision"] = precision
    return Recipe(cell, overrides, decisive(container), container["trainer"]["max_updates"])


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
