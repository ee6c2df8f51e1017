"""Loading a trained run of any task from its folder."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from headwise.attention.normaliser import Scaling
from headwise.config.commands import Batching, EvaluateConfig, SearchSelection
from headwise.config.instantiate import target_class
from headwise.config.schema import Config, SitesConfig
from headwise.data.cache import cache_of_training
from headwise.errors import ConfigError, RunError, require
from headwise.files import read_json
from headwise.runs.folder import RunFolder
from headwise.runs.record import Record
from headwise.tasks.task import TrainedRun, task_of
from headwise.train.checkpoint import checkpoint_path, load_checkpoint, load_weights
from headwise.train.distributed import choose_device
from headwise.train.memory import keep_freed_memory

log = logging.getLogger(__name__)


def load(
    run: str | Path,
    checkpoint: str = "auto",
    device: str = "auto",
    scaling: Mapping[str, Any] | None = None,
    max_tokens: int | None = None,
    **search: Any,
) -> TrainedRun:
    """Load a run of any task, with the methods of its task (`Task.run`).

    Args:
        run: its folder.
        checkpoint: auto, best, last, average, `update_<n>` or `<n>`.
        device: auto, cpu or cuda.
        scaling: node with a `_target_`, for all sites of a run that was trained without scaling.
        max_tokens: of a batch, in place of those of the training and of the search; affects memory
            and time alone.
        search: settings of the search that replace the run's, such as beam=10.

    Raises:
        RunError: the folder holds no run, or one of another version.
        CheckpointError: the checkpoint does not exist or cannot be read.
        ConfigError: an unknown device, `max_tokens` below 1, an invalid setting of the search, a
            scaling with weights, or one for a run that was trained with its own.
    """
    run_device = choose_device(device, key="device")
    folder = RunFolder.existing(run)
    config = Record(folder.path).config
    if scaling is not None:
        config = _scaled(config, scaling)
    if max_tokens is not None:
        require(max_tokens >= 1, "max_tokens", "at least 1", max_tokens)
        config.trainer.max_tokens = max_tokens
        if hasattr(config.decode, "max_tokens"):  # of a search
            config.decode.max_tokens = max_tokens
    config.paths.cache = str(cache_of_training(config.paths.cache))
    task = task_of(config)
    path = checkpoint_path(folder, checkpoint)  # raises before the model is built
    sizes = read_json(folder.path / "data.json")["sizes"]
    model = task.model(sizes)
    load_weights(model, load_checkpoint(path)["model"], str(path))
    _warn_if_unfinished(folder, config.trainer.max_updates, path.stem)
    model = model.eval().to(run_device)
    return task.run(folder, task, model, sizes, path, run_device).searching(search)


def load_selected(run: str | Path, selection: Batching, command: str = "") -> Any:
    """Load a run with the checkpoint, device and search of a command; see `load`.

    Args:
        command: only for runs of a task with this command, `Task.command`.

    Raises:
        RunError: also a run of a task with another command.
    """
    keep_freed_memory()
    search: Mapping[str, Any] = selection.decode if isinstance(selection, SearchSelection) else {}
    scaling = selection.scaling if isinstance(selection, EvaluateConfig) else None
    settings = selection.checkpoint, selection.device, scaling, selection.max_tokens
    loaded = load(run, *settings).searching(search)
    if command not in ("", loaded.task.command):
        name = f"{loaded.folder.path} is a run of task={loaded.task.name}"
        raise RunError(f"{name}: headwise {command} does not apply to it")
    return loaded


def _scaled(config: Config, node: Any) -> Config:
    """Settings of a run with another scaling, without weights, at all sites; see `load`."""
    for trained in (config.scaling, *asdict(config.scaling_sites).values()):
        if trained is not None and target_class(trained, "scaling").scales:
            name = target_class(trained, "scaling").__name__
            raise ConfigError(f"scaling must be null: the run was trained with {name}")
    kind = target_class(node, "scaling")
    if not issubclass(kind, Scaling):
        raise ConfigError(f"scaling._target_ must be a Scaling, got {kind.__name__}")
    return replace(config, scaling=kind.unlearned(node), scaling_sites=SitesConfig())


def _warn_if_unfinished(folder: RunFolder, max_updates: int, stem: str) -> None:
    """Log a warning if the run is unfinished, or if its records cannot be read."""
    try:
        record = Record(folder.path)
        saved = record.last_saved().get("update")
        is_unfinished = saved is not None and record.results_at(saved) is None
    except RunError as error:
        log.warning("%s", error)
        return
    if is_unfinished:
        progress = f"saved at update {saved} of {max_updates}"
        warning = "%s is not finished (%s): its current %s weights are loaded"
        log.warning(warning, folder.path, progress, stem)
