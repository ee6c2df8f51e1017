"""Splits that are shares of one file, in its order: `data.split=[0.9,0.05,0.05]`."""

from __future__ import annotations

import math
from collections.abc import Sequence

from headwise.errors import require

SPLITS = ("train", "valid", "test")  # the order of `data.split`


def check_shares(shares: Sequence[float]) -> None:
    """Raise `ConfigError` unless these are no shares, or two or three with the sum 1."""
    fit = len(shares) in (2, 3) and min(shares) > 0 and math.isclose(math.fsum(shares), 1)
    require(fit or not shares, "data.split", "two or three shares with the sum 1", shares)


def share_range(split: str, shares: Sequence[float], size: int) -> tuple[int, int]:
    """Return the items [first, end) of a split, of `size` items of all splits."""
    number = SPLITS.index(split)
    parts = [math.fsum(shares[:n]) for n in (number, number + 1)]
    first, end = (math.floor(size * part + 1e-6) for part in parts)
    return first, size if number + 1 == len(shares) else end
