"""Assign runs to the cells of a study by their configuration; the commands of missing runs.

Names of folders do not matter. A run fills a cell if every decisive key of its resolved
configuration equals the recipe's; other runs are listed with the differing keys.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from headwise.runs.listing import status
from headwise.studies.record import TaskRecord
from headwise.studies.study import INIT, Recipe

Used = dict[tuple[str, str], list[TaskRecord]]  # row and column of a cell -> its runs


@dataclass(frozen=True)
class Unused:
    """A run that fills no cell, and the reason."""

    run: TaskRecord
    reason: str
    n_differing: int = 0


def match(
    recipes: Sequence[Recipe], runs: Sequence[TaskRecord], seeds: Sequence[int]
) -> tuple[Used, list[Unused]]:
    """Assign each run to the cells whose recipe it follows; return also the other runs.

    Of two finished runs of one cell and seed, the one of the recipe's length is used, else the one
    with more updates, else the first; the other is unused.

    Raises:
        RunError: a run is broken, or of another version.
    """
    used: Used = {(recipe.cell.row, recipe.cell.column): [] for recipe in recipes}
    unused = []
    for run in runs:
        differences = [differing(run, recipe) for recipe in recipes]
        if all(differences) and recipes:
            unused.append(_nearest(run, recipes, differences))
        for recipe, keys in zip(recipes, differences, strict=True):
            if not keys:
                unused += _assign(used, run, recipe, seeds)
    for of_cell in used.values():
        of_cell.sort(key=lambda run: run.seed)
    return used, unused


def _assign(used: Used, run: TaskRecord, recipe: Recipe, seeds: Sequence[int]) -> list[Unused]:
    """Add a run of a recipe to those of its cell; return the one that is not used, if any."""
    key = (recipe.cell.row, recipe.cell.column)
    of_cell, name = used[key], " × ".join(key)
    reason = _unfit(run, recipe, seeds)
    if reason is not None:
        return [Unused(run, f"{name}, seed {run.seed}{reason}")]
    same = next((other for other in of_cell if other.seed == run.seed), None)
    if same is None:
        of_cell.append(run)
        return []
    fits = [(one.length == recipe.max_updates, one.updates) for one in (run, same)]
    chosen, other = (run, same) if fits[0] > fits[1] else (same, run)
    of_cell[of_cell.index(same)] = chosen
    return [Unused(other, f"{name}: duplicate seed {run.seed}, {chosen.folder} is used")]


def _unfit(run: TaskRecord, recipe: Recipe, seeds: Sequence[int]) -> str | None:
    """Return why a run of a recipe is not used, as the end of a message; None if it is used."""
    if run.results is None:
        state = status(run)
        return f": {state['status']} ({state.get('reason', f'{run.updates:,} updates done')})"
    if run.updates < recipe.max_updates and not run.results.stopped_early:
        return f": ended at {run.updates:,} of the recipe's {recipe.max_updates:,} updates"
    if run.seed not in seeds:
        return f" is not among the requested seeds ({', '.join(map(str, seeds))})"
    return None


def differing(run: TaskRecord, recipe: Recipe) -> list[str]:
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
    run: TaskRecord, recipes: Sequence[Recipe], differences: Sequence[Sequence[str]]
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


# -- missing runs ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Missing:
    """Seeds of a cell without a finished run, and the command that trains them.

    Attributes:
        waits_for: column whose runs come first, as they are `init_from`; None: it can be run.
    """

    row: str
    column: str
    seeds: tuple[int, ...]
    overrides: tuple[str, ...]
    waits_for: str | None = None

    @property
    def arguments(self) -> list[str]:
        """Arguments for `headwise train`."""
        seeds = f"seed={','.join(map(str, self.seeds))}"
        several = ["-m"] if len(self.seeds) > 1 else []
        return [*several, *self.overrides, seeds]

    @property
    def command(self) -> str:
        """The shell command."""
        return f"headwise train {shlex.join(self.arguments)}"


def missing_cells(
    runs: pd.DataFrame, recipes: Sequence[Recipe], seeds: Sequence[int]
) -> list[Missing]:
    """Return one entry per cell with missing seeds; with `init`, one per seed.

    The command has the data and output folders of the other runs of the column.

    Args:
        runs: of `headwise.studies.compare.StudyRuns`.
        recipes: of all cells.
        seeds: of each cell.
    """
    missing = []
    for recipe in recipes:
        row, column, init = recipe.cell.row, recipe.cell.column, recipe.cell.init
        of_column, of_row = runs[runs.column == column], runs[runs.row == row]
        done = set(of_row[of_row.column == column].seed)
        absent = tuple(seed for seed in seeds if seed not in done)
        overrides = (*recipe.overrides, *_folders(recipe, list(of_column.saved)))
        if absent and init is None:
            missing.append(Missing(row, column, absent, overrides))
        elif init is not None:
            first = of_row[of_row.column == init].set_index("seed").run.to_dict()
            for seed in absent:
                more = f"{INIT}={first.get(seed, 'RUN')}"
                waits_for = None if seed in first else init
                missing.append(Missing(row, column, (seed,), (*overrides, more), waits_for))
    return missing


def _folders(recipe: Recipe, runs: Sequence[TaskRecord]) -> list[str]:
    keys = {override.partition("=")[0] for override in recipe.overrides}
    values_by_key = {
        "data.dir": {run.settings["data"].get("dir") for run in runs},
        "paths.outputs": {_outputs(run.folder) for run in runs},
    }
    common = {key: values.pop() for key, values in values_by_key.items() if len(values) == 1}
    return [f"{key}={value}" for key, value in common.items() if value and key not in keys]


def _outputs(folder: Path) -> str | None:
    """Return the `paths.outputs` of a run folder; None for the default."""
    above = folder.parent.parent
    return None if above.resolve() == Path("outputs").resolve() else str(above)
