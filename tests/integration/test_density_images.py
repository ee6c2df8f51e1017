"""Density modelling of images and music: bits per dimension, windows, refusals."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from command_line import CommandLine, composer, read_json, run_folders
from headwise import load
from headwise.commands.train import train
from headwise.config.schema import typed
from headwise.data.music import mu_law
from headwise.data.tokenizer import BOS, N_SPECIALS
from headwise.errors import RunError
from headwise.tasks.task import task_of
from headwise.train.checkpoint import load_checkpoint
from published_images import random_images, write_wav

SHAPE = (4, 4, 3)
VALUES = math.prod(SHAPE)
SMALL = [
    "model=tiny", "model.layers=2", "model.d_model=16", "model.d_ff=32",
    "trainer.max_tokens=96", "trainer.max_updates=4", "trainer.validate_every=4",
    "trainer.save_every=4", "trainer.average=0", "trainer.head_sentences=2",
    "trainer.precision=fp32", "scheduler.warmup_updates=2", "tracker=none",
]  # fmt: skip
IMAGES = [
    "data=images", f"data.shape={list(SHAPE)}".replace(" ", ""), f"data.window={VALUES}",
    "positions=data_dims", "pattern=strided", "pattern.stride=12",
]  # fmt: skip


@pytest.fixture(scope="module")
def overrides(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("images")
    for i, (split, n) in enumerate((("train", 12), ("valid", 3), ("test", 2))):
        np.save(folder / f"{split}.npy", random_images(n, *SHAPE, seed=i) // 16)
    return [*SMALL, *IMAGES, f"data.dir={folder}", f"paths.cache={folder}/cache"]


@pytest.fixture(scope="module")
def run(overrides: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    run_overrides = [*overrides, f"paths.outputs={tmp_path_factory.mktemp('outputs')}"]
    with composer() as make:
        return train(typed(make(run_overrides)), run_overrides).folder


@torch.no_grad()
def bits(run: Path, overrides: list[str], documents: Any, window: int) -> float:
    """Bits per dimension of documents in windows, computed in float64."""
    with composer() as make:
        config = typed(make(overrides))
    model = task_of(config).model(config, {"tokens": 260}).double().eval()
    weights = f"{read_json(run / 'results.json')['weights']}.pt"
    model.load_state_dict(load_checkpoint(run / "checkpoints" / weights)["model"])
    inputs, targets, nats = [], [], 0.0
    for document in documents:
        ids = (document.flatten().astype(int) + N_SPECIALS).tolist()
        inputs, targets = [*inputs, BOS, *ids[:-1]], [*targets, *ids]
    for start in range(0, len(targets), window):
        at = slice(start, start + window)
        tokens = torch.tensor([inputs[at]])
        logits = model(tokens, torch.tensor([tokens.shape[1]]))[0]
        nats += cross_entropy(logits, torch.tensor(targets[at]), reduction="sum").item()
    return nats / math.log(2) / len(targets)


def test_bits_per_dimension_of_images_match_the_weights(run: Path, overrides: list[str]) -> None:
    scores = read_json(run / "results.json")["scores"]
    with composer() as make:
        folder = Path(make(overrides).data.dir)
    for split in ("valid", "test"):
        expected = bits(run, overrides, np.load(folder / f"{split}.npy"), VALUES)
        assert scores[split]["bits_per_dimension"]["score"] == pytest.approx(expected, rel=1e-6)
        assert "bits_per_byte" not in scores[split]


def test_heads_of_images_are_analysed_and_pages_refused(headwise: CommandLine, run: Path) -> None:
    headwise.ok("analyze", f"run={run}")
    refusal = headwise("report", f"run={run}", "page=true")
    message = "pages and sentences show text, but this run is on data=images"
    assert (refusal.code, refusal.err) == (1, f"headwise: {message}\n")
    loaded = load(run, device="cpu")
    with pytest.raises(RunError, match=message):
        next(loaded.task.readings(loaded, ["Haus"]))


def test_bits_of_music_start_every_piece_anew(headwise: CommandLine, tmp_path: Path) -> None:
    generator, pieces = np.random.default_rng(1), {}
    for split in ("train", "valid", "test"):
        pieces[split] = [generator.uniform(-1, 1, (n, 1)).round(2) for n in (50, 41, 32)]
        for i, samples in enumerate(pieces[split]):
            write_wav(tmp_path / split / f"{i}.wav", samples, 12_000)
    overrides = [
        *SMALL, "data=music", "data.window=20", f"data.dir={tmp_path}", "positions=attention_dims",
        "positions.width=5", f"paths.outputs={tmp_path}/out", f"paths.cache={tmp_path}/cache",
    ]  # fmt: skip
    headwise.ok("train", *overrides)
    (run,) = run_folders(tmp_path / "out")
    codes = [mu_law((np.rint(s * 32767) / 32768).astype(np.float32)) for s in pieces["test"]]
    scores = json.loads((run / "results.json").read_text(encoding="utf-8"))["scores"]
    expected = bits(run, overrides, codes, 20)
    assert scores["test"]["bits_per_dimension"]["score"] == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("data.window=50", "data.window must be a multiple"),
        ("data.window=24", "data.window must be a multiple of the 48 values of positions.shape"),
        ("decode.min_context=24", "decode.min_context must be a multiple of the 48 values"),
        ("tokenizer=char", "tokenizer.kind must be byte with data=images"),
        ("data.shape=[4,3,4]", "image 1 has the shape [4,4,3]"),
        ("data.dir=/nowhere", "/nowhere has no"),
    ],
)
def test_wrong_settings_are_refused(
    headwise: CommandLine, overrides: list[str], tmp_path: Path, change: str, message: str
) -> None:
    refusal = headwise("train", *overrides, f"paths.outputs={tmp_path}", change)
    assert refusal.code != 0
    assert message in refusal.err
    assert refusal.err.count("\n") == 1
