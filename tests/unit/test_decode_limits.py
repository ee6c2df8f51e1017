"""How long a translation may get."""

from __future__ import annotations

import pytest

from headwise.decode.hypothesis import length_limit
from headwise.schema import DecodeConfig


@pytest.mark.parametrize(
    ("n_source", "ratio", "extra", "max_positions", "limit"),
    [
        (7, 2.0, 10, None, 24),
        (7, 2.0, 10, 24, 24),
        (7, 2.0, 10, 23, 23),
        (3, 1.5, 0, None, 4),  # whole tokens only
        (3, 1.5, 2, 32, 6),
        (5, 0.1, 0, None, 1),  # a token at the least
        (5, 0.1, 0, 32, 1),
        (5, 0.0, 3, None, 3),
    ],
)
def test_limits_of_length(
    n_source: int, ratio: float, extra: int, max_positions: int | None, limit: int
) -> None:
    config = DecodeConfig(max_length_ratio=ratio, max_length_extra=extra)
    assert length_limit(n_source, config, max_positions) == limit
