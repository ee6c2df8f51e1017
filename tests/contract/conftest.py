"""Settings of the contracts."""

from __future__ import annotations

from dataclasses import replace

import pytest

import contract_checks
from slow_marks import slow_but

HALF = contract_checks.D // 2


@pytest.fixture(params=slow_but([None, HALF], HALF), ids=["as-values", "half"])
def qk_width(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Queries and keys of the width of the values, or of half of it."""
    model = replace(contract_checks.MODEL, qk_width=request.param)
    monkeypatch.setattr(contract_checks, "MODEL", model)
