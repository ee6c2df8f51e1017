"""The cells of a study without finished runs, and the commands that train them."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from headwise.studies.match import SavedRun
from headwise.studies.study import INIT, Recipe


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
        runs: of `headwise.studies.scores.Compared`.
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


def _folders(recipe: Recipe, runs: Sequence[SavedRun]) -> list[str]:
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
