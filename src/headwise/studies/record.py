"""The record of a run with its task, for tables and figures."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

from headwise.config.instantiate import target_class
from headwise.config.saved import located
from headwise.runs.record import Record
from headwise.studies.study import decisive
from headwise.tasks.task import Task, task_of


class TaskRecord(Record):
    """The record of a run with its task, for tables and figures."""

    @cached_property
    def decisive(self) -> Mapping[str, Any]:
        """Flat keys that determine its result, without the seed."""
        return decisive(self.settings)

    @cached_property
    def task(self) -> Task[Any]:
        """The task of the run."""
        return task_of(self.config)

    @property
    def references(self) -> str:
        """See `Task.references`; of its class, which needs no typed configuration."""
        references: str = target_class(located(self.settings["task"]), "task").references
        return references

    @cached_property
    def sites(self) -> dict[str, int]:
        """Site -> number of layers, in the order of the model."""
        return {site.name: site.n_layers for site in self.task.sites()}
