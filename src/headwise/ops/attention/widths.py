"""Heads of one width, or as many of keys as of queries, which some kernels need."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import pad


def repeated(states: Tensor, n_heads: int) -> Tensor:
    """Return keys or values (..., H', K, E) for H heads, a multiple: consecutive ones share."""
    n_groups = n_heads // states.shape[-3]
    return states if n_groups == 1 else states.repeat_interleave(n_groups, -3)


def of_one_width(*heads: Tensor) -> list[Tensor]:
    """Pad queries, keys and values (..., E) with zeros to one width, which changes no scores."""
    width = max(states.shape[-1] for states in heads)
    missing = [width - states.shape[-1] for states in heads]
    return [pad(x, (0, n)) if n else x for x, n in zip(heads, missing, strict=True)]
