"""Density modelling of images and music: bits per dimension, windows, refusals."""

from __future__ import annotations

import base64
import json
import math
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from command_line import CommandLine, composer, page_data, read_json, run_folders, train_with
from headwise import load
from headwise.analysis.kinds import REGIONS
from headwise.analysis.tables import KINDS
from headwise.config.register import typed
from headwise.data.tokenizer import BOS, N_SPECIALS
from headwise.errors import DataError
from headwise.runs.record import Record
from headwise.tasks.inspection import items, readings
from headwise.tasks.reading import selected
from headwise.tasks.stream import reading as density_items
from headwise.tasks.stream.music import mu_law
from headwise.tasks.task import task_of
from headwise.train.checkpoint import load_checkpoint
from opened_page import OpenedPage, needs_browser, started_browser
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
    return train_with([*overrides, f"paths.outputs={tmp_path_factory.mktemp('outputs')}"])


@torch.no_grad()
def bits(run: Path, overrides: list[str], documents: Any, window: int) -> float:
    """Bits per dimension of documents in windows, computed in float64."""
    with composer() as make:
        config = typed(make(overrides))
    model = task_of(config).model({"tokens": 260}).double().eval()
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


def test_heads_of_images_have_kinds(headwise: CommandLine, run: Path) -> None:
    """The strided pattern allows the row and the column of the key at the query only."""
    headwise.ok("analyze", f"run={run}")
    rows = KINDS.read(Record(run))
    assert len(rows) == 2 * 4
    for row in rows:
        shares = [row[name] for name in REGIONS]
        assert sum(shares) == pytest.approx(1)
        assert 0 <= row["variation"] <= 1
        assert row["kinds"].split(";")[0] == max(REGIONS, key=lambda name, row=row: row[name])
    text = (run / "analysis" / "findings.md").read_text(encoding="utf-8")
    assert "3 windows of valid" in text
    assert "| column head |" in text
    assert "merging" not in text


def test_page_has_the_weights_over_an_image(headwise: CommandLine, run: Path) -> None:
    headwise.ok("page", f"run={run}", "n_sentences=1")
    data = page_data(run)
    (reading,) = data["runs"][0]["readings"]
    axes = reading["axes"]["decoder_self"]
    loaded = load(run, device="cpu")
    (item,) = items(loaded, 1).chosen
    assert item.values is not None
    assert base64.b64decode(axes["view"]["values"]) == item.values
    assert axes["view"]["queries"] == list(range(VALUES))
    assert axes["queries"][VALUES - 1] == "row 4, column 4, blue"
    weights = np.frombuffer(zlib.decompress(base64.b64decode(reading["weights"])), "<f4")
    assert [block["shape"] for block in reading["blocks"]] == [[VALUES, 1 + 16]] * 2
    of_query_1 = weights.reshape(2, 4, VALUES, 17)[:, :, 1]  # sees the start and one value
    assert np.isnan(of_query_1[..., 2:]).all()
    assert of_query_1[..., :2].sum(-1) == pytest.approx(1, abs=0.01)
    sums = np.nansum(weights.reshape(2, 4, VALUES, 17), -1)
    assert sums == pytest.approx(1, abs=0.01)


