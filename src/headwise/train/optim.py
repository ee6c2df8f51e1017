"""The optimizer over groups of parameters: with and without weight decay, and gates."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from headwise.config.instantiate import instantiate, target_class
from headwise.errors import ConfigError
from headwise.model.gates import HardConcreteGate


def build_optimizer(node: Any, model: nn.Module) -> torch.optim.Optimizer:
    """Make the optimizer of a config node, with torch's fused step unless the node names one.

    Vectors and scalars (biases, norms, α, gates) are never decayed: decay of α's logit would pull
    every α to the middle of its range. Gates have a rate of their own, in a group that is there
    only if they are.
    """
    gates = [module for module in model.modules() if isinstance(module, HardConcreteGate)]
    gated = {id(p) for gate in gates for p in gate.parameters()}
    trained = [p for p in model.parameters() if p.requires_grad]
    if not any(p.numel() for p in trained):
        raise ConfigError(
            "no parameter is left to train: gates.freeze holds all that gates.sites and "
            "model.heads leave"
        )
    decayed = [p for p in trained if p.ndim > 1]
    free = [p for p in trained if p.ndim <= 1 and id(p) not in gated]
    groups: list[dict[str, Any]] = [{"params": decayed}, {"params": free, "weight_decay": 0.0}]
    if gates:
        logits = [gate.log_a for gate in gates]
        groups.append({"params": logits, "weight_decay": 0.0, "rate_factor": gates[0].rate})
    if _may_be_fused(node, trained):
        for group in groups:
            group["fused"] = True
    optimizer = instantiate(node, "optimizer", params=groups)
    assert isinstance(optimizer, torch.optim.Optimizer)
    return optimizer


def _may_be_fused(node: Any, trained: Sequence[nn.Parameter]) -> bool:
    """Whether torch has a fused step for this optimizer, and the node leaves the choice open."""
    options = inspect.signature(target_class(node, "optimizer")).parameters
    is_open = not {"fused", "foreach", "differentiable"} & set(node)
    # on a CPU the fused step takes parameters and gradients as they lie in memory, strides or not
    return "fused" in options and is_open and all(p.is_contiguous() for p in trained)


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Use one learning rate in every group, times the group's own factor."""
    for group in optimizer.param_groups:
        group["lr"] = rate * group.get("rate_factor", 1.0)
