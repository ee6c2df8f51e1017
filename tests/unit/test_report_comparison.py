"""Runs side by side."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from headwise.report.comparison import markdown, mean_and_deviation, rows_of


def point(folder: Path, overrides: list[str], **results: Any) -> dict[str, Any]:
    run = folder / "-".join(overrides).replace("=", "_")
    run.mkdir()
    (run / "results.json").write_text(json.dumps(results), encoding="utf-8")
    return {"overrides": overrides, "run": str(run)}


def results(bleu: float, speed: float, memory: int | None, density: float) -> dict[str, Any]:
    heads = {"density": {"encoder_self": [[density, 1.0], [0.5, 0.5]]}}
    content: dict[str, Any] = {
        "scores": {"test": {"bleu": {"score": bleu}}},
        "tokens_per_second": speed,
        "heads": heads,
    }
    return content if memory is None else {**content, "peak_memory_bytes": memory}


@pytest.fixture
def points(tmp_path: Path) -> list[dict[str, Any]]:
    return [
        point(tmp_path, ["model=tiny", "variant=sparse", "seed=1"], **results(10, 50, 300, 0.2)),
        point(tmp_path, ["model=tiny", "variant=sparse", "seed=2"], **results(14, 70, 500, 0.4)),
        point(tmp_path, ["model=tiny", "variant=softmax", "seed=1"], **results(20, 120, 200, 1.0)),
        {"overrides": ["model=tiny", "variant=softmax", "seed=2"], "error": "DataError: gone"},
    ]


def test_seeds_are_averaged_and_ratios_are_to_softmax(points: list[dict[str, Any]]) -> None:
    head, _, sparse, softmax = markdown(points).splitlines()
    named = ["BLEU test", "runs", "tokens/s, softmax = 1", "memory, softmax = 1"]
    assert head.split(" | ")[1:5] == named
    # sample deviation of 10 and 14; medians 60 and 400 beside 120 and 200; (0.3 + 1 + 0.5 + 0.5)/4
    assert sparse == "| sparse | 12.00 ± 2.83 | 2 | 0.50 | 2.00 | 0.57 / - / - | - / - / - |"
    assert softmax.startswith("| softmax | 20.00 | 1 (1 failed) | 1.00 | 1.00 | 0.75 / - / - |")


def test_what_was_not_measured_is_a_dash(tmp_path: Path) -> None:
    found = markdown([point(tmp_path, ["a=1", "seed=1"], **results(1, 5, None, 1.0))])
    assert found.splitlines()[-1].split(" | ")[4] == "-"


def test_rows_are_named_by_what_tells_them_apart(points: list[dict[str, Any]]) -> None:
    assert [row.name for row in rows_of(points)] == ["sparse", "softmax"]
    both = [
        {"overrides": ["attention=softmax", "pattern=fixed", "seed=1"], "error": "x"},
        {"overrides": ["attention=softmax", "seed=1"], "error": "x"},
    ]
    assert [row.name for row in rows_of(both)] == ["fixed", "all"]


def test_one_value_has_no_deviation() -> None:
    assert mean_and_deviation([1.234]) == "1.23"
    assert mean_and_deviation([]) == "-"
