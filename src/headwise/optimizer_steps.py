"""Functions that run after every step of an optimizer, by torch's global hook.

Importing this registers nothing.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

from torch.autograd.graph import increment_version
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook


@functools.cache  # once per function; a hook that is removed would disturb steps in other threads
def after_each_step(function: Callable[[Optimizer], None]) -> None:
    """From now on, call `function` with the optimizer after each step of all optimizers."""
    register_optimizer_step_post_hook(lambda optimizer, args, kwargs: function(optimizer))


def raise_versions(optimizer: Optimizer) -> None:
    """Raise `_version` of the parameters that torch's fused step has changed: it does not."""
    groups = (group["params"] for group in optimizer.param_groups if group.get("fused"))
    increment_version([p for parameters in groups for p in parameters if p.grad is not None])
