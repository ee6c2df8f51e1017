"""Heads of classifiers of text: analysis, and the page with label and prediction."""

from __future__ import annotations

import base64
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch

from command_line import CommandLine, composer, page_data, run_folders, train_with
from headwise import load
from headwise.analysis.tables import HEADS, OTHERS
from headwise.attention.recorder import recorded_weights
from headwise.config.register import typed
from headwise.errors import DataError
from headwise.runs.record import Record
from headwise.tasks.inspection import inspected, readings

SMALL = [
    "data=labelled", "model=tiny", "model.layers=2", "model.d_model=16", "model.n_heads=2",
    "model.d_ff=32", "model.cls_tokens=2", "trainer.max_tokens=400", "trainer.max_updates=6",
    "trainer.validate_every=6", "trainer.save_every=6", "trainer.average=0",
    "trainer.head_sentences=4", "trainer.precision=fp32", "scheduler.warmup_updates=2",
    "tracker=none", "tokenizer=byte",
]  # fmt: skip
TEXTS = [("a good day", "yes"), ("bad", "no"), ("what a bad, long day", "no"), ("good", "yes")]


def write_rows(folder: Path) -> None:
    for split in ("train", "valid", "test"):
        rows = [f"{text}\t{text[::-1]}\t{label}" for text, label in TEXTS]
        content = "\n".join(["text\tother\tlabel", *rows, ""])
        (folder / f"{split}.tsv").write_text(content, encoding="utf-8")


@pytest.fixture(scope="module")
def overrides(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("texts")
    write_rows(folder)
    return [*SMALL, f"data.dir={folder}", f"paths.cache={folder}/cache"]


@pytest.fixture(scope="module")
def run(overrides: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_with([*overrides, f"paths.outputs={tmp_path_factory.mktemp('outputs')}"])


def test_analysis_has_every_text_once(headwise: CommandLine, run: Path) -> None:
    """Batches are sorted by length; texts and their numbers are those of the file."""
    headwise.ok("analyze", f"run={run}")
    heads = HEADS.read(Record(run))
    assert len(heads) == 4
    assert all(row["importance"] is not None and row["rare_share"] is not None for row in heads)
    statistics = {row["statistic"] for row in OTHERS.read(Record(run))}
    assert {"cls_mass", "cls_divergence"} <= statistics
    loaded = load(run, device="cpu")
    with composer() as make:
        data = make(["run=x"], "analyze").data
    shown = inspected(loaded, typed(data), 30, 1000)
    (text,) = shown.texts.values()
    spelled = ["".join(map(text.spelling, row)) for row in text.ids]
    assert spelled == ["".join(f"<0x{ord(c):02X}>" for c in content) for content, _ in TEXTS]


def test_page_has_label_prediction_and_a_row_per_cls_token(
    headwise: CommandLine, run: Path
) -> None:
    headwise.ok("page", f"run={run}", "n_sentences=4")
    data = page_data(run)
    assert [tuple(item["texts"].values()) for item in data["items"]["chosen"]] == TEXTS
    reading = data["runs"][0]["readings"][1]
    label, _, probability = reading["texts"]["prediction"].partition(" (")
    assert label in ("yes", "no")
    assert 50 <= float(probability.removesuffix(" %)")) <= 100
    axes = reading["axes"]["encoder_self"]
    assert axes["queries"] == axes["keys"]
    assert axes["queries"][:5] == ["CLS token 1", "CLS token 2", "b", "a", "d"]
    weights = np.frombuffer(zlib.decompress(base64.b64decode(reading["weights"])), "<f4")
    loaded = load(run, device="cpu")
    batch = loaded.data(["test"]).split("test").batch(np.array([1]))
    with torch.no_grad(), recorded_weights(loaded.model) as recorded:
        loaded.model(**loaded.model.inputs(batch))
    expected = np.stack([recorded["encoder_self"][layer][0] for layer in (1, 2)])
    assert weights.reshape(expected.shape) == pytest.approx(expected, rel=0.005)


def test_page_shows_a_file_of_text(headwise: CommandLine, run: Path, tmp_path: Path) -> None:
    (tmp_path / "new").write_text("day\n\nbad day\n", encoding="utf-8")
    headwise.ok("page", f"run={run}", f"sentences={tmp_path}/new")
    chosen = page_data(run)["items"]["chosen"]
    assert chosen == [
        {"number": 1, "texts": {"text": "day"}},
        {"number": 3, "texts": {"text": "bad day"}},
    ]
    (tmp_path / "new").write_text("\n", encoding="utf-8")
    refusal = headwise("page", f"run={run}", f"sentences={tmp_path}/new")
    assert (refusal.code, refusal.err.count("\n")) == (1, 1)
    assert "new has no text to show" in refusal.err


@pytest.mark.slow
def test_pairs_have_a_page(headwise: CommandLine, overrides: list[str], tmp_path: Path) -> None:
    headwise.ok("train", *overrides, "data.pair=other", f"paths.outputs={tmp_path}")
    (run,) = run_folders(tmp_path)
    headwise.ok("page", f"run={run}", "n_sentences=2")
    data = page_data(run)
    assert data["items"]["chosen"][0]["texts"]["text"] == "a good day\tyad doog a"
    assert data["runs"][0]["readings"][0]["axes"]["encoder_self"]["keys"].count("</s>") == 2
    loaded = load(run, device="cpu")
    with pytest.raises(DataError, match="item 1 must be two texts with a tab between them"):
        next(readings(loaded, ["one text"]))
