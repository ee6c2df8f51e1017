"""Runs side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headwise.report.comparison import Row, markdown, mean_and_deviation, rows_of
from headwise.runs.results import Results


def point(folder: Path, overrides: list[str], **results: Any) -> dict[str, Any]:
    run = folder / "-".join(overrides).replace("=", "_")
    run.mkdir()
    Results(**results).write(run / "results.json")
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


def test_only_the_seed_itself_is_left_out_of_a_name() -> None:
    kept = ["seed_x=3", "seeds=4", "seed"]
    found = rows_of(
        [
            {"overrides": [*kept, "seed=1"], "error": "x"},
            {"overrides": ["seed=2"], "error": "x"},
        ]
    )
    assert [row.name for row in found] == [" ".join(kept), "all"]


def test_equal_values_of_different_keys_are_different_rows() -> None:
    found = rows_of(
        [
            {"overrides": ["model.dropout=0.2", "seed=1"], "error": "x"},
            {"overrides": ["loss.label_smoothing=0.2", "seed=1"], "error": "x"},
        ]
    )
    assert [row.name for row in found] == ["model.dropout=0.2", "loss.label_smoothing=0.2"]


def test_a_ratio_is_of_medians_so_that_one_odd_run_moves_it_little() -> None:
    def median(*speeds: float | None) -> float | None:
        return Row("a", [Results(tokens_per_second=v) for v in speeds]).median("tokens_per_second")

    assert median(30.0, 500.0, 40.0, None) == 40
    assert median(None) is None
    assert median(0.0, 1.0, 0.0) == 0


def test_heads_that_measure_0_count_in_the_mean_and_unmeasured_ones_do_not() -> None:
    layers = [[0.0, 0.6, None], [0.0]]
    found = [Results(heads={"density": {"cross": layers}}), Results()]
    row = Row("a", found)
    assert row.head_mean("density", "cross") == pytest.approx(0.2)
    assert row.head_mean("density", "encoder_self") is None
    assert (
        Row("a", [Results(heads={"density": {"cross": [[0.0]]}})]).head_mean("density", "cross")
        == 0
    )


def test_without_softmax_the_first_row_is_the_measure(tmp_path: Path) -> None:
    found = [
        point(tmp_path, [f"a={name}", "seed=1"], **results(1, speed, 100, 1.0))
        for name, speed in (("x", 50), ("y", 100))
    ]
    head, _, first, second = markdown(found).splitlines()
    assert "tokens/s, x = 1" in head
    assert [line.split(" | ")[3] for line in (first, second)] == ["1.00", "2.00"]


def test_every_split_has_a_column_and_every_failure_counts(tmp_path: Path) -> None:
    scores = {"test": {"bleu": {"score": 10.0}}, "other": {"bleu": {"score": 20.0}}}
    failed = [{"overrides": ["a=1", f"seed={seed}"], "error": "x"} for seed in (2, 3)]
    head, _, row = markdown(
        [point(tmp_path, ["a=1", "seed=1"], scores=scores), *failed]
    ).splitlines()
    assert head.split(" | ")[1:4] == ["BLEU test", "BLEU other", "runs"]
    assert row.startswith("| all | 10.00 | 20.00 | 1 (2 failed) |")


def test_one_value_has_no_deviation() -> None:
    assert mean_and_deviation([1.234]) == "1.23"
    assert mean_and_deviation([]) == "-"
