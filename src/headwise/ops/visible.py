"""Which keys a row may attend to, as the C++ kernels read it."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Visible:
    """Which keys a row may attend to; defaults restrict nothing.

    Attributes:
        mask: bool, broadcastable to the scores, True = may attend.
        lengths_B: int64, number of keys before padding.
        is_causal: whether keys after the position of the query are excluded.
        query_offset: position of the first query.
    """

    mask: Tensor | None = None
    lengths_B: Tensor | None = None
    is_causal: bool = False
    query_offset: int = 0


EVERYTHING = Visible()
