"""Rows of heads on a page."""

from dataclasses import replace
from types import SimpleNamespace

from headwise.metrics.metric import Metric
from headwise.page.run import _head_rows, _scores
from headwise.runs.results import Results

HEADS = {"encoder_self": [[1, 2]], "cross": [[2]]}


def test_every_head_has_a_row_without_missing_values():
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


def test_scores_have_their_search_and_enough_digits():
    bleu = Metric("bleu", "higher", lambda sums: sums[0], None, "", "unit", "BLEU")
    metrics = [bleu, replace(bleu, name="loss", better="lower", label="loss")]
    task = SimpleNamespace(metrics=lambda: metrics)
    run = SimpleNamespace(task=task, config=SimpleNamespace(data=SimpleNamespace(valid="v")))
    scores = {"bleu": {"score": 1.0, "scope": "beam 5"}, "loss": {"score": 1.0}}
    scores |= {"comet": {"score": 0.8}, "search": {"exact": 1.0}, "note": {"loss": "left out"}}
    shown = [(s["metric"], s["decimals"]) for s in _scores(run, Results(scores={"test": scores}))]
    assert shown == [("BLEU (beam 5)", 2), ("loss", 3), ("comet", 2)]
