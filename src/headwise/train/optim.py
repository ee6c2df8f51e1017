"""The optimizer and its parameter groups, and learning rates as functions of the update."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import nn

from headwise.config.instantiate import instantiate, target_class
from headwise.errors import ConfigError, require


def build_optimizer(node: Any, model: nn.Module) -> torch.optim.Optimizer:
    """Build the optimizer of a config node, with torch's fused step unless the node chooses.

    Vectors and scalars (biases, norms, α, gates) have no weight decay, which would pull every α to
    the middle of its range. Gates, α and the encoder of a classifier may have a factor of the
    learning rate: `lr_factors` of their modules, of which the innermost counts.
    """
    trained = [p for p in model.parameters() if p.requires_grad]
    if not any(p.numel() for p in trained):
        raise ConfigError(
            "no parameter is left to train: gates.freeze freezes all that gates.sites and "
            "model.heads leave"
        )
    decayed = [p for p in trained if p.ndim > 1]
    undecayed = [p for p in trained if p.ndim <= 1]
    groups: list[dict[str, Any]] = [{"params": decayed}, {"params": undecayed, "weight_decay": 0.0}]
    factors = {
        parameter: factor
        for module in model.modules()  # outer ones first
        for parameter, factor in getattr(module, "lr_factors", {}).items()
    }
    groups = [part for group in groups for part in _by_factor(group, factors)]
    if _may_be_fused(node, trained):
        for group in groups:
            group["fused"] = True
    optimizer = instantiate(node, "optimizer", params=groups)
    assert isinstance(optimizer, torch.optim.Optimizer)
    return optimizer


def _by_factor(
    group: Mapping[str, Any], factors: Mapping[nn.Parameter, float]
) -> list[dict[str, Any]]:
    """The group split by the factors of the learning rate of its parameters."""
    parts: dict[float, list[nn.Parameter]] = {}
    for parameter in group["params"]:
        parts.setdefault(factors.get(parameter, 1.0), []).append(parameter)
    return [{**group, "params": params, "lr_factor": f} for f, params in parts.items()]


def _may_be_fused(node: Any, trained: Sequence[nn.Parameter]) -> bool:
    """Whether torch has a fused step for this optimizer and the node does not choose one."""
    options = inspect.signature(target_class(node, "optimizer")).parameters
    is_unset = not {"fused", "foreach", "differentiable"} & set(node)
    # on a CPU the fused step ignores strides
    return "fused" in options and is_unset and all(p.is_contiguous() for p in trained)


def set_learning_rate(optimizer: torch.optim.Optimizer, learning_rate: float) -> None:
    """Set the learning rate of every group, multiplied by its `lr_factor` if it has one."""
    for group in optimizer.param_groups:
        group["lr"] = learning_rate * group.get("lr_factor", 1.0)


# -- schedules ------------------------------------------------------------------------------------


class Schedule(Protocol):
    """A learning rate schedule; `base_lr` is the optimizer's `lr`."""

    def learning_rate(self, update: int, base_lr: float) -> float:
        """The learning rate of one update (from 1)."""
        ...


def _warmup(update: int, warmup_updates: int) -> float:
    return min(1.0, update / warmup_updates) if warmup_updates > 0 else 1.0


class InverseSqrt:
    """Linear warm-up to base_lr, then base_lr · sqrt(warmup / update)."""

    def __init__(self, warmup_updates: int) -> None:
        require(warmup_updates >= 1, "warmup_updates", "at least 1", warmup_updates)
        self.warmup_updates = warmup_updates

    def learning_rate(self, update: int, base_lr: float) -> float:
        decay = math.sqrt(self.warmup_updates / max(update, self.warmup_updates))
        return base_lr * _warmup(update, self.warmup_updates) * decay


class Noam:
    """factor · D^-0.5 · min(update^-0.5, update · warmup^-1.5) (Vaswani et al. 2017, eq. 3)."""

    def __init__(self, warmup_updates: int, d_model: int, factor: float = 2.0) -> None:
        require(warmup_updates >= 1, "warmup_updates", "at least 1", warmup_updates)
        require(d_model >= 1, "d_model", "at least 1", d_model)
        require(0 < factor < math.inf, "factor", "a number above 0", factor)
        self.warmup_updates = warmup_updates
        self.scale: float = factor * d_model**-0.5

    def learning_rate(self, update: int, base_lr: float) -> float:
        """See `Schedule`; `base_lr` is not used."""
        factor: float = min(update**-0.5, update * self.warmup_updates**-1.5)
        return self.scale * factor


@dataclass
class Cosine:
    """Linear warm-up, then half a cosine down to `final_fraction` of base_lr."""

    warmup_updates: int
    total_updates: int
    final_fraction: float = 0.0

    def __post_init__(self) -> None:
        fraction, warmup = self.final_fraction, self.warmup_updates
        allowed = f"in [0, total_updates={self.total_updates})"
        require(0 <= warmup < self.total_updates, "warmup_updates", allowed, warmup)
        require(0 <= fraction <= 1, "final_fraction", "in [0, 1]", fraction)

    def learning_rate(self, update: int, base_lr: float) -> float:
        """See `Schedule`; constant after `total_updates`."""
        if update <= self.warmup_updates:
            return base_lr * _warmup(update, self.warmup_updates)
        span = self.total_updates - self.warmup_updates
        progress = min(1.0, (update - self.warmup_updates) / span)
        height = 0.5 * (1 + math.cos(math.pi * progress))
        return base_lr * (self.final_fraction + (1 - self.final_fraction) * height)


class Constant:
    """Linear warm-up, then base_lr."""

    def __init__(self, warmup_updates: int = 0) -> None:
        require(warmup_updates >= 0, "warmup_updates", "at least 0", warmup_updates)
        self.warmup_updates = warmup_updates

    def learning_rate(self, update: int, base_lr: float) -> float:
        return base_lr * _warmup(update, self.warmup_updates)
