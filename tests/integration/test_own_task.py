"""The task of `docs/your-own-task.md`, in a separate folder, works like headwise's tasks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from command_line import CommandLine, assert_rejected, page_data, read_json, run_folders
from guide import DOCS, ROOT, blocks_of
from headwise import load
from headwise.analysis.tables import HEADS
from headwise.runs.folder import RunFolder
from headwise.runs.record import Record
from slow_marks import slow_but
from training_runs import Runs, assert_resumes_bitwise, assert_two_ranks_equal_one

LENGTH = 8
SITES = "decoder_self", "encoder_self"
SMALL = [
    "data=majority",
    f"task.length={LENGTH}",
    "task.n_train=40",
    "task.n_test=21",
    "model=tiny",
    "model.layers=2",
    "model.d_model=16",
    "model.d_ff=32",
    "trainer.max_tokens=64",
    "trainer.max_updates=12",
    "trainer.validate_every=6",
    "trainer.save_every=6",
    "trainer.log_every=3",
    "trainer.average=0",
    "trainer.head_sentences=2",
    "trainer.precision=fp32",
    "scheduler.warmup_updates=4",
    "tracker=none",
]


@pytest.fixture(scope="module", autouse=True)
def choices(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of yaml files; the page's module is importable."""
    folder = tmp_path_factory.mktemp("own")
    for block in blocks_of(DOCS / "your-own-task.md"):
        if block.title is not None:
            (folder / block.title).parent.mkdir(parents=True, exist_ok=True)
            (folder / block.title).write_text(block.text, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        patch.setenv("HEADWISE_PLUGINS", "majority")
        yield folder / "choices"


@pytest.fixture(scope="module", params=slow_but(SITES, "decoder_self"))
def site(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def overrides(choices: Path, site: str) -> list[str]:
    return ["--config-dir", str(choices), *SMALL, f"task.site={site}"]


@pytest.fixture(scope="module")
def run(runs: Runs, overrides: list[str], site: str) -> Path:
    """A run of one process."""
    outputs = runs.folder / site
    (result,) = runs.ranks([*overrides, f"paths.outputs={outputs}"], 1)
    assert result.code == 0, result
    return run_folders(outputs)[0]


def computed_accuracy(model: torch.nn.Module, split: str) -> float:
    seeds = [[*split.encode(), row] for row in range(21)]
    rows = [np.random.default_rng(seed).integers(2, size=LENGTH) for seed in seeds]
    bits = torch.from_numpy(np.stack(rows))
    ones = [bits[:, : end + 1].sum(1) for end in range(LENGTH)]
    majority = torch.stack([2 * n > end + 1 for end, n in enumerate(ones)], 1)
    with torch.no_grad():
        logits = model(bits, torch.full((21,), LENGTH))
    return (logits.argmax(-1) == majority).double().mean().item()


def test_accuracy_and_alphas_match_the_weights(run: Path, site: str) -> None:
    scores = read_json(run / "results.json")["scores"]
    model = load(run, device="cpu").model
    assert [attention_site.name for attention_site in model.sites] == [site]
    assert model.sites[0].causal == (site == "decoder_self")
    for split in ("valid", "test"):
        expected_accuracy = computed_accuracy(model, split)
        assert scores[split]["accuracy"]["score"] == pytest.approx(expected_accuracy)
        sums = RunFolder(run).read_sums(split, "loss")
        assert sums is not None
        assert sums.shape == (21, 4)
        assert sums[:, 2:].sum(0).tolist() == [21 * LENGTH, round(expected_accuracy * 21 * LENGTH)]
    alpha = read_json(run / "results.json")["alpha"]
    assert {name: [len(layer) for layer in alpha[name]] for name in alpha} == {site: [4, 4]}


def test_heads_are_analysed_and_pruned(headwise: CommandLine, run: Path, site: str) -> None:
    headwise.ok("analyze", f"run={run}")
    rows = HEADS.read(Record(run))
    head_positions = [(site, layer, head) for layer in (1, 2) for head in (1, 2, 3, 4)]
    assert [(row["site"], row["layer"], row["head"]) for row in rows] == head_positions
    assert all(row["importance"] > 0 for row in rows)
    assert read_json(run / "analysis" / "settings.json")["sentences"] == 21
    headwise.ok("prune", f"run={run}", "fraction=0.5", "table=true", "data.sentences=null")
    curve = read_json(run / "pruning" / "curve.json")["rows"]
    scores = read_json(run / "results.json")["scores"]
    assert curve[0]["accuracy"] == pytest.approx(scores["valid"]["accuracy"]["score"])
    assert curve[0]["loss"] == pytest.approx(scores["valid"]["loss"]["score"]) != curve[-1]["loss"]
    assert_rejected(headwise("analyze", f"run={run}", "data.split=tset"), 2, "a split of", "test")


def test_run_is_evaluated_and_shown(headwise: CommandLine, run: Path, site: str) -> None:
    headwise.ok("evaluate", f"run={run}", "data.test=[test,valid]")
    scores = read_json(run / "results.json")["scores"]
    assert read_json(run / "results-auto.json")["scores"] == scores
    refused = headwise("evaluate", f"run={run}", "decode.beam=3")
    assert_rejected(refused, 2, "decode.beam is not known")
    compared = headwise.ok("compare", f"run={run}", f"other={run}").out
    (row,) = (line for line in compared.splitlines() if line.startswith("| test accuracy"))
    assert row.endswith("|  |")  # an item has many positions: McNemar's test does not apply
    headwise.ok("page", f"run={run}", "n_sentences=2")
    (shown,), items = page_data(run)["runs"], page_data(run)["items"]["chosen"]
    assert [item["number"] for item in items] == [1, 11]
    bits = np.random.default_rng([*b"test", 10]).integers(2, size=LENGTH)
    assert items[1]["texts"]["bits"] == " ".join(map(str, bits))
    (axes,) = shown["readings"][1]["axes"].values()
    assert axes["queries"] == axes["keys"] == list(map(str, bits))
    assert [block["site"] for block in shown["readings"][1]["blocks"]] == [site, site]
    assert {score["metric"] for score in shown["scores"] if score["is_main"]} == {"accuracy"}


def test_stopped_run_resumes_bitwise_equal(
    headwise: CommandLine, run: Path, overrides: list[str], tmp_path: Path
) -> None:
    assert_resumes_bitwise(headwise, overrides, run, tmp_path)


@pytest.mark.slow
def test_two_ranks_equal_one_with_twice_the_tokens(runs: Runs, overrides: list[str]) -> None:
    assert_two_ranks_equal_one(runs, overrides, 64, runs.folder / overrides[-1])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("task.site=cross", "task.site must be one of decoder_self, encoder_self"),
        ("task.length=0", "task.length must be at least 1"),
    ],
)
def test_invalid_settings_are_rejected(
    headwise: CommandLine, choices: Path, tmp_path: Path, change: str, message: str
) -> None:
    arguments = ["--config-dir", str(choices), *SMALL, f"paths.outputs={tmp_path}", change]
    assert_rejected(headwise("train", *arguments), 2, message)


def test_headwise_does_not_contain_the_task() -> None:
    paths = [path for folder in ("src", "conf") for path in (ROOT / folder).rglob("*.*")]
    texts = [path.read_text(encoding="utf-8") for path in paths if path.suffix in (".py", ".yaml")]
    assert len(texts) > 100
    assert not [text for text in texts if "majority" in text.lower()]
