"""The benchmarks run; what they find is asserted nowhere."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from benchmarks import __main__ as everything
from benchmarks import deep, entmax, peers, training_step, updates, variants
from benchmarks.toolkits import Headwise
from torch import Tensor

from command_line import read_json
from headwise.config.schema import ModelConfig
from headwise.train.memory import glibc

pytestmark = pytest.mark.slow


class Absent(Headwise):
    name = "absent"

    def __init__(self, config: ModelConfig, n_words: int) -> None:
        import a_toolkit_that_nobody_has  # noqa: F401


class EndsEarly(Headwise):
    def _best_length(self, source: Tensor, beam: int, steps: int) -> int:
        return super()._best_length(source, beam, steps - 1)


def test_quick_run_prints_a_figure_of_each_part_and_keeps_none(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(entmax, "SHAPES", ((2, 2, 8, 8), (2, 2, 8, 64)))
    monkeypatch.setattr(everything, "RESULTS", tmp_path / "benchmarks")
    monkeypatch.setattr("sys.argv", ["benchmarks", "--quick"])
    everything.main()
    shown = capsys.readouterr().out
    for part in everything.PARTS:
        assert f"\n{part}, 1 thread(s)\n  " in shown
    assert not (tmp_path / "benchmarks").exists()


def test_a_whole_run_is_kept_by_threads_and_as_history(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, set_threads: Callable[[int], None]
) -> None:
    figures = [everything.Figure("a / b", 0.5, 1.0), everything.Figure("c / d", 0.5, 1.0, False)]
    assert [figure.is_met for figure in figures] == [True, False]
    monkeypatch.setattr(everything, "RESULTS", tmp_path / "results" / "benchmarks")
    monkeypatch.setattr(everything, "PARTS", {"one": lambda quick: figures})
    monkeypatch.setattr("sys.argv", ["benchmarks"])
    (tmp_path / "results").mkdir()
    everything.main()
    monkeypatch.setattr("sys.argv", ["benchmarks", "--threads", "1", "2"])
    everything.main()
    set_threads(1)
    folder = tmp_path / "results" / "benchmarks"
    history = (folder / "history.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["threads"] for line in history] == [1, 1, 2]
    for n_threads, line in ((1, history[1]), (2, history[2])):
        record = json.loads((folder / f"threads_{n_threads}.json").read_text(encoding="utf-8"))
        assert record == json.loads(line)
        assert [figure["name"] for figure in record["figures"]] == ["a / b", "c / d"]


def test_very_deep_models_are_trained_and_recomputed(capsys: pytest.CaptureFixture[str]) -> None:
    curves = deep.report_learning(n_layers=2, n_updates=10)
    assert list(curves) == list(deep.STARTS)
    assert len(re.findall(r"-norm( +[\d.]+){11}\n", capsys.readouterr().out)) == len(curves)
    for first, *means in curves.values():
        assert len(means) == 10
        assert first == means[0]
    assert set(deep.memory_alone(2, True, "softmax")) == {"peak", "held"}


def test_other_toolkits_are_timed_beside_ours_and_named_where_they_are_not_here(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(peers, "PEERS", (Absent,))
    rows = peers.measure(quick=True)
    assert [row["what"] for row in rows] == ["step", "search"]
    for row in rows:
        assert list(row["seconds"])[:2] == [
            "headwise, softmax, fp32", "headwise, alpha_entmax, fp32"
        ]  # fmt: skip
    assert capsys.readouterr().out.count("absent is left out: No module named") == 2


def test_a_search_that_ends_early_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "PEERS", (EndsEarly,))
    with pytest.raises(ValueError, match="returned 7 words instead of 8"):
        peers.compare("search", "tiny", 2, 8, 1)


def test_a_step_is_timed_beside_that_of_softmax(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for module, few in ((variants, ["linear", "softmax"]), (training_step, ["softmax"])):
        monkeypatch.setattr(module, "group_choices", lambda group, few=few: few)
    monkeypatch.setattr(updates, "SENTENCES", 8)
    kept = tmp_path / "step.json"
    monkeypatch.setattr("sys.argv", ["variants", "--quick", "--json", str(kept)])
    variants.main()
    found = read_json(kept)["variants"]
    assert list(found) == ["linear", "softmax"]
    assert len(re.findall(r"tokens/s +[0-9.]+ +memory [0-9.-]+", capsys.readouterr().out)) == 2
    if hasattr(glibc(), "mallinfo2"):
        assert found["linear"]["bytes"] > found["softmax"]["bytes"] > 0
    measured = training_step.measure(keeps_memory=True, repeats=1)
    assert list(measured) == ["fp32 softmax", "bf16 softmax"]
