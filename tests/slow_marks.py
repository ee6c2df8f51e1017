"""Of a list of choices, a few in `make test` and the others in `make test-all`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def slow_but(choices: Iterable[Any], *fast: Any) -> list[Any]:
    """The choices as parameters, marked slow except those named."""
    return [c if c in fast else pytest.param(c, marks=pytest.mark.slow) for c in choices]
