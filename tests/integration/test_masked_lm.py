"""Masked language models: bits and accuracy, heads, the page, resuming, ranks, refusals."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from command_line import (
    CommandLine,
    assert_rejected,
    read_json,
    run_folders,
    train_with,
    write_text_corpus,
)
from headwise import load
from headwise.config.register import typed
from headwise.data.lossless import text_ids
from headwise.data.tokenizer import MASK, N_SPECIALS, Tokenizer
from headwise.runs.folder import RunFolder
from headwise.tasks.check import checked_task
from headwise.tasks.inspection import items, readings
from headwise.train.checkpoint import load_checkpoint
from slow_marks import slow_but
from training_runs import Runs, assert_two_ranks_equal_one

WINDOW = 16
DOCUMENTS = ["data.documents=line", "data.document_mask=true", "positions=rotary"]
CASES = pytest.mark.parametrize("changes", [[], DOCUMENTS], ids=["text", "documents"])
SMALL = [
    "task=masked_lm", "data=text", f"data.window={WINDOW}", "tokenizer=bpe",
    "tokenizer.vocab_size=300", "model=tiny", "model.layers=2", "model.d_model=16", "model.d_ff=32",
    "trainer.max_tokens=64", "trainer.max_updates=12", "trainer.validate_every=6",
    "trainer.save_every=6", "trainer.log_every=3", "trainer.average=0", "trainer.head_sentences=2",
    "trainer.precision=fp32", "scheduler.warmup_updates=4", "tracker=none",
]  # fmt: skip


@pytest.fixture(scope="module")
def overrides(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = write_text_corpus(tmp_path_factory.mktemp("text"))
    return [*SMALL, f"data.dir={folder}", f"paths.cache={folder}/cache", "data.language=de"]


@pytest.fixture(scope="module")
def run(overrides: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_with([*overrides, f"paths.outputs={tmp_path_factory.mktemp('outputs')}"])


@torch.no_grad()
def computed(model: torch.nn.Module, ids: list[int]) -> tuple[float, float]:
    """Bits and accuracy, in float64, of masks drawn here as in an evaluation."""
    nats, n_correct, n_chosen = 0.0, 0, 0
    n_random = model.embedding.token.num_embeddings - N_SPECIALS  # type: ignore[operator, union-attr]
    for start in range(0, len(ids), WINDOW):
        targets = torch.tensor(ids[start : start + WINDOW])
        draws = np.random.default_rng([0, 0, start]).random((3, WINDOW))[:, : len(targets)]
        chosen = np.argsort(draws[0])[: max(1, round(0.15 * len(targets)))]
        inputs = targets.clone()
        for place in chosen:
            if draws[1, place] < 0.8:
                inputs[place] = MASK
            elif draws[1, place] < 0.9:
                inputs[place] = N_SPECIALS + int(draws[2, place] * n_random)
        logits = model(inputs[None], torch.tensor([len(inputs)]))[0][chosen]
        nats += cross_entropy(logits, targets[chosen], reduction="sum").item()
        n_correct += int((logits.argmax(1) == targets[chosen]).sum())
        n_chosen += len(chosen)
    return nats / math.log(2) / n_chosen, 100 * n_correct / n_chosen


def test_bits_and_accuracy_match_the_weights(run: Path, overrides: list[str]) -> None:
    results = read_json(run / "results.json")
    model = load(run, device="cpu").model.double()
    folder = dict(override.split("=") for override in overrides)["data.dir"]
    tokenizer = Tokenizer.load(run / "tokenizer.model")
    for split in ("valid", "test"):
        text = Path(folder, f"{split}.txt").read_text(encoding="utf-8")
        scores = results["scores"][split]
        values = [scores[name]["score"] for name in ("masked_bits", "masked_accuracy")]
        assert values == pytest.approx(computed(model, text_ids(text, tokenizer).tolist()))
        sums = RunFolder(run).read_sums(split, "loss")
        assert sums is not None
        assert scores["masked_bits"]["n_scored"] == sums[:, 2].sum()
    assert [len(layer) for layer in results["alpha"]["encoder_self"]] == [4, 4]
    assert set(results["heads"]["density"]) == {"encoder_self"}
    assert results["best_update"] in (6, 12)


def test_evaluate_scores_other_splits_and_some_windows(headwise: CommandLine, run: Path) -> None:
    headwise.ok("evaluate", f"run={run}", "data.test=[valid]", "name=again")
    before = read_json(run / "results.json")["scores"]["valid"]
    assert read_json(run / "again.json")["scores"]["valid"] == before
    few = ("decode.max_windows=2", "name=few")
    headwise.ok("evaluate", f"run={run}", "data.test=[valid]", *few)
    bits = read_json(run / "few.json")["scores"]["valid"]["masked_bits"]
    assert bits["n_scored"] == 4
    assert bits["signature"] != before["masked_bits"]["signature"]
    refused = headwise("evaluate", f"run={run}", "decode.min_context=4")
    assert_rejected(refused, 2, "decode.min_context must be 0 with task=masked_lm, got 4")


def test_sparse_loss_is_monitored_by_accuracy(overrides: list[str], tmp_path: Path) -> None:
    options = [*overrides, "loss=entmax15", "trainer.max_updates=2", f"paths.outputs={tmp_path}"]
    folder = train_with(options)
    scores = read_json(folder / "results.json")["scores"]["test"]
    assert scores.keys() == {"masked_accuracy", "loss", "support"}


def test_page_names_masked_tokens_and_shows_predictions(
    headwise: CommandLine, run: Path, tmp_path: Path
) -> None:
    path = tmp_path / "own.txt"
    path.write_text("der Hund sieht das Häuschen\nder Hund\n", encoding="utf-8")
    headwise.ok("page", f"run={run}", f"sentences={path}", "n_sentences=2")
    page = (run / "page.html").read_text(encoding="utf-8")
    data = json.loads(page.partition('id="data">')[2].partition("</script>")[0])
    assert data["items"]["unit"] == "windows"
    for item, reading in zip(data["items"]["chosen"], data["runs"][0]["readings"], strict=True):
        names = reading["axes"]["encoder_self"]["keys"]
        masked = [name for name in names if name.startswith("<mask:")]
        assert len(masked) == max(1, round(0.15 * len(names)))
        spelt = "".join(n[len("<mask:") : -1] if n in masked else n for n in names)
        assert "derHund" in spelt.replace("\u2581", "")
        assert "der Hund" in item["texts"]["text"]
        prediction = reading["texts"]["prediction"]
        assert prediction
        assert "mask" not in prediction
    loaded = load(run, device="cpu")
    texts = [item.text for item in items(loaded, 2).chosen]
    first, second = (list(readings(loaded, texts)) for _ in range(2))
    assert [reading.axes for reading in first] == [reading.axes for reading in second]


def test_killed_run_resumes_bitwise_equal(runs: Runs, overrides: list[str], tmp_path: Path) -> None:
    weights: list[dict[str, Any]] = []
    for name, signal_at in (("whole", None), ("killed", ("record", 5, 9))):
        command = [*overrides, *DOCUMENTS, f"paths.outputs={tmp_path / name}"]
        if signal_at is not None:
            (first,) = runs.ranks(command, 1, signal_at)
            assert first.code == -9
        (last,) = runs.ranks(command, 1)
        assert last.code == 0, last
        (folder,) = run_folders(tmp_path / name)
        weights.append(load_checkpoint(folder / "checkpoints" / "last.pt")["model"])
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


@pytest.mark.slow
@CASES
def test_two_ranks_equal_one_with_twice_the_tokens(
    runs: Runs, overrides: list[str], tmp_path: Path, changes: list[str]
) -> None:
    assert_two_ranks_equal_one(runs, [*overrides, *changes], 64, tmp_path)


def test_explicit_task_wins_over_that_of_the_data(make: Any) -> None:
    config = typed(make(["task=masked_lm", "data=builtin_text", "tokenizer=bpe"]))
    checked_task(config)
    assert config.task["_target_"].endswith("MaskedLM")
    assert (config.tokenizer.kind, config.data.window) == ("bpe", 128)
    others = ("text8", "enwik8", "wikitext2", "wikitext103", "tinyshakespeare")
    for data in ("text", *others):
        assert "masked_lm" in typed(make([f"data={data}"])).data.tasks


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("decode=greedy", "decode must be windows with task=masked_lm, got 'greedy'"),
        (
            "attention=linformer data.documents=line data.document_mask=true data.dir=/nowhere",
            "attention=linformer cannot be combined with data.document_mask=true",
        ),
        *slow_but(
            [
                ("decode.min_context=4", "decode.min_context must be 0 with task=masked_lm, got 4"),
                (
                    "task.mlm_probability=2",
                    "must be above 0, at most 1, got 2",
                ),
                ("trainer.monitor=bits_per_byte", "masked_bits, nll, perplexity"),
                ("data=cifar10", "with data=cifar10, got 'masked_lm'"),
            ]
        ),
    ],
)
def test_impossible_settings_are_refused_before_data_are_read(
    headwise: CommandLine, overrides: list[str], tmp_path: Path, change: str, message: str
) -> None:
    kept = [o for o in overrides if "data=" not in change or not o.startswith("data")]
    refused = headwise("train", *kept, f"paths.outputs={tmp_path}", *change.split())
    assert_rejected(refused, 2, message)
    assert not run_folders(tmp_path)


def test_dry_run_and_sample_name_the_task(
    headwise: CommandLine, run: Path, overrides: list[str]
) -> None:
    printed = headwise.ok("train", *overrides, "dry_run=true").out
    assert "tokens per rank (rows of 16)" in printed
    refused = headwise("sample", f"run={run}")
    assert_rejected(
        refused, refused.code, "is a run of task=masked_lm: headwise sample does not apply"
    )
