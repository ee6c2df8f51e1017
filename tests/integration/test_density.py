"""Density modelling of plain text: bits per byte, heads, the page, resuming, ranks."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable
from itertools import accumulate, chain, pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy

from command_line import (
    CommandLine,
    composer,
    read_json,
    run_folders,
    train_with,
    write_text_corpus,
)
from headwise import load
from headwise.analysis.tables import HEADS
from headwise.config.commands import PruneDataConfig
from headwise.config.register import typed
from headwise.data.lossless import text_ids
from headwise.data.sources import origins
from headwise.data.tokenizer import BOS, N_SPECIALS, Tokenizer
from headwise.runs.folder import RunFolder
from headwise.runs.record import Record
from headwise.tasks.inspection import inspected, items
from headwise.tasks.task import task_of
from headwise.train.checkpoint import load_checkpoint
from plain_decoder import PlainDecoder
from slow_marks import slow_but
from training_runs import NO_DROPOUT, Runs, assert_resumes_bitwise, assert_same_metrics

WINDOW = 16
DOCUMENTS = ["data.documents=line", "data.document_mask=true"]
SMALL = [
    "data=text", f"data.window={WINDOW}", "model=tiny", "model.layers=2", "model.d_model=16",
    "model.d_ff=32", "trainer.max_tokens=64", "trainer.max_updates=12",
    "trainer.validate_every=6", "trainer.save_every=6", "trainer.log_every=3",
    "trainer.average=0", "trainer.head_sentences=2", "trainer.precision=fp32",
    "scheduler.warmup_updates=4", "tracker=none",
]  # fmt: skip


@pytest.fixture(scope="module")
def overrides(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = write_text_corpus(tmp_path_factory.mktemp("text"))
    return [*SMALL, f"data.dir={folder}", f"paths.cache={os.path.relpath(folder)}/cache"]


def text_of(overrides: list[str], split: str) -> bytes:
    (folder,) = (o.removeprefix("data.dir=") for o in overrides if o.startswith("data.dir="))
    return (Path(folder) / f"{split}.txt").read_bytes()


@torch.no_grad()
def computed_bits(
    model: torch.nn.Module, text: bytes, starts: Iterable[int] = (0,), window: int = WINDOW
) -> float:
    """Bits per byte, computed in float64 for each document (from `starts`) of each window."""
    ids = [N_SPECIALS + byte for byte in text]
    nats = 0.0
    for start, end in pairwise(sorted({*range(0, len(ids), window), *starts, len(ids)})):
        targets = torch.tensor(ids[start:end])
        previous = torch.tensor(
            [BOS if start in starts else ids[start - 1], *targets[:-1].tolist()]
        )
        logits = model(previous[None], torch.tensor([len(previous)]))[0]
        nats += cross_entropy(logits, targets, reduction="sum").item()
    return nats / math.log(2) / len(ids)


@pytest.fixture(scope="module")
def run(overrides: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_with([*overrides, f"paths.outputs={tmp_path_factory.mktemp('outputs')}"])


def test_bits_per_byte_and_alphas_match_the_weights(run: Path, overrides: list[str]) -> None:
    results = read_json(run / "results.json")
    with composer() as make:
        config = typed(make(overrides))
    model = task_of(config).model({"tokens": 260}).double().eval()
    weights = load_checkpoint(run / "checkpoints" / f"{results['weights']}.pt")["model"]
    model.load_state_dict(weights)
    for split in ("valid", "test"):
        text = (Path(config.data.dir) / f"{split}.txt").read_bytes()
        bits_per_byte = results["scores"][split]["bits_per_byte"]["score"]
        assert bits_per_byte == pytest.approx(computed_bits(model, text), rel=1e-6)
        assert bits_per_byte < 8
    assert [len(layer) for layer in results["alpha"]["decoder_self"]] == [4, 4]
    assert set(results["heads"]["density"]) == {"decoder_self"}
    sums = RunFolder(run).read_sums("test", "loss")
    assert sums[:, 3].sum() == len(text)


def test_a_loss_with_sparse_outputs_is_monitored_instead_of_bits(
    overrides: list[str], tmp_path: Path
) -> None:
    options = [*overrides, "loss=entmax15", "trainer.max_updates=2", f"paths.outputs={tmp_path}"]
    folder = train_with(options)
    assert read_json(folder / "results.json")["scores"]["test"].keys() == {"loss", "support"}


def test_a_limit_of_scored_windows_is_lifted_by_evaluate_and_not_for_heads(
    headwise: CommandLine, overrides: list[str], tmp_path: Path
) -> None:
    options = [*overrides, "decode.max_windows=2", f"paths.outputs={tmp_path}"]
    headwise.ok("train", *options, "trainer.max_updates=2", "trainer.validate_every=2")
    (folder,) = tmp_path.glob("*/*/")
    scores = read_json(folder / "results.json")["scores"]["test"]
    assert scores["bits_per_byte"]["n_scored"] == 2 * WINDOW
    n_bytes = RunFolder(folder).read_sums("test", "loss")[:, 3].sum()
    headwise.ok("evaluate", f"run={folder}", "decode.max_windows=0", "name=all")
    whole = read_json(folder / "all.json")["scores"]["test"]["bits_per_byte"]
    assert whole["n_bytes"] > n_bytes
    run = load(folder)
    data = PruneDataConfig(sentences=3)
    assert sum(map(len, inspected(run, data, 64, 64).batches)) == 3


def test_bits_of_masked_documents_match_those_of_each_document(
    headwise: CommandLine, overrides: list[str], tmp_path: Path
) -> None:
    options = [*overrides, *DOCUMENTS, "positions=rotary", f"paths.outputs={tmp_path}"]
    headwise.ok("train", *options, "trainer.max_updates=6")
    with composer() as make:
        config = typed(make(options))
    model = task_of(config).model({"tokens": 260}).double().eval()
    (folder,) = run_folders(tmp_path)
    results = read_json(folder / "results.json")
    weights = load_checkpoint(folder / "checkpoints" / f"{results['weights']}.pt")["model"]
    model.load_state_dict(weights)
    text = text_of(overrides, "test")
    starts = [0, *accumulate(map(len, text.splitlines(keepends=True)))][:-1]
    bits = results["scores"]["test"]["bits_per_byte"]
    assert bits["score"] == pytest.approx(computed_bits(model, text, starts), rel=1e-6)
    assert bits["n_bytes"] == bits["n_scored"] == len(text)


def test_bits_equal_those_of_plain_torch(
    headwise: CommandLine, overrides: list[str], tmp_path: Path
) -> None:
    changes = "tokenizer=bpe", "tokenizer.vocab_size=300", "decode.min_context=5"
    options = "attention=softmax", "trainer.max_updates=6", f"paths.outputs={tmp_path}"
    headwise.ok("train", *overrides, *changes, *options)
    (folder,) = run_folders(tmp_path)
    results = read_json(folder / "results.json")
    weights = load_checkpoint(folder / "checkpoints" / f"{results['weights']}.pt")["model"]
    plain = PlainDecoder(weights, n_heads=4)
    text = text_of(overrides, "test")
    ids = text_ids(text.decode(), Tokenizer.load(folder / "tokenizer.model")).tolist()

    def check(entry: dict[str, Any], min_context: int) -> None:
        assert entry["n_bytes"] == len(text) >= entry["n_scored"] == len(ids)
        bits = plain.bits(ids, BOS, WINDOW, min_context)
        assert entry["score"] == pytest.approx(bits / len(text), rel=1e-6)

    check(results["scores"]["test"]["bits_per_byte"], 5)
    headwise.ok(
        "evaluate", f"run={folder}", "decode.min_context=0", f"checkpoint={results['weights']}"
    )
    evaluated = read_json(folder / f"results-{results['weights']}.json")
    assert evaluated["decode"]["min_context"] == 0
    check(evaluated["scores"]["test"]["bits_per_byte"], 0)


def test_evaluate_scores_other_splits_and_checkpoints(
    headwise: CommandLine, run: Path, tmp_path: Path
) -> None:
    text = b"another text\n" * 9
    (tmp_path / "more.txt").write_bytes(text)
    options = f"run={run}", "checkpoint=update_6", "name=others", "decode.min_context=4"
    headwise.ok("evaluate", *options, "data.test=[more]", f"data.dir={tmp_path}")
    headwise.ok("evaluate", *options, "data.test=[valid]")
    content = read_json(run / "others.json")
    assert content["checkpoint"] == "update_00000006"
    bits = {split: scores["bits_per_byte"] for split, scores in content["scores"].items()}
    assert bits["more"]["n_bytes"] == len(text)
    first = read_json(run / "results.json")["scores"]["valid"]["bits_per_byte"]
    assert bits["valid"]["n_bytes"] == first["n_bytes"]
    assert bits["valid"]["signature"] == "min_context:4" != first["signature"]
    items = RunFolder(run).read_sums("others/more", "loss")
    assert items[:, 3].sum() == len(text)


def test_later_commands_use_the_cache_of_the_training_and_other_batches(
    headwise: CommandLine, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADWISE_CACHE", str(tmp_path / "ours"))
    monkeypatch.chdir(tmp_path)
    origins._log_once.cache_clear()
    out = headwise.ok("evaluate", f"run={run}", "name=small", f"max_tokens={WINDOW}").out
    assert "reading paths.cache of the run: " in out
    assert not (tmp_path / "ours").exists()
    scores = read_json(run / "small.json")["scores"]["test"]
    for metric, entry in read_json(run / "results.json")["scores"]["test"].items():
        assert scores[metric]["score"] == pytest.approx(entry["score"], rel=1e-6)


def test_longer_windows_are_scored_without_and_with_scaling(
    headwise: CommandLine, overrides: list[str], run: Path
) -> None:
    with composer() as make:
        model = task_of(typed(make(overrides))).model({"tokens": 260}).double().eval()
    results = read_json(run / "results.json")
    weights = load_checkpoint(run / "checkpoints" / f"{results['weights']}.pt")["model"]
    model.load_state_dict(weights)
    options = f"run={run}", "data.test=[test]", f"decode.window={4 * WINDOW}", "name=long"
    headwise.ok("evaluate", *options)
    bits = read_json(run / "long.json")["scores"]["test"]["bits_per_byte"]
    expected = computed_bits(model, text_of(overrides, "test"), window=4 * WINDOW)
    assert bits["score"] == pytest.approx(expected, rel=1e-6)
    assert bits["signature"] == f"min_context:0|window:{4 * WINDOW}"
    headwise.ok("evaluate", *options, "scaling=ssmax", "name=scaled")
    scaled = read_json(run / "scaled.json")["scores"]["test"]["bits_per_byte"]
    assert scaled["n_scored"] == bits["n_scored"]
    assert scaled["score"] != pytest.approx(bits["score"], rel=1e-6)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("decode.window=0", "decode.window must be at least 1"),
        ("decode.window=20 decode.min_context=20", "below decode.window=20"),
        ("decode.beam=3", "decode.beam is not known; allowed: min_context"),
        ("decode.min_context=[0,8]", "decode.min_context: "),
        ("data.source_file=a data.reference_file=a", "null with task=density"),
        ("data.test=[none]", "none.txt (plain, .gz or .zip) not found"),
    ],
)
def test_evaluations_that_a_density_model_lacks_are_rejected(
    headwise: CommandLine,
    run: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    change: str,
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a").write_text("text\n", encoding="utf-8")
    results = headwise("evaluate", f"run={run}", *change.split())
    assert results.code != 0
    assert message in results.err
    assert "Traceback" not in results.err


def test_heads_are_analysed_and_pruned(headwise: CommandLine, run: Path) -> None:
    results = read_json(run / "results.json")
    headwise.ok("analyze", f"run={run}")
    rows = HEADS.read(Record(run))
    layers = {(row["site"], row["layer"]) for row in rows}
    assert layers == {("decoder_self", 1), ("decoder_self", 2)}
    alphas = list(chain(*results["alpha"]["decoder_self"]))
    assert [row["alpha"] for row in rows] == pytest.approx(alphas)
    assert all(row["importance"] > 0 for row in rows)
    headwise.ok("prune", f"run={run}", "fraction=0.5", "table=true", "data.sentences=null")
    curve = read_json(run / "pruning" / "curve.json")["rows"]
    validation_score = results["scores"]["valid"]["bits_per_byte"]["score"]
    assert (
        curve[0]["bits_per_byte"] == pytest.approx(validation_score) != curve[-1]["bits_per_byte"]
    )
    (smaller,) = run.parent.glob("*-pruned-*")
    assert load(smaller, device="cpu").model.sites[0].name == "decoder_self"


@pytest.mark.slow
def test_page_shows_windows_of_a_text(headwise: CommandLine, run: Path, tmp_path: Path) -> None:
    path = tmp_path / "own.txt"
    path.write_text("Häuschen " * 4, encoding="utf-8")
    headwise.ok("page", f"run={run}", f"sentences={path}", "n_sentences=2")
    headwise.ok("figures", f"run={run}", "sentence=Haus")
    assert (run / "figures" / "attention_decoder_self.svg").is_file()
    page = (run / "page.html").read_text(encoding="utf-8")
    data = json.loads(page.partition('id="data">')[2].partition("</script>")[0])
    texts = [item["texts"]["text"] for item in data["items"]["chosen"]]
    assert texts == ["Häuschen Häusc", "hen Häuschen H"]  # without half of the bytes of ä
    for reading in data["runs"][0]["readings"]:
        names = reading["axes"]["decoder_self"]
        shape = [len(names["queries"]), len(names["keys"])]
        blocks = [(block["site"], block["layer"], block["shape"]) for block in reading["blocks"]]
        assert blocks == [("decoder_self", layer, shape) for layer in (1, 2)]
    assert names["keys"] == ["<s>", *"hen\u2581H", "<0xC3>", "<0xA4>", *"uschen\u2581"]
    loaded = load(run, device="cpu")
    numbers = [item.number for item in items(loaded, 2).chosen]
    assert numbers == [1, 4]


def test_stopped_run_resumes_bitwise_equal(
    headwise: CommandLine, overrides: list[str], tmp_path: Path
) -> None:
    overrides = [*overrides, *DOCUMENTS, "attention=softmax"]
    headwise.ok("train", *overrides, f"paths.outputs={tmp_path / 'whole'}")
    (run,) = run_folders(tmp_path / "whole")
    assert_resumes_bitwise(headwise, overrides, run, tmp_path / "halves")


@pytest.mark.slow
@pytest.mark.parametrize("documents", [[], DOCUMENTS], ids=["text", "documents"])
def test_two_ranks_equal_one_with_twice_the_tokens(
    headwise: CommandLine, runs: Runs, overrides: list[str], documents: list[str]
) -> None:
    folders = [runs.folder / name for name in ("one", "pair")]
    without_dropout = [
        *overrides,
        *documents,
        *(f"{key}={value}" for key, value in NO_DROPOUT.items()),
    ]
    headwise.ok("train", *without_dropout, f"paths.outputs={folders[0]}")
    result = runs.ranks([*without_dropout, f"paths.outputs={folders[1]}", "trainer.max_tokens=32"])
    assert [rank.code for rank in result] == [0, 0], result
    assert_same_metrics(*(run_folders(folder)[0] for folder in folders))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("model.decoder_layers=3", "model.layers"),
        ("decode=greedy", "decode must be windows with task=density, got 'greedy'"),
        ("data.document_mask=true", "needs data.documents=line|blank_line|heading"),
        (" ".join([*DOCUMENTS, "model.cls_tokens=2"]), "model.cls_tokens must be 0"),
        *slow_but(
            [
                ("trainer.monitor=bleu", "bits_per_byte"),
                ("positions=learned positions.max_positions=8", "data.window must be at most 8"),
                (
                    "decode.min_context=16",
                    "must be at least 0 and below data.window=16",
                ),
                (
                    "data.documents=page",
                    "must be one of blank_line, heading, line; got",
                ),
                (
                    "data.documents=heading data.document_mask=true",
                    "split is one document",
                ),
            ]
        ),
    ],
)
def test_settings_of_other_tasks_are_rejected(
    headwise: CommandLine, overrides: list[str], tmp_path: Path, change: str, message: str
) -> None:
    results = headwise("train", *overrides, f"paths.outputs={tmp_path}", *change.split())
    assert results.code != 0
    assert message in results.err
    assert "Traceback" not in results.err
