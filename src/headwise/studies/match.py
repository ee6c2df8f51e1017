"""Assign runs to the cells of a study by their configuration.

Names of folders do not matter. A run fills a cell if every decisive key of its resolved
configuration equals the recipe's; other runs are listed with the differing keys.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from headwise.config.instantiate import target_class
from headwise.config.saved import located
from headwise.metrics.metric import Metric
from headwise.runs.listing import status
from headwise.runs.record import Record
from headwise.studies.study import Recipe, decisive
from headwise.tasks.evaluate import main_metric
from headwise.tasks.task import Task, task_of

CellKey = tuple[str, str]  # row and column of a cell


class SavedRun(Record):
    """The record of a run with its task, for tables and figures."""

    @functools.cached_property
    def decisive(self) -> Mapping[str, Any]:
        """Flat keys that determine its result, without the seed."""
        return decisive(self.settings)

    @functools.cached_property
    def task(self) -> Task[Any]:
        """The task of the run."""
        return task_of(self.config)

    @property
    def references(self) -> str:
        """See `Task.references`; of its class, which needs no typed configuration."""
        references: str = target_class(located(self.settings["task"]), "task").references
        return references

    @functools.cached_property
    def metrics(self) -> Sequence[Metric]:
        """The metrics of its task."""
        return self.task.metrics()

    @functools.cached_property
    def metric(self) -> Metric:
        """The main metric of the run."""
        return main_metric(self.task)

    @functools.cached_property
    def sites(self) -> dict[str, int]:
        """Site -> number of layers, in the order of the model."""
        return {site.name: site.n_layers for site in self.task.sites()}


@dataclass(frozen=True)
class Unused:
    """A run that fills no cell, and the reason."""

    run: SavedRun
    reason: str
    n_differing: int = 0


@dataclass
class Matching:
    """Runs by cell, and those that are not used."""

    used: dict[CellKey, list[SavedRun]] = field(default_factory=dict)
    unused: list[Unused] = field(default_factory=list)


def match(recipes: Sequence[Recipe], runs: Sequence[SavedRun], seeds: Sequence[int]) -> Matching:
    """Assign each run to the cells whose recipe it follows.

    Of two finished runs of one cell and seed, the one of the recipe's length is used, else the one
    with more updates, else the first; the other is unused.

    Raises:
        RunError: a run is broken, or of another version.
    """
    used: dict[CellKey, list[SavedRun]] = {(r.cell.row, r.cell.column): [] for r in recipes}
    matching = Matching(used)
    for run in runs:
        differences = [differing(run, recipe) for recipe in recipes]
        if all(differences) and recipes:
            matching.unused.append(_nearest(run, recipes, differences))
        for recipe, keys in zip(recipes, differences, strict=True):
            if not keys:
                _assign(matching, run, recipe, seeds)
    for of_cell in used.values():
        of_cell.sort(key=lambda run: run.seed)
    return matching


def _assign(matching: Matching, run: SavedRun, recipe: Recipe, seeds: Sequence[int]) -> None:
    key = (recipe.cell.row, recipe.cell.column)
    used, name = matching.used[key], " × ".join(key)
    reason = _unfit(run, recipe, seeds)
    if reason is not None:
        matching.unused.append(Unused(run, f"{name}, seed {run.seed}{reason}"))
        return
    same = next((other for other in used if other.seed == run.seed), None)
    if same is not None:
        fits = [(one.length == recipe.max_updates, one.updates) for one in (run, same)]
        chosen, other = (run, same) if fits[0] > fits[1] else (same, run)
        reason = f"{name}: duplicate seed {run.seed}, {chosen.folder} is used"
        matching.unused.append(Unused(other, reason))
        used.remove(same)
        run = chosen
    used.append(run)


def _unfit(run: SavedRun, recipe: Recipe, seeds: Sequence[int]) -> str | None:
    """Return why a run of a recipe is not used, as the end of a message; None if it is used."""
    if run.results is None:
        state = status(run)
        return f": {state['status']} ({state.get('reason', f'{run.updates:,} updates done')})"
    if run.updates < recipe.max_updates and not run.results.stopped_early:
        return f": ended at {run.updates:,} of the recipe's {recipe.max_updates:,} updates"
    if run.seed not in seeds:
        return f" is not among the requested seeds ({', '.join(map(str, seeds))})"
    return None


def differing(run: SavedRun, recipe: Recipe) -> list[str]:
    """Return the decisive keys in which a run differs from a recipe, with both values."""
    open_keys = {"trainer.precision"} - recipe.decisive.keys()
    lines = []
    for key in differing_keys([run.decisive, recipe.decisive]):
        both = [settings.get(key) for settings in (run.decisive, recipe.decisive)]
        group, is_class, _ = key.rpartition("._target_")
        value, recipe_value = map(_class if is_class else _shown, both)
        if key not in open_keys:
            lines.append(f"{group or key}={value} (recipe: {recipe_value})")
    return lines


def differing_keys(choices: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the keys that differ; for a group with another choice only the key that names it."""
    keys = sorted({key for decisive in choices for key in decisive})
    keys = [k for k in keys if any(choice.get(k) != choices[0].get(k) for choice in choices)]
    for end in ("name", "_target_"):
        groups = tuple(key.removesuffix(end) for key in keys if key.endswith(f".{end}"))
        keys = [key for key in keys if key.endswith(f".{end}") or not key.startswith(groups)]
    return keys


def _nearest(
    run: SavedRun, recipes: Sequence[Recipe], differences: Sequence[Sequence[str]]
) -> Unused:
    """Return a run that fills no cell, with its differences to the nearest recipe."""
    number = min(range(len(recipes)), key=lambda number: len(differences[number]))
    cell, keys = recipes[number].cell, differences[number]
    shown = "; ".join(keys[:6]) + (f"; and {len(keys) - 6} more" if len(keys) > 6 else "")
    return Unused(run, f"nearest {cell.row} × {cell.column}, but {shown}", len(keys))


def _shown(value: Any) -> str:
    return "null" if value is None else str(value)


def _class(target: Any) -> str:
    return str(target).rpartition(".")[2] if target else "none"
