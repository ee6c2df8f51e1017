"""Heads of one width, which some kernels need."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import pad


def of_one_width(*heads: Tensor) -> list[Tensor]:
    """Pad queries, keys and values (..., E) with zeros to one width, which changes no scores."""
    width = max(states.shape[-1] for states in heads)
    missing = [width - states.shape[-1] for states in heads]
    return [pad(x, (0, n)) if n else x for x, n in zip(heads, missing, strict=True)]
