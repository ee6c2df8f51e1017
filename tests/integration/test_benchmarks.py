"""The benchmarks run; their figures are not checked."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from benchmarks import __main__ as everything
from benchmarks import deep, entmax, own_models, peers, training_step, updates, variants
from benchmarks.toolkits import Headwise, Searcher
from torch import Tensor

from command_line import read_json
from headwise.config.schema import ModelConfig
from headwise.studies.study import Row, Study

pytestmark = pytest.mark.slow


class Absent(Headwise):
    name = "absent"

    def __init__(self, config: ModelConfig, vocab_size: int) -> None:
        import a_toolkit_that_nobody_has  # noqa: F401


class OnlySearches(Searcher):
    name = "only searches"

    def __init__(self, config: ModelConfig, vocab_size: int) -> None: ...

    def search(self, source: Tensor, beam: int, steps: int) -> int:
        return steps


class EndsEarly(Headwise):
    def _best_length(self, source: Tensor, beam: int, steps: int) -> int:
        return super()._best_length(source, beam, steps - 1)


def test_quick_run_prints_every_part_and_saves_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(entmax, "SHAPES", ((2, 2, 8, 8), (2, 2, 8, 64)))
    for size in ("LAYERS", "ROWS", "TOKENS"):
        monkeypatch.setattr(own_models, size, 2)
    monkeypatch.setattr(everything, "RESULTS", tmp_path / "benchmarks")
    monkeypatch.setattr("sys.argv", ["benchmarks", "--quick"])
    everything.main()
    output = capsys.readouterr().out
    for part in everything.PARTS:
        assert f"\n{part}, 1 thread(s)\n  " in output
    assert not (tmp_path / "benchmarks").exists()


def test_full_run_saves_figures_by_threads_and_history(
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
        results = json.loads((folder / f"threads_{n_threads}.json").read_text(encoding="utf-8"))
        assert results == json.loads(line)
        assert [figure["name"] for figure in results["figures"]] == ["a / b", "c / d"]


def test_very_deep_models_train_and_recompute(capsys: pytest.CaptureFixture[str]) -> None:
    curves = deep.report_learning(n_layers=2, n_updates=10)
    assert list(curves) == list(deep.STARTS)
    assert len(re.findall(r"-norm( +[\d.]+){11}\n", capsys.readouterr().out)) == len(curves)
    for first, *means in curves.values():
        assert len(means) == 10
        assert first == means[0]
    assert set(deep.memory_alone(2, True, "softmax")) == {"peak", "held"}


def test_missing_toolkits_are_named_and_others_timed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(peers, "PEERS", (Absent, OnlySearches))
    rows = peers.measure(quick=True)
    assert [row["what"] for row in rows] == ["step", "search", "sentence"]
    for row in rows:
        assert list(row["seconds"])[:2] == [
            "headwise, softmax, fp32", "headwise, alpha_entmax, fp32"
        ]  # fmt: skip
        assert ("only searches" in row["seconds"]) == (row["what"] != "step")
    assert capsys.readouterr().out.count("absent is left out: No module named") == 3


def test_search_with_too_few_tokens_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "PEERS", (EndsEarly,))
    with pytest.raises(ValueError, match="returned 7 words instead of 8"):
        peers.compare("search", "tiny", 2, 8, 1)


def test_training_step_is_timed_relative_to_softmax(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    rows = {name: Row(overrides=[f"attention={name}"]) for name in ("linear", "softmax")}
    monkeypatch.setattr(variants, "read_study", lambda node: Study(rows=rows))
    monkeypatch.setattr(training_step, "group_choices", lambda group: ["softmax"])
    monkeypatch.setattr(updates, "SENTENCES", 8)
    path = tmp_path / "step.json"
    monkeypatch.setattr("sys.argv", ["variants", "--quick", "--json", str(path)])
    variants.main()
    measured_variants = read_json(path)["variants"]
    assert list(measured_variants) == ["linear", "softmax"]
    assert len(re.findall(r"tokens/s +[0-9.]+ +memory [0-9.-]+", capsys.readouterr().out)) == 2
    assert measured_variants["linear"]["bytes"] > measured_variants["softmax"]["bytes"] > 0
    steps = training_step.measure(keeps_memory=True, repeats=1)
    assert list(steps) == ["fp32 softmax", "bf16 softmax"]
