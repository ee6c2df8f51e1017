"""Compile-time constants of a Triton kernel."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple


class Constants(NamedTuple):
    """Compile-time constants of a kernel; those with a default are of attention or maps alone."""

    BLOCK_M: Any  # rows (of attention: queries) per program or, in kernels by keys, per step
    BLOCK_N: Any  # keys
    POWER: Any
    PRECISE: Any  # whether to float32 precision
    INTERPRET: Any  # whether Triton's interpreter runs it
    HAS_MASK: Any = False  # of maps
    WIDTH: Any = 0  # of a head
    PADDED: Any = 0  # the width rounded up to a power of two
    GROUP: Any = 1  # query heads per head of keys and values
    PRECISION: Any = "ieee"  # of matmuls
    CAUSAL: Any = False
    BIASED: Any = False  # whether there is a bias by distance
    PATTERN: Any = False  # whether there is a pattern
    SEGMENTS: Any = False  # whether there are documents
    UNLISTED: Any = False  # whether any block may have hidden pairs, by a mask that no list has


@functools.cache  # Triton compares the constants of each launch, first by identity
def constants(**values: Any) -> Constants:
    """Return the constants of a launch, by name."""
    from triton.language import constexpr

    return Constants(*map(constexpr, Constants(**values)))
