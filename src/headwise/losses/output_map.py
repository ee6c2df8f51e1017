"""The map from the model's logits to the log-probabilities that decoding adds up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from headwise.entmax.losses import log_softmax


@dataclass(frozen=True)
class OutputMap:
    """The map that matches the model's loss.

    Attributes:
        log_probs: logits (..., V) -> log-probabilities (..., V), at least float32, -inf for entries
            with p = 0. A row with NaN becomes NaN.
        is_sparse: whether entries can have p = 0; decoding then counts what it drops.
    """

    log_probs: Callable[[Tensor], Tensor]
    is_sparse: bool


SOFTMAX = OutputMap(log_softmax, is_sparse=False)
