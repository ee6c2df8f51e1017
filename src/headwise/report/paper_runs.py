"""Which runs fill which cell: runs found, and compared with recipes by what decides a result.

Names of folders say nothing here. A run fills a cell when every decisive key of its own resolved
configuration equals the recipe's; one that does not is listed with the keys that differ.
"""

from __future__ import annotations

import functools
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from headwise.config.schema import Config
from headwise.errors import HeadwiseError
from headwise.files import read_json
from headwise.metrics.metric import Metric
from headwise.report.paper import Recipe, decisive
from headwise.runs.folder import RunFolder, read_config
from headwise.runs.results import Results
from headwise.tasks.task import Task, task_of
from headwise.track.jsonl import read_if_there

Place = tuple[str, str]  # row and column of a cell
MACHINE = ("platform", "cpus", "threads", "gpu", "world_size")  # what speeds depend on

SPEED = "time/tokens_per_second"  # of metrics.jsonl


@dataclass(frozen=True)
class FoundRun:
    """A run folder, read.

    Attributes:
        folder: where it stands.
        config: its own, settled.
        decisive: flat keys that decide its result, without the seed.
        results: None before the end.
        text: hash of the training text, None where the folder does not say.
        train_pairs: that it was trained on, likewise.
        machine: what its speed depends on.
    """

    folder: Path
    config: Config
    decisive: Mapping[str, Any]
    results: Results | None
    text: str | None
    train_pairs: int | None
    machine: Mapping[str, Any]

    @property
    def seed(self) -> int:
        """The seed of the run."""
        return self.config.seed

    @functools.cached_property
    def task(self) -> Task[Any, Any]:
        """What it was trained on."""
        return task_of(self.config)

    @functools.cached_property
    def metric(self) -> Metric:
        """What it is judged by."""
        return self.task.judged_by(self.config)

    @functools.cached_property
    def sites(self) -> dict[str, int]:
        """Site -> its number of layers, in the order of the model."""
        return {site.name: site.n_layers for site in self.task.sites(self.config)}

    @property
    def updates(self) -> int:
        """Done; 0 where nothing was saved yet."""
        if self.results is not None:
            return self.results.updates
        return int(RunFolder(self.folder).read_last().get("update", 0))

    @functools.cached_property
    def tokens_per_second(self) -> float | None:
        """Speed of training: the median over the windows of its log, so that no pause counts."""
        records = read_if_there(RunFolder(self.folder).metrics)
        windows = [record[SPEED] for record in records if record.get(SPEED)]
        return statistics.median(windows) if windows else None


@dataclass(frozen=True)
class Unused:
    """A run that fills no cell, and why."""

    run: FoundRun
    reason: str
    n_differing: int = 0


@dataclass
class Matching:
    """Runs by cell, and those that are not used.

    Attributes:
        runs: all that could be read.
        unreadable: what is wrong with the others.
    """

    runs: list[FoundRun] = field(default_factory=list)
    used: dict[Place, list[FoundRun]] = field(default_factory=dict)
    unused: list[Unused] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)


def read_run(path: Path) -> FoundRun:
    """Read what a folder says of its run.

    Raises:
        RunError: its config.yaml or results.json is broken, or of another version.
    """
    folder = RunFolder.existing(path)
    config = read_config(folder)
    container = OmegaConf.to_container(OmegaConf.structured(config))
    assert isinstance(container, dict)
    environment, data = (
        read_json(path / name, may_lack=True) for name in ("environment.json", "data.json")
    )
    return FoundRun(
        folder=path,
        config=config,
        decisive=decisive({str(key): value for key, value in container.items()}),
        results=folder.read_results(),
        text=data.get("fingerprint"),
        train_pairs=data.get("train", {}).get("pairs"),
        machine={key: environment.get(key) for key in MACHINE},
    )


