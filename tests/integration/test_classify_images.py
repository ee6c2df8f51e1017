"""Classifiers of images and of text: training, analysis of heads, and the page."""

from __future__ import annotations

import base64
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from command_line import CommandLine, composer, page_data, read_json, run_folders, train_with
from headwise import load
from headwise.analysis.tables import HEADS, KINDS, OTHERS
from headwise.attention.recorder import recorded_weights
from headwise.config.register import typed
from headwise.data.loader import BatchLoader
from headwise.errors import DataError
from headwise.runs.folder import RunFolder
from headwise.runs.record import Record
from headwise.tasks.inspection import items, readings
from headwise.tasks.task import task_of
from headwise.train.distributed import Ranks
from opened_page import OpenedPage, needs_browser, started_browser
from published_images import Images, write_pictures

SHAPE = (8, 12, 3)
SMALL = [
    "model=tiny", "model.layers=2", "model.d_model=16", "model.n_heads=2", "model.d_ff=32",
    "model.cls_tokens=3", "model.dropout=0", "model.attention_dropout=0",
    "model.activation_dropout=0", "trainer.max_updates=40", "trainer.validate_every=40",
    "trainer.save_every=40", "trainer.average=0", "trainer.head_sentences=4",
    "trainer.precision=fp32", "scheduler.warmup_updates=5", "tracker=none",
]  # fmt: skip
IMAGES = [
    "data=image_folder", f"data.shape={list(SHAPE)}".replace(" ", ""), "positions=data_dims",
    "trainer.max_tokens=96",
]  # fmt: skip
CLASSES = ["left", "middle", "right"]


def bars(n: int, column: int, seed: int) -> Images:
    """Images with a bright bar in one of three columns of patches."""
    images = np.random.default_rng(seed).integers(0, 100, (n, *SHAPE), np.uint8)
    images[:, :, 4 * column : 4 * column + 4] += 100
    return images


