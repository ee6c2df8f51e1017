"""Which sets `headwise evaluate` scores, their location, and which scores it saves."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from command_line import CommandLine, assert_rejected, read_results
from headwise.commands import evaluate
from headwise.errors import DataError


def test_scores_are_saved_if_a_later_set_fails(
    headwise: CommandLine, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    score = evaluate.score

    def fail_at_test_b(*arguments: Any, **options: Any) -> Any:
        if "test_b" in arguments:
            raise DataError("no more")
        return score(*arguments, **options)

    monkeypatch.setattr(evaluate, "score", fail_at_test_b)
    assert_rejected(headwise("evaluate", f"run={run}", "data.test=[test_a,test_b]"), 1, "no more")
    assert set(read_results(run)["scores"]) == {"test_a"}


def test_run_without_its_sets_uses_the_corpus(headwise: CommandLine, run: Path) -> None:
    shutil.rmtree(run / "hypotheses")
    headwise.ok("evaluate", f"run={run}")
    assert set(read_results(run)["scores"]) == {"test_a", "test_b"}
