"""Rows of heads on a page."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from headwise.metrics.metric import Metric
from headwise.page.run import _head_rows, _scores
from headwise.runs.results import Results

HEADS = {"encoder_self": [[1, 2]], "cross": [[2]]}


def test_every_head_has_a_row_without_missing_values() -> None:
    table = [
        {"site": "cross", "layer": 1, "head": 2, "alpha": 1.23456, "density": None, "offset": -1},
        {"site": "cross", "layer": 9, "head": 9, "alpha": 1.5},
    ]
    others = [
        {"site": "cross", "layer": 1, "head": head, "statistic": "mine", "value": head / 3}
        for head in (1, 2)
    ]
    rows = _head_rows(HEADS, table, others)
    assert [(row["site"], row["layer"], row["head"]) for row in rows] == [
        ("encoder_self", 1, 1),
        ("encoder_self", 1, 2),
        ("cross", 1, 2),
    ]
    assert set(rows[0]) == {"site", "layer", "head"}
    assert rows[2]["alpha"] == 1.235
    assert rows[2]["offset"] == -1
    assert rows[2]["mine"] == 0.6667
    assert "density" not in rows[2]


@pytest.mark.parametrize(
    ("better", "scope", "expected"),
    [
        ("higher", {}, {"metric": "Name", "decimals": 2}),
        ("higher", {"scope": "beam 5"}, {"metric": "Name (beam 5)", "decimals": 2}),
        ("lower", {}, {"metric": "Name", "decimals": 4}),
    ],
)
def test_scores_have_their_search_and_enough_digits(
    better: Any, scope: dict[str, str], expected: dict[str, Any]
) -> None:
    metric = Metric("m", better, lambda sums: float(sums[0]), None, "", "unit", "Name")
    task: Any = SimpleNamespace(metrics=lambda _: [metric], main_metric=lambda _: metric)
    run: Any = SimpleNamespace(task=task, config=SimpleNamespace(data=SimpleNamespace(valid="v")))
    results = Results(scores={"test": {"m": {"score": 0.0123, **scope}, "comet": {"score": 1.0}}})
    main, other = _scores(run, results)
    assert {key: main[key] for key in expected} == expected
    assert (other["metric"], other["decimals"]) == ("comet", 2)