def match(recipes: Sequence[Recipe], folders: Sequence[Path], seeds: Sequence[int]) -> Matching:
    """Put each run into the cell whose recipe it followed.

    Two finished runs of one cell and seed are one too many: the one that went on for longer is
    used, the first of equals; the other is listed.
    """
    matching = Matching(used={(r.cell.row, r.cell.column): [] for r in recipes})
    for path in folders:
        try:
            run = read_run(path)
        except HeadwiseError as error:
            matching.unreadable.append(str(error))
            continue
        matching.runs.append(run)
        fitting = [r for r in recipes if not differing(run, r)]
        if recipes and not fitting:
            matching.unused.append(_stranger(run, recipes))
        for found in fitting:
            _place(matching, run, found, seeds)
    for runs in matching.used.values():
        runs.sort(key=lambda run: run.seed)
    return matching


def _place(matching: Matching, run: FoundRun, found: Recipe, seeds: Sequence[int]) -> None:
    place = (found.cell.row, found.cell.column)
    used, name = matching.used[place], " × ".join(place)
    reason = _unfit(run, found, seeds)
    if reason is not None:
        matching.unused.append(Unused(run, f"{name}, seed {run.seed}{reason}"))
        return
    same = next((other for other in used if other.seed == run.seed), None)
    if same is not None:
        kept, left = (run, same) if run.updates > same.updates else (same, run)
        reason = f"{name}: seed {run.seed} is there twice, {kept.folder} is used"
        matching.unused.append(Unused(left, reason))
        used.remove(same)
        run = kept
    used.append(run)


def _unfit(run: FoundRun, found: Recipe, seeds: Sequence[int]) -> str | None:
    """Why a run of a recipe does not count, behind its name; None where it does."""
    if run.results is None:
        failed = read_json(run.folder / "error.json", may_lack=True).get("message")
        if failed is not None:
            return f": failed: {' '.join(str(failed).split())}"
        return f": not finished ({run.updates:,} updates done)"
    if run.updates < found.max_updates and not run.results.stopped_early:
        return f": ended at {run.updates:,} of the recipe's {found.max_updates:,} updates"
    if run.seed not in seeds:
        return f" is not among those asked for ({', '.join(map(str, seeds))})"
    return None


def differing(run: FoundRun, wanted: Recipe) -> list[str]:
    """Decisive keys in which a run is not of a recipe, each with both values."""
    open_keys = {"trainer.precision"} - wanted.decisive.keys()
    lines = []
    for key in differing_keys([run.decisive, wanted.decisive]):
        both = [settings.get(key) for settings in (run.decisive, wanted.decisive)]
        group, is_class, _ = key.rpartition("._target_")
        mine, theirs = map(_class if is_class else _shown, both)
        if key not in open_keys:
            lines.append(f"{group or key}={mine} (recipe: {theirs})")
    return lines


def differing_keys(choices: Sequence[Mapping[str, Any]]) -> list[str]:
    """Keys that differ; of a group of which another one was chosen, what names it alone."""
    keys = sorted({key for decisive in choices for key in decisive})
    keys = [k for k in keys if any(one.get(k) != choices[0].get(k) for one in choices)]
    for end in ("name", "_target_"):
        groups = tuple(key.removesuffix(end) for key in keys if key.endswith(f".{end}"))
        keys = [key for key in keys if key.endswith(f".{end}") or not key.startswith(groups)]
    return keys


def _stranger(run: FoundRun, recipes: Sequence[Recipe]) -> Unused:
    """Why a run fills no cell: how it differs from the nearest one."""
    if not recipes:
        return Unused(run, "this table has no recipes")
    by_distance = [(len(differing(run, r)), number) for number, r in enumerate(recipes)]
    n_differing, number = min(by_distance)
    near = recipes[number]
    keys = differing(run, near)
    shown = "; ".join(keys[:6]) + (f"; and {len(keys) - 6} more" if len(keys) > 6 else "")
    return Unused(run, f"nearest {near.cell.row} × {near.cell.column}, but {shown}", n_differing)


def _shown(value: Any) -> str:
    return "null" if value is None else str(value)


def _class(target: Any) -> str:
    return str(target).rpartition(".")[2] if target else "none"
