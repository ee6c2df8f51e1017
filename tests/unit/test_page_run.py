"""What a page tells of a run: trajectories of its heads, and its heads' rows."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from headwise.page.run import N_UPDATES, _head_rows, thinned, trajectories

HEADS = {"encoder_self": [[1, 2]], "cross": [[2]]}


def record(update: int, *alphas: float | None) -> dict[str, Any]:
    return {"update": update, "alpha": {"encoder_self": [list(alphas)], "cross": [[alphas[0]]]}}


def test_a_line_a_head_under_its_own_number() -> None:
    found = trajectories([record(5, 1.2, 1.3), record(10, 1.4, None)], HEADS)
    assert list(found) == ["alpha"]  # what was measured nowhere is absent
    own = [{"update": 5, "mine": {"cross": [[0.5]]}}]
    assert trajectories(own, HEADS) == {}
    assert list(trajectories(own, HEADS, ("alpha", "mine"))) == ["mine"]
    assert found["alpha"]["updates"] == [5, 10]
    assert found["alpha"]["values"] == {
        "encoder_self 1 1": [1.2, 1.4],
        "encoder_self 1 2": [1.3, None],
        "cross 1 2": [1.2, 1.4],
    }


def test_records_of_other_heads_are_left_out() -> None:
    # before heads were removed the layer had three: the second now is not the second then
    found = trajectories([record(5, 1.2, 1.3, 1.4), record(10, 1.5, 1.6)], HEADS)
    values = found["alpha"]["values"]
    assert [values[f"encoder_self 1 {head}"] for head in (1, 2)] == [[None, 1.5], [None, 1.6]]


@pytest.mark.parametrize("n_points", [1, 2, 199, 200, 201, 5_000])
def test_long_records_are_thinned_evenly(n_points: int) -> None:
    points = [{"update": update} for update in range(n_points)]
    kept = [point["update"] for point in thinned(points, N_UPDATES)]
    assert len(kept) == min(n_points, N_UPDATES)
    assert (kept[0], kept[-1]) == (0, n_points - 1)
    gaps = {after - before for before, after in itertools.pairwise(kept)}
    assert not gaps or max(gaps) - min(gaps) <= 1


def test_every_head_of_the_model_has_a_row_and_what_is_not_known_is_absent() -> None:
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
