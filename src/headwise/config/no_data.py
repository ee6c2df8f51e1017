"""The data config of a task that generates its examples."""

from __future__ import annotations

from dataclasses import dataclass, field

from omegaconf import MISSING


@dataclass
class NoDataConfig:
    """No files: the task generates its examples."""

    _target_: str = "headwise.config.no_data.NoDataConfig"
    name: str = MISSING  # name in tables
    valid: str = "valid"  # name of a split, interpreted by the task
    test: list[str] = field(default_factory=lambda: ["test"])  # splits scored at the end of a run
    max_updates: int = 1000  # suggested
    warmup_updates: int = 100  # suggested
