"""The benchmarks run; their figures are not checked."""

import math
import re

import pytest
import torch
from benchmarks import __main__ as everything
from benchmarks import entmax, own_models, peers, updates
from benchmarks.matmul_share import TOKENS, VOCABULARY, bare_products, make_updates, products
from benchmarks.toolkits import Headwise, Searcher
from torch.utils.flop_counter import FlopCounterMode

from command_line import read_json
from headwise.ops.flops import register_flops

pytestmark = pytest.mark.slow


class Absent(Headwise):
    name = "absent"

    def __init__(self, config, vocab_size):
        import a_toolkit_that_nobody_has  # noqa: F401


class OnlySearches(Searcher):
    name = "only searches"

    def __init__(self, config, vocab_size): ...

    def search(self, source, beam, steps):
        return steps


class EndsEarly(Headwise):
    def _best_length(self, source, beam, steps):
        return super()._best_length(source, beam, steps - 1)


def test_quick_run_prints_every_part_and_saves_nothing(monkeypatch, capsys, tmp_path):
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


def test_full_run_saves_figures_by_threads(monkeypatch, tmp_path, set_threads):
    figures = [everything.Figure("a / b", 0.5, 1.0), everything.Figure("c / d", 0.5, 1.0, False)]
    assert [figure.is_met for figure in figures] == [True, False]
    monkeypatch.setattr(everything, "RESULTS", tmp_path / "results" / "benchmarks")
    monkeypatch.setattr(everything, "PARTS", {"one": lambda quick: figures})
    monkeypatch.setattr("sys.argv", ["benchmarks", "--threads", "1", "2"])
    everything.main()
    set_threads(1)
    for n_threads in (1, 2):
        results = read_json(tmp_path / "results" / "benchmarks" / f"threads_{n_threads}.json")
        assert results["threads"] == n_threads
        assert [figure["name"] for figure in results["figures"]] == ["a / b", "c / d"]


def test_updates_of_recipes_are_timed_in_turn_and_need_memory(monkeypatch, capsys, tmp_path):
    path = tmp_path / "updates.json"
    small = " model.d_model=32 model.d_ff=64 trainer.max_tokens=200 trainer.precision=fp32"
    recipes = [f"attention={name}{small}" for name in ("softmax", "linear")]
    monkeypatch.setattr("sys.argv", ["", "--quick", "--json", str(path), "--recipes", *recipes])
    updates.main()
    rows = read_json(path)["updates"]["recipes"]
    assert list(rows) == recipes
    assert len(re.findall(r" ms +[0-9.]+ x +held \d+ MiB", capsys.readouterr().out)) == 2
    assert rows[recipes[1]]["held"] > rows[recipes[0]]["held"] > 0


def test_updates_of_a_study_begin_with_its_baseline():
    tables = updates.recipes_of("child2019_small", ["text", "music"])
    assert list(tables) == ["text", "music"]
    names = list(tables["text"])
    assert (names[0], len(names)) == ("dense_softmax", 6)
    recipe = ("experiment=child2019_small/music", "attention=softmax", "pattern=fixed")
    assert tuple(tables["music"]["fixed_softmax"]) == recipe


def test_missing_toolkits_are_named_and_others_timed(monkeypatch, capsys):
    monkeypatch.setattr(peers, "PEERS", (Absent, OnlySearches))
    rows = peers.measure(quick=True)
    assert [row["what"] for row in rows] == ["step", "search", "sentence"]
    for row in rows:
        assert list(row["seconds"])[:2] == [
            "headwise, softmax, fp32", "headwise, alpha_entmax, fp32"
        ]  # fmt: skip
        assert ("only searches" in row["seconds"]) == (row["what"] != "step")
    assert capsys.readouterr().out.count("absent is left out: No module named") == 3


def test_search_with_too_few_tokens_is_rejected(monkeypatch):
    monkeypatch.setattr(peers, "PEERS", (EndsEarly,))
    with pytest.raises(ValueError, match="returned 7 words instead of 8"):
        peers.compare("search", "tiny", 2, 8, 1)


def test_products_equal_those_of_a_training_step():
    register_flops()
    # in bf16 all products of linear maps are counted; attention may be a single operator
    shapes = products(updates.model_config("tiny"), VOCABULARY["tiny"], TOKENS // 32, 32)
    for call in (
        make_updates("tiny", "softmax", 32, "bf16"),
        bare_products(shapes, torch.float32),
        bare_products(shapes, torch.float32, as_in_step=True),
    ):
        with FlopCounterMode(display=False) as counter:
            call()
        counts = counter.get_flop_counts()["Global"]
        n_flops = sum(
            count
            for kind, count in counts.items()
            if str(kind) in ("aten.mm", "aten.addmm", "mkldnn._linear_pointwise")
        )
        linear = (2 * math.prod(s) * count for s, count in shapes.items() if len(s) == 3)
        assert n_flops == sum(linear)
    assert sum(count for s, count in shapes.items() if len(s) == 4) == 6 * (2 + 2 * 2)
