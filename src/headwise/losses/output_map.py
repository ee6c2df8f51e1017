"""From the model's logits to the log probabilities that a search adds up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from headwise.entmax.losses import log_softmax


@dataclass(frozen=True)
class OutputMap:
    """The map that the model's loss was made for.

    Attributes:
        log_probs: logits (..., V) -> log probabilities of the same shape, at least float32, -inf
            for words without a probability. A row with NaN becomes NaN.
        is_sparse: whether there are such words; searches then count what they drop.
    """

    log_probs: Callable[[Tensor], Tensor]
    is_sparse: bool


SOFTMAX = OutputMap(log_softmax, is_sparse=False)