@pytest.fixture(scope="module")
def overrides(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("bars")
    for seed, (split, n) in enumerate((("train", 20), ("valid", 4), ("test", 3))):
        classes = {name: bars(n, i, 10 * seed + i) for i, name in enumerate(CLASSES)}
        write_pictures(folder / split, classes)
    return [*SMALL, *IMAGES, f"data.dir={folder}", f"paths.cache={folder}/cache"]


@pytest.fixture(scope="module")
def run(overrides: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_with([*overrides, f"paths.outputs={tmp_path_factory.mktemp('outputs')}"])


def test_a_classifier_of_images_learns_their_classes(run: Path) -> None:
    scores = read_json(run / "results.json")["scores"]
    assert scores["test"]["accuracy"]["score"] == 100
    assert "top5" not in scores["test"]  # of three classes
    assert read_json(run / "data.json")["labels"] == CLASSES


def test_scaling_of_a_trained_run_changes_nothing_at_its_reference(
    headwise: CommandLine, run: Path
) -> None:
    before = (run / "results.json").read_bytes()
    n_keys = 8 // 4 * 12 // 4 + 3  # patches, CLS tokens
    sums = [RunFolder(run).read_sums("test", "loss")]
    for reference in (n_keys, 3):
        scaling = "scaling=ssmax", f"scaling.reference={reference}", f"name=at{reference}"
        headwise.ok("evaluate", f"run={run}", "data.test=[test]", *scaling)
        recorded = read_json(run / f"at{reference}.json")["scaling"]
        expected = {"reference": reference, "learned": False, "heads": "all"}
        assert recorded == {"_target_": "SSMax", **expected}
        sums.append(RunFolder(run).read_sums(f"at{reference}/test", "loss"))
    np.testing.assert_array_equal(sums[0], sums[1])
    assert not np.allclose(sums[0][:, 0], sums[2][:, 0], rtol=1e-5)
    assert (run / "results.json").read_bytes() == before


def examples(overrides: list[str], *changes: str) -> Any:
    """Training examples of a config, and its prepared data."""
    with composer() as make:
        config = typed(make([*overrides, *changes]))
    task = task_of(config)
    data = task.prepare(task.open(Path(config.paths.cache)))
    ranks = Ranks(0, 1, torch.device("cpu"))
    return task.examples(data, ranks, Path(config.paths.cache)), data


def test_a_share_of_the_labels_is_the_same_of_every_class(overrides: list[str]) -> None:
    part, data = examples(overrides, "data.label_fraction=0.2")
    classes = data.split("train").classes[part.kept]
    assert np.bincount(classes).tolist() == [4, 4, 4]
    other, _ = examples(overrides, "data.label_fraction=0.2", "seed=2")
    assert part.kept.tolist() != other.kept.tolist()
    assert sum(map(len, part.plan(1))) == 12


def test_class_weights_are_those_of_the_rows_in_use(overrides: list[str], tmp_path: Path) -> None:
    for split in ("train", "valid", "test"):
        numbers = zip(CLASSES, (1, 3, 26), strict=True)
        write_pictures(tmp_path / split, {name: bars(n, 0, n) for name, n in numbers})
    changes = [f"data.dir={tmp_path}", "data.class_weights=balanced", "data.label_fraction=0.1"]
    with composer() as make:
        config = typed(make([*overrides, *changes]))
    task = task_of(config)
    data = task.prepare(task.open(Path(config.paths.cache)))
    weights = task.model(data.sizes, data).output.weights
    assert weights.tolist() == pytest.approx([5 / (3 * n) for n in (1, 1, 3)])


def test_training_images_are_shifted_anew_in_every_epoch(overrides: list[str]) -> None:
    """Images that were not shifted have no pixel of exactly 0 in their first row or column."""
    shifted, data = examples(overrides, "data.shift=1")
    batches = BatchLoader(shifted)
    one, _ = examples(overrides)
    rows = np.arange(20)
    first, second, again = (shifted.collate(e, rows).columns["tokens"].ids_BN for e in (1, 2, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, second)
    plain = one.collate(1, rows).columns["tokens"].ids_BN
    assert torch.equal(plain, one.collate(2, rows).columns["tokens"].ids_BN)
    assert plain.shape == (20, 6, 48)
    tested = data.split("train").batch(rows).columns["tokens"].ids_BN
    assert torch.equal(tested, plain)
    assert len(next(batches)) == 16


def test_heads_of_images_are_analysed_and_pruned(headwise: CommandLine, run: Path) -> None:
    headwise.ok("analyze", f"run={run}")
    rows = KINDS.read(Record(run))
    assert len(rows) == 4
    for row in rows:
        total = sum(row[name] for name in ("local", "row", "column", "global"))
        assert 0.1 < total < 1  # the rest is on CLS tokens
    divergences = [r for r in OTHERS.read(Record(run)) if r["statistic"] == "cls_divergence"]
    assert len(divergences) == 4
    assert all(0 < row["value"] < 1 for row in divergences)
    heads = HEADS.read(Record(run))
    assert all(row["importance"] is not None and row["rare_share"] is None for row in heads)
    findings = (run / "analysis" / "findings.md").read_text(encoding="utf-8")
    assert "CLS tokens differ" in findings
    assert "12 images of valid" in findings
    pruned = headwise.ok("prune", f"run={run}", "fraction=0.5", "table=true")
    assert "accuracy" in pruned.out


@pytest.mark.slow
def test_page_has_a_query_per_cls_token_over_an_image(headwise: CommandLine, run: Path) -> None:
    headwise.ok("page", f"run={run}", "n_sentences=3")
    data = page_data(run)
    labels = [item["texts"]["label"] for item in data["items"]["chosen"]]
    assert labels == CLASSES
    reading = data["runs"][0]["readings"][1]
    assert reading["texts"]["prediction"].startswith("middle (")
    axes = reading["axes"]["encoder_self"]
    assert axes["queries"][:4] == ["CLS token 1", "CLS token 2", "CLS token 3", "row 1, column 1"]
    assert axes["queries"][-1] == "row 5, column 9"
    assert axes["keys"] == axes["queries"][:3]
    view = axes["view"]
    assert (view["shape"], view["patch"], view["start"]) == (list(SHAPE), 4, 3)
    assert max(view["queries"][:3]) < 0
    assert view["queries"][3] == (2 * 12 + 2) * 3  # the middle of the first patch
    weights = np.frombuffer(zlib.decompress(base64.b64decode(reading["weights"])), "<f4")
    assert weights.reshape(2, 2, 9, 9).sum(-1) == pytest.approx(1, abs=0.01)


def test_weights_on_the_page_are_those_of_the_cls_tokens(run: Path) -> None:
    loaded = load(run, device="cpu")
    (item,) = items(loaded, 1).chosen
    (reading,) = readings(loaded, [item.input])
    split = loaded.data(["test"]).split("test")
    with torch.no_grad(), recorded_weights(loaded.model) as weights:
        loaded.model(**loaded.model.inputs(split.batch(np.array([item.number - 1]))))
    for observation in reading.observations:
        expected = weights["encoder_self"][observation.layer]
        torch.testing.assert_close(observation.weights_BHQK, expected)


@pytest.mark.slow
@needs_browser
def test_browser_draws_patches_and_cls_tokens(headwise: CommandLine, run: Path) -> None:
    headwise.ok("page", f"run={run}", "n_sentences=2")
    browsers = started_browser()
    opened = OpenedPage(next(browsers), run / "page.html", ".view canvas")
    page = opened.page
    assert page.locator("#query option").count() == 3 + 6
    line = page.locator("figure.map output")
    assert "Weights of CLS token 1: " in line.text_content()
    assert "on CLS token 3." in line.text_content()
    canvas = page.locator(".view canvas").first
    box = canvas.bounding_box()
    canvas.click(position={"x": 7.5 * box["width"] / 12, "y": 4.5 * box["height"] / 8})
    page.wait_for_function(
        "document.querySelector('figure.map output').textContent.includes('row 5, column 5')"
    )
    assert (opened.console_messages, opened.requests) == ([], [(run / "page.html").as_uri()])
    browsers.close()


def test_text_is_refused_for_images(headwise: CommandLine, run: Path, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("left", encoding="utf-8")
    refusal = headwise("page", f"run={run}", f"sentences={tmp_path}/text")
    assert (refusal.code, refusal.err.count("\n")) == (1, 1)
    assert "is text, but this run is on data=image_folder" in refusal.err
    loaded = load(run, device="cpu")
    with pytest.raises(DataError, match="item 1 has no values of data=image_folder to show"):
        next(readings(loaded, ["left"]))


def test_new_pictures_are_labelled(headwise: CommandLine, run: Path, tmp_path: Path) -> None:
    pictures = {"first": bars(3, 0, 90), "second/below": bars(2, 2, 91)}
    write_pictures(tmp_path, pictures)
    expected = [
        (label, str(path))
        for folder, label in (("first", "left"), ("second", "right"))
        for path in sorted((tmp_path / folder).rglob("*.png"))
    ]
    lines = headwise.ok("predict", f"run={run}", f"input={tmp_path}").out.splitlines()
    assert lines[0] == "prediction\tprobability\tpicture"
    table = [line.split("\t") for line in lines[1:]]
    assert [(label, path) for label, _, path in table] == expected
    one = headwise.ok("predict", f"run={run}", f"input={expected[-1][1]}").out.splitlines()
    assert one == [lines[0], lines[-1]]

    images = np.concatenate(list(pictures.values()))
    predictions = load(run, device="cpu").predict(list(images))
    assert [f"{p.label} {p.probability:.4f}" for p in predictions] == [
        f"{label} {probability}" for label, probability, _ in table
    ]


def test_pictures_that_cannot_be_labelled(headwise: CommandLine, run: Path, tmp_path: Path) -> None:
    write_pictures(tmp_path / "wide", {"": np.zeros((1, 8, 8, 3), np.uint8)})
    (tmp_path / "no_picture").write_text("left", encoding="utf-8")
    (tmp_path / "empty").mkdir()
    for argument, message in {
        "input=null": "set input= to a picture or a folder of pictures",
        f"input={tmp_path}/absent": f"input={tmp_path}/absent not found",
        f"input={tmp_path}/empty": "is empty; it must have pictures",
        f"input={tmp_path}/no_picture": "is not a picture that can be read",
        f"input={tmp_path}/wide": "has the shape [8, 8, 3] of uint8",
    }.items():
        refusal = headwise("predict", f"run={run}", argument)
        assert (refusal.code, refusal.err.count("\n")) == (1, 1)
        assert message in refusal.err
    with pytest.raises(DataError, match=r"picture 1 has the shape .* of float64"):
        load(run, device="cpu").predict([np.zeros(SHAPE)])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("data.patch=5", "data.patch must be a divisor of the rows and columns"),
        ("positions=grid", "positions.width must be 3, the patches in a row of an image, got 16"),
        ("data.labels=[left,right]", "unknown label 'middle'"),
        ("data.label_fraction=0", "data.label_fraction must be above 0"),
        ("data.shift=8", "data.shift must be from 0 to 7"),
        ("data.shape=[8,8,3]", "has the shape [8,12,3]"),
    ],
)
def test_wrong_settings_are_refused(
    headwise: CommandLine, overrides: list[str], tmp_path: Path, change: str, message: str
) -> None:
    refusal = headwise("train", *overrides, f"paths.outputs={tmp_path}", change)
    assert refusal.code != 0
    assert message in refusal.err
    assert refusal.err.count("\n") == 1


@pytest.mark.slow
def test_a_model_of_pixels_has_a_page(
    headwise: CommandLine, overrides: list[str], tmp_path: Path
) -> None:
    changes = "data.patch=1", "positions=grid", "positions.width=12", "model.cls_tokens=0"
    updates = "trainer.max_updates=2", "scheduler.warmup_updates=1"
    headwise.ok("train", *overrides, f"paths.outputs={tmp_path}", *updates, *changes)
    (run,) = run_folders(tmp_path)
    headwise.ok("page", f"run={run}", "n_sentences=1")
    axes = page_data(run)["runs"][0]["readings"][0]["axes"]["encoder_self"]
    assert len(axes["view"]["queries"]) == 96
