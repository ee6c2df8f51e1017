"""Pruning tables of runs, compared with the statements of a paper."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headwise.config.folders import composed
from headwise.config.schema import SITES, typed
from headwise.studies.paper import Paper, PruningFact
from headwise.studies.pruning import effective_heads, measure, pruning_report

# BLEU by share of heads removed: a small gain, a loss of 0.5 at 40 %, then of everything
CURVE = {0.0: 30.0, 0.1: 30.2, 0.2: 29.9, 0.3: 29.6, 0.4: 29.5, 0.5: 20.0, 0.6: 29.8, 1.0: 1.0}


def write_curve(
    run: Path, name: str, sites: list[str], curve: dict[float, float], **more: Any
) -> None:
    folder = run / "pruning"
    folder.mkdir(exist_ok=True)
    rows = [
        {"removed": share, **dict.fromkeys(SITES, 10 - 10 * share), "bleu": bleu, "loss": 1.0}
        for share, bleu in curve.items()
    ]
    content = {
        "weights": "w",
        "split": "valid",
        "sentences": 9,
        "sites": sites,
        "metric": "bleu",
        "rows": rows,
        **more,
    }
    (folder / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")


def fact(measure: str, **settings: Any) -> PruningFact:
    settings = {"sites": list(SITES), **settings}
    return PruningFact(table="t", label="l", measure=measure, **settings)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    write_curve(tmp_path, "curve", list(SITES), CURVE)
    write_curve(tmp_path, "curve-cross", ["cross"], {0.7: 3.0, 0.0: 30.0})
    rows = [
        {"site": "cross", "layer": 1, "head": 2, "bleu": 29.0},
        {"site": "cross", "layer": 2, "head": 1, "bleu": 30.5},
    ]
    content = {"weights": "w", "split": "valid", "sentences": 9, "metric": "bleu", "rows": rows}
    (tmp_path / "pruning" / "one_left.json").write_text(json.dumps(content), encoding="utf-8")
    return tmp_path


def test_effective_heads_are_left_before_the_first_significant_loss(tmp_path: Path) -> None:
    assert effective_heads(tmp_path) is None
    steps = ((0, 1.0), (0.3, 0.01), (-0.2, 0.3), (-0.4, 0.04), (-0.1, 0.5))  # difference, p-value
    rows = [
        {"cross": 4 - n, "encoder_self": 4, "difference": difference, "p_value": p_value}
        for n, (difference, p_value) in enumerate(steps)
    ]
    (tmp_path / "pruning").mkdir()
    content = {"sites": ["cross", "encoder_self"], "rows": rows}
    (tmp_path / "pruning" / "curve.json").write_text(json.dumps(content), encoding="utf-8")
    assert effective_heads(tmp_path) == 6


@pytest.mark.parametrize(("tolerance", "share"), [(0.0, 10), (0.2, 20), (0.5, 40), (40.0, 100)])
def test_heads_are_removable_up_to_the_tolerance(run: Path, tolerance: float, share: float) -> None:
    assert measure(run, fact("removable", tolerance=tolerance)) == pytest.approx(share)
    assert measure(run, fact("kept", tolerance=tolerance)) == pytest.approx(100 - share)


def test_score_left_is_a_percentage_at_the_requested_sites(run: Path) -> None:
    assert measure(run, fact("score_left", sites=["cross"], removed=0.7)) == pytest.approx(10)
    assert measure(run, fact("score_left", removed=0.5)) == pytest.approx(100 * 20 / 30)
    assert measure(run, fact("score_left", removed=0.7)) is None  # the step was not measured
    assert measure(run, fact("score_left", sites=["encoder_self"], removed=0.7)) is None


def test_shares_are_of_the_heads_actually_removed(tmp_path: Path) -> None:
    # of 8 heads 0.7 and 0.8 are 6 heads, 75 %
    left = {0.0: 8, 0.7: 2, 0.8: 2, 0.9: 1, 1.0: 0}
    rows = [
        {"removed": step, "cross": n, "bleu": 20.0 if n > 1 else 5.0} for step, n in left.items()
    ]
    write_curve(tmp_path, "curve-cross", ["cross"], {}, rows=rows)
    cross = {"sites": ["cross"]}
    assert measure(tmp_path, fact("removable", tolerance=1.0, **cross)) == 75
    assert measure(tmp_path, fact("kept", tolerance=1.0, **cross)) == 25
    assert measure(tmp_path, fact("score_left", removed=0.8, **cross)) is None
    assert measure(tmp_path, fact("score_left", removed=0.75, **cross)) == 100
    assert measure(tmp_path, fact("score_left", removed=0.86, **cross)) == 25


def test_best_single_head_is_compared_with_all_heads(run: Path) -> None:
    differences = [
        measure(run, fact("one_left", sites=["cross"], layer=layer)) for layer in (1, 2, 3)
    ]
    assert differences == [-1.0, 0.5, None]


@pytest.mark.parametrize("other", [{"weights": "v"}, {"split": "test"}, {"sentences": 8}])
def test_measurements_of_other_settings_are_not_compared(run: Path, other: dict[str, Any]) -> None:
    for name in ("curve", "curve-cross"):
        write_curve(run, name, ["cross"], CURVE, **other)
    assert measure(run, fact("one_left", sites=["cross"], layer=1)) is None


# -- several runs ---------------------------------------------------------------------------------


def make_run(
    folder: Path, scores: dict[str, float] | None = None, heads: Any = None, **more: Any
) -> Any:
    """A run with two encoder and three decoder layers of four heads."""
    folder.mkdir(exist_ok=True)
    if scores is not None:
        content = {"scores": {name: {"bleu": {"score": bleu}} for name, bleu in scores.items()}}
        path = folder / more.pop("file", "results.json")
        path.write_text(json.dumps(content), encoding="utf-8")
    config = typed(composed("attention=softmax", "model=tiny", "model.decoder_layers=3"))
    config.model.heads, config.data.test = heads, ["test"]
    config.init_from = more.pop("init_from", None)
    decisive = more.pop("decisive", {})
    fields = {"sites": {"encoder_self": 2, "decoder_self": 3, "cross": 3}, "decisive": decisive}
    metric = SimpleNamespace(name="bleu", label="BLEU", sign=1)
    return SimpleNamespace(
        folder=folder, results={}, metric=metric, config=config, seed=1, **fields
    )


def test_pruned_runs_are_compared_with_their_origin(tmp_path: Path) -> None:
    heads = {"encoder_self": [[1, 2], [4]], "cross": [[], [1], [1, 2, 3, 4]]}
    unpruned, pruned, trained, retrained = (tmp_path / name for name in "abcd")
    runs = [
        make_run(unpruned, {"valid": 10.0, "test": 30.0}),
        make_run(pruned, {"valid": 10.0, "test": 28.5}, heads, file="results-best.json"),
        make_run(trained, {"test": 31.25}, heads, init_from=str(pruned)),
        make_run(retrained, {"test": 30.0}, heads, init_from=str(pruned)),
        make_run(tmp_path / "e", None, heads),
    ]
    for folder, origin in ((pruned, unpruned), (retrained, trained)):
        (folder / "pruned.json").write_text(json.dumps({"origin": str(origin)}), encoding="utf-8")
    (table,) = pruning_report(Paper("p", "", pruned_runs=True), runs).tables
    counts = "encoder_self 3 of 8, decoder_self 12 of 12, cross 5 of 12"
    assert table.rows == [
        (str(pruned), [counts, "28.50 BLEU", "−1.50 ↑"]),
        (str(trained), [counts, "31.25 BLEU", "+1.25 ↑"]),
        (str(retrained), [counts, "30.00 BLEU", "−1.25 ↑"]),
        (str(tmp_path / "e"), [counts, "–", "–"]),
    ]


def test_values_are_averaged_over_runs_that_differ_in_the_seed_only(tmp_path: Path) -> None:
    runs = [
        make_run(tmp_path / name, decisive={"model.dropout": dropout})
        for name, dropout in (("a", 0.1), ("b", 0.1), ("c", 0.3))
    ]
    for run, removable in zip(runs, (0.2, 0.4, 0.6), strict=True):
        write_curve(run.folder, "curve", list(SITES), {0.0: 30.0, removable: 29.9, 0.8: 1.0})
    statements = [
        fact("removable", tolerance=0.5, unit="%", paper=20.0, mark="r+"),
        PruningFact("t", "none of ours", text="about 8", mark="OK"),
        PruningFact("t", "nothing"),
    ]
    report = pruning_report(Paper("p", "", pruning=statements), runs)
    (table,) = report.tables
    assert table.rows == [
        ("l", ["20 % (r+)", "30 ± 14 % (2)", "60 % (1)"]),
        ("none of ours", ["about 8", "–", "–"]),
        ("nothing", ["–", "–", "–"]),
    ]
    ours = [fact for fact in report.facts if fact["origin"] == "ours"]
    assert [fact["value"] for fact in ours] == pytest.approx([20, 40, 60])


def test_commands_for_missing_tables_of_unpruned_runs(tmp_path: Path) -> None:
    unpruned, pruned, unfinished = (
        make_run(tmp_path / name, heads=heads)
        for name, heads in (("a", None), ("b", {"cross": [[], [1], [2]]}), ("c", None))
    )
    unfinished.results = None
    statements = [
        fact("removable", tolerance=0.5),
        fact("removable", tolerance=0.5, sites=["cross"]),
        fact("one_left", sites=["cross"], layer=1),
    ]
    report = pruning_report(Paper("p", "", pruning=statements), [unpruned, pruned, unfinished])
    command = f"headwise prune run={unpruned.folder} table=true"
    # the ablation of single heads is measured with the curve of all sites
    assert report.commands == [f"{command} ablation=true", f"{command} 'sites=[cross]'"]
