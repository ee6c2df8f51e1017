"""From the model's logits to the log probabilities that a search adds up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from headwise.entmax import native, native_loss


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


def log_softmax(logits: Tensor) -> Tensor:
    """Dense: every word has a probability. (..., V) -> (..., V), at least float32."""
    if native.takes(logits) and not logits.requires_grad:
        return native_loss.log_softmax(logits.reshape(-1, logits.shape[-1])).view(logits.shape)
    return logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(-1)


SOFTMAX = OutputMap(log_softmax, is_sparse=False)
