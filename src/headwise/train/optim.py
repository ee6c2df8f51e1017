"""The optimizer over two groups of parameters: with and without weight decay."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from headwise.instantiate import instantiate


def build_optimizer(node: Any, model: nn.Module) -> torch.optim.Optimizer:
    """Make the optimizer of a config node.

    Vectors and scalars (biases, norms, α) are never decayed: decay of α's logit would pull every
    α to the middle of its range.
    """
    trained = [p for p in model.parameters() if p.requires_grad]
    decayed = [p for p in trained if p.ndim > 1]
    free = [p for p in trained if p.ndim <= 1]
    groups = [{"params": decayed}, {"params": free, "weight_decay": 0.0}]
    optimizer = instantiate(node, "optimizer", params=groups)
    assert isinstance(optimizer, torch.optim.Optimizer)
    return optimizer


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Use one learning rate in every group."""
    for group in optimizer.param_groups:
        group["lr"] = rate
