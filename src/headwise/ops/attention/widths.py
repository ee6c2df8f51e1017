"""Heads of one width, or as many of keys as of queries, which some kernels need."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import pad


def repeated(states: Tensor, n_heads: int) -> Tensor:
    """Return keys or values (..., H', K, E) for H heads, a multiple: consecutive ones share."""
    n_groups = n_heads // states.shape[-3]
    return states if n_groups == 1 else states.repeat_interleave(n_groups, -3)


def group_size(query_BHQE: Tensor, key_BGKE: Tensor) -> int:
    """Return how many consecutive heads of queries share a head of keys.

    Raises:
        ValueError: the number of heads is no multiple of that of the keys.
    """
    n_heads, n_key_heads = query_BHQE.shape[1], key_BGKE.shape[1]
    if n_heads % max(1, n_key_heads):
        raise ValueError(
            f"the number of heads must be a multiple of that of the keys, got {n_heads} and "
            f"{n_key_heads}"
        )
    return max(1, n_heads // max(1, n_key_heads))


def of_one_width(*heads: Tensor) -> list[Tensor]:
    """Pad queries, keys and values (..., E) with zeros to one width, which changes no scores."""
    width = max(states.shape[-1] for states in heads)
    missing = [width - states.shape[-1] for states in heads]
    return [pad(x, (0, n)) if n else x for x, n in zip(heads, missing, strict=True)]