def test_text_is_refused_for_images(headwise: CommandLine, run: Path, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("Haus", encoding="utf-8")
    refusal = headwise("page", f"run={run}", f"sentences={tmp_path}/text")
    message = "sentences= is text, but this run is on data=images"
    assert (refusal.code, refusal.err) == (1, f"headwise: {message}\n")
    loaded = load(run, device="cpu")
    with pytest.raises(DataError, match="item 1 has no values of data=images to show"):
        next(readings(loaded, ["Haus"]))


@pytest.mark.slow
@needs_browser
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_browser_draws_the_weights_over_the_image(
    headwise: CommandLine, run: Path, theme: str
) -> None:
    headwise.ok("page", f"run={run}", "n_sentences=2")
    browsers = started_browser()
    opened = OpenedPage(next(browsers), run / "page.html", ".view canvas", color_scheme=theme)
    page = opened.page
    assert page.locator("#query option").count() == VALUES
    page.select_option("#query", label="row 3, column 2, green")
    line = page.locator("figure.map output")
    page.wait_for_function(
        "document.querySelector('figure.map output').textContent.includes('column 2, green')"
    )
    canvas = page.locator(".view canvas").first

    def point(row: int, column: int) -> dict[str, float]:
        box = canvas.bounding_box()
        places = (column - 0.5) * box["width"] / 4, (row - 0.5) * box["height"] / 4
        return dict(zip("xy", places, strict=True))

    canvas.hover(position=point(1, 4))
    shown = line.text_content()
    assert shown.endswith(": row 1, column 4")
    canvas.hover(position=point(4, 1))
    assert line.text_content() == "masked: row 4, column 1"  # after the query
    canvas.click(position=point(2, 4))
    page.wait_for_function("document.getElementById('query').value == '22'")  # green again
    page.select_option("#item", "1")
    page.wait_for_selector(".view canvas")
    assert page.locator("#query").input_value() == "22"
    assert page.locator(".overview canvas").count() == 4
    assert (opened.console_messages, opened.requests) == ([], [(run / "page.html").as_uri()])
    browsers.close()


@pytest.mark.parametrize(
    ("shape", "n_queries", "n_values", "expected"),
    [
        ([4, 4, 1], 4, 16, [5, 7, 13, 15]),
        ([2, 2, 3], 100, 12, list(range(12))),
        ([4, 4, 1], 0, 16, [10]),
        ([4, 4, 1], 4, 8, [1, 3, 5, 7]),
        ([32, 32, 3], 8, 1024, [528, 529, 530]),  # the window ends before the middle of the image
        ([4, 4, 3], 8, 9, [3, 4, 5]),
        ([4, 4, 3], 8, 2, [0, 1]),
        ([100], 4, 100, [24, 49, 74, 99]),
    ],
)
def test_queries_to_show_are_spread(
    shape: list[int], n_queries: int, n_values: int, expected: list[int]
) -> None:
    assert selected(shape, n_queries, n_values) == expected


@pytest.mark.slow
def test_windows_within_a_row_have_a_page_and_no_kinds(
    headwise: CommandLine, overrides: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = "data.window=8", "positions=learned"
    headwise.ok("train", *overrides, *settings, f"paths.outputs={tmp_path}")
    (run,) = run_folders(tmp_path)
    headwise.ok("analyze", f"run={run}")
    assert KINDS.read(Record(run)) == []
    monkeypatch.setattr(density_items, "MAX_WEIGHTS", 8 * 16 * 8)  # of 8 heads: few queries
    headwise.ok("page", f"run={run}", "n_sentences=1")
    axes = page_data(run)["runs"][0]["readings"][0]["axes"]["decoder_self"]
    assert axes["view"]["queries"] == [3, 4, 5]


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
    headwise.ok("page", f"run={run}", "n_sentences=2")
    axes = page_data(run)["runs"][0]["readings"][1]["axes"]["decoder_self"]
    fourth = np.concatenate([code.flatten() for code in codes])[60:80]
    assert base64.b64decode(axes["view"]["values"]) == fourth.tobytes()
    assert (axes["view"]["shape"], axes["queries"][19]) == ([20], "sample 20")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("data.window=50", "data.window must be a multiple"),
        ("tokenizer=char", "tokenizer.kind must be byte with data=images"),
        ("data.shape=[4,3,4]", "image 1 has the shape [4,4,3]"),
        (
            "data.window=24",
            "a multiple of the 48 values of positions.shape",
        ),
        ("decode.min_context=24", "decode.min_context must be a multiple of the 48 values"),
    ],
)
def test_wrong_settings_are_refused(
    headwise: CommandLine, overrides: list[str], tmp_path: Path, change: str, message: str
) -> None:
    refusal = headwise("train", *overrides, f"paths.outputs={tmp_path}", change)
    assert refusal.code != 0
    assert message in refusal.err
    assert refusal.err.count("\n") == 1
