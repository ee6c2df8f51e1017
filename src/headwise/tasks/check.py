"""Validation of a composed config, resolution of its `auto` values, and the identity of a run.

Two runs are the same if their settings and the content of what they read are equal.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Collection, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from headwise.attention.build import completed
from headwise.config.fields import check_bounds
from headwise.config.instantiate import instantiate
from headwise.config.schema import SITE_GROUPS, Config
from headwise.data.file_corpus import Corpus
from headwise.data.sources.digest import FileHashes
from headwise.data.tokenizer import check_tokenizer_config, load_tokenizers
from headwise.errors import RunError, refuse, require
from headwise.files import check_file_name
from headwise.metrics.metric import Metric
from headwise.model.gates import NoGates
from headwise.precision import check_precision, resolve_precision
from headwise.runs.folder import N_DIGITS, RunFolder, canonical, costs, fingerprint, flat
from headwise.runs.record import SETTINGS, Record
from headwise.tasks.task import Task, task_of
from headwise.track.base import Tracker
from headwise.train.checkpoint import checkpoint_path
from headwise.train.distributed import choose_device
from headwise.train.optim import build_optimizer
from headwise.train.repulsion import Repulsion

log = logging.getLogger(__name__)


def checked_task(config: Config) -> Task[Any]:
    """Validate the settings without reading data, and return their task.

    Its model is built without values, and the optimizer and the schedule for it.

    Raises:
        ConfigError: an invalid setting.
    """
    for key, value in flat(asdict(config)).items():
        is_utf8 = not re.search("[\ud800-\udfff]", canonical(value))  # other bytes of a path
        require(is_utf8, key, "UTF-8 (HEADWISE_CACHE and HOME are in paths.cache)", value)
    check_bounds(config)
    config.paths.cache = os.path.abspath(config.paths.cache)  # later commands may run elsewhere
    task = task_of(config)
    tasks, name = getattr(config.data, "tasks", None), task.name
    allowed = f"{' or '.join(tasks or ())} with data={getattr(config.data, 'name', None)}"
    require(tasks is None or name in tasks, "task", allowed, name)
    fits, data = isinstance(config.data, task.data), getattr(config.data, "name", None)
    kinds = task.data if isinstance(task.data, tuple) else (task.data,)
    wanted = " or ".join(kind.__name__ for kind in kinds)
    require(fits, "data", f"a {wanted} with task={name}", data)
    keep, average = config.trainer.keep, config.trainer.average
    require(average <= keep, "trainer.average", f"at most trainer.keep={keep}", average)
    check_precision(config.trainer.precision, "trainer.precision")
    instantiate(config.tracker, "tracker", Tracker).check()
    check_tokenizer_config(config.tokenizer)
    check_file_name("experiment_name", config.experiment_name)
    task.check()
    monitored(task)
    if config.init_from is None and not isinstance(instantiate(config.gates, "gates"), NoGates):
        log.warning("gates are meant for a trained model: init_from=RUN starts from one")
    repulsion = instantiate(config.repulsion, "repulsion", Repulsion)
    repulsion.check(task.sites())
    with torch.device("meta"):  # shapes without values, for the largest vocabularies
        model = task.model(task.sizes())
    repulsion.check_model(model)
    build_optimizer(config.optimizer, model)
    warn_of_warmup(instantiate(config.scheduler, "scheduler"), config.trainer.max_updates)
    return task


def monitored(task: Task[Any]) -> Metric:
    """The metric of `trainer.monitor`, else the main one of the task.

    Raises:
        ConfigError: the task has no such metric.
    """
    metrics = {metric.name: metric for metric in task.metrics()}
    monitor = task.config.trainer.monitor or next(iter(metrics))
    if monitor not in metrics:
        raise refuse("trainer.monitor", monitor, metrics)
    return metrics[monitor]


def warn_of_warmup(schedule: object, max_updates: int) -> None:
    """Warn if a run ends while its learning rate rises; a user's schedule may be any object."""
    warmup = getattr(schedule, "warmup_updates", 0)
    if isinstance(warmup, (int, float)) and warmup > max_updates:
        log.warning(
            "scheduler.warmup_updates=%d is more than trainer.max_updates=%d: the learning "
            "rate reaches %.2g of its peak",
            warmup,
            max_updates,
            max_updates / warmup,
        )


def resolve(task: Task[Any]) -> None:
    """Resolve `auto` values and the names of variants in the config of a task, in place.

    Before a run is named: `auto` may mean another value on another machine, a yaml may change.
    """
    config = task.config
    device = choose_device(config.trainer.device)
    config.trainer.monitor = config.trainer.monitor or task.metric.name
    for part in (config.trainer, config.decode):
        part.precision = resolve_precision(part.precision, device)
    for group, sites in SITE_GROUPS.items():
        setattr(config, group, completed(group, getattr(config, group)))
        nodes = getattr(config, sites)
        for site, node in vars(nodes).items():
            if node is not None:
                setattr(nodes, site, completed(group, node))


# -- what makes two runs the same -----------------------------------------------------------------


def identity(
    config: Config, container: Mapping[str, Any], corpus: Corpus, swept: Collection[str] = ()
) -> dict[str, Any]:
    """The identity of a run, and what is in it besides settings and text, as in its data.json.

    Args:
        config: typed.
        container: the same, resolved.
        corpus: its data.
        swept: keys with several values in its sweep; those of `COST` are part of the identity.

    Returns:
        identity: hash of the settings, the training and validation text, a given tokenizer, and:
        init_weights: hash of the weights of `init_from`; left out without one.
        swept: key -> value of what costs only, if the sweep varies it; else left out.

    Raises:
        RunError: the weights of `init_from` are gone, or broken.
    """
    weights = None if config.init_from is None else init_weights(config)
    parts = {"init_weights": weights, "swept": costs(container, swept)}
    about = {key: value for key, value in parts.items() if value}
    given = [pair.content()] if (pair := load_tokenizers(config.tokenizer)) else []
    content = {"text": [*corpus.hashes(), *given], **about}
    return {"identity": fingerprint(container, content), **about}


def init_weights(config: Config) -> str:
    """Hash of the weights of `init_from`; if they are gone, of those that runs there began with."""
    path = config.init_from or ""
    try:
        origin = RunFolder.existing(path, "init_from")
    except RunError:
        outputs = Path(config.paths.outputs, config.experiment_name)
        runs = [Record(file.parent) for file in outputs.glob(f"*/{SETTINGS}")]
        started = [run.data for run in runs if run.saved.get("init_from") == path]
        known = {data["init_weights"] for data in started if "init_weights" in data}
        if len(known) != 1:
            raise
        return str(known.pop())
    return FileHashes(Path(config.paths.cache))(checkpoint_path(origin, "auto"))[:N_DIGITS]
