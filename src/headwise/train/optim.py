"""The optimizer and its parameter groups, by weight decay and factor of the learning rate."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from headwise.config.instantiate import instantiate, target_class
from headwise.errors import ConfigError


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
