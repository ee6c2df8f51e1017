"""Learning rates as functions of the update number (from 1), without state."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

from headwise.errors import require


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
