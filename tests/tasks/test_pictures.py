"""Classes of pictures: what no other task has."""

from pathlib import Path

import numpy as np
import pytest
import torch

from command_line import composer, page_data, read_json
from headwise.analysis.tables import HEADS, KINDS, OTHERS
from headwise.attention.recorder import recorded_weights
from headwise.config.register import typed
from headwise.data.loader import BatchLoader
from headwise.errors import DataError
from headwise.runs.record import Record
from headwise.tasks.inspection import items, readings
from headwise.tasks.task import task_of
from headwise.train.distributed import Ranks
from opened_page import OpenedPage, needs_browser, started_browser
from published_images import write_pictures
from tasks.data import BARS, PICTURE, bars


@pytest.fixture(scope="module")
def pictures(trained):
    return trained("pictures")


def test_a_classifier_of_images_learns_their_classes(pictures):
    scores = pictures.results["scores"]["test"]
    assert scores["accuracy"]["score"] == 100
    assert "top5" not in scores  # of three classes
    assert read_json(pictures.run / "data.json")["labels"] == BARS


def test_scaling_of_a_trained_run_changes_nothing_at_its_reference(headwise, pictures):
    run = pictures.run
    before = (run / "results.json").read_bytes()
    n_keys = 8 // 4 * 12 // 4 + 3  # patches, CLS tokens
    sums = [Record(run).sums("test", "loss")]
    for reference in (n_keys, 3):
        scaling = "scaling=ssmax", f"scaling.reference={reference}", f"name=at{reference}"
        headwise.ok("evaluate", f"run={run}", "data.test=[test]", *scaling)
        recorded = read_json(run / f"at{reference}.json")["scaling"]
        expected = {"reference": reference, "learned": False, "heads": "all"}
        assert recorded == {"_target_": "SSMax", **expected}
        sums.append(Record(run).sums(f"at{reference}/test", "loss"))
    np.testing.assert_array_equal(sums[0], sums[1])
    assert not np.allclose(sums[0][:, 0], sums[2][:, 0], rtol=1e-5)
    assert (run / "results.json").read_bytes() == before


def prepared(case, *changes):
    """The task of a config, its prepared data and its training examples."""
    with composer() as make:
        config = typed(make([*case.overrides, *changes]))
    task = task_of(config)
    data = task.prepare(task.open(Path(config.paths.cache)))
    ranks = Ranks(0, 1, torch.device("cpu"))
    return task, data, task.examples(data, ranks, Path(config.paths.cache))


def test_a_share_of_the_labels_is_the_same_of_every_class(pictures):
    _, data, part = prepared(pictures, "data.label_fraction=0.2")
    classes = data.split("train").classes[part.kept]
    assert np.bincount(classes).tolist() == [4, 4, 4]
    _, _, other = prepared(pictures, "data.label_fraction=0.2", "seed=2")
    assert part.kept.tolist() != other.kept.tolist()
    assert sum(map(len, part.plan(1))) == 12


def test_class_weights_are_those_of_the_rows_in_use(pictures, tmp_path):
    for split in ("train", "valid", "test"):
        numbers = zip(BARS, (1, 3, 26), strict=True)
        write_pictures(tmp_path / split, {name: bars(n, 0, n) for name, n in numbers})
    balanced = "data.class_weights=balanced", "data.label_fraction=0.1"
    task, data, _ = prepared(pictures, f"data.dir={tmp_path}", *balanced)
    weights = task.model(data.sizes, data).output.weights
    assert weights.tolist() == pytest.approx([5 / (3 * n) for n in (1, 1, 3)])


def test_training_images_are_shifted_anew_in_every_epoch(pictures):
    """Images that were not shifted have no pixel of exactly 0 in their first row or column."""
    _, data, shifted = prepared(pictures, "data.shift=1")
    _, _, one = prepared(pictures)
    rows = np.arange(20)
    first, second, again = (shifted.collate(e, rows).columns["tokens"].ids_BN for e in (1, 2, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, second)
    plain = one.collate(1, rows).columns["tokens"].ids_BN
    assert torch.equal(plain, one.collate(2, rows).columns["tokens"].ids_BN)
    assert plain.shape == (20, 6, 48)
    tested = data.split("train").batch(rows).columns["tokens"].ids_BN
    assert torch.equal(tested, plain)
    assert len(next(BatchLoader(shifted))) == 16


def test_heads_have_kinds_and_cls_tokens(headwise, pictures):
    headwise.ok("analyze", f"run={pictures.run}", "importance=false")
    record = Record(pictures.run)
    rows = KINDS.read(record)
    assert len(rows) == 4
    for row in rows:
        total = sum(row[name] for name in ("local", "row", "column", "global"))
        assert 0.1 < total < 1  # the rest is on CLS tokens
    divergences = [r["value"] for r in OTHERS.read(record) if r["statistic"] == "cls_divergence"]
    assert len(divergences) == 4
    assert all(0 < value < 1 for value in divergences)
    assert all(row["rare_share"] is None for row in HEADS.read(record))
    findings = (pictures.run / "analysis" / "findings.md").read_text(encoding="utf-8")
    assert "CLS tokens differ" in findings
    assert "12 images of valid" in findings


@pytest.mark.slow
def test_page_has_a_query_per_cls_token_over_an_image(headwise, pictures):
    headwise.ok("page", f"run={pictures.run}", "n_sentences=3")
    data = page_data(pictures.run)
    assert [item["texts"]["label"] for item in data["items"]["chosen"]] == BARS
    reading = data["runs"][0]["readings"][1]
    assert reading["texts"]["prediction"].startswith("middle (")
    axes = reading["axes"]["encoder_self"]
    assert axes["queries"][:4] == ["CLS token 1", "CLS token 2", "CLS token 3", "row 1, column 1"]
    assert axes["queries"][-1] == "row 5, column 9"
    assert axes["keys"] == axes["queries"][:3]
    view = axes["view"]
    assert (view["shape"], view["patch"], view["start"]) == (list(PICTURE), 4, 3)
    assert max(view["queries"][:3]) < 0
    assert view["queries"][3] == (2 * 12 + 2) * 3  # the middle of the first patch


def test_weights_on_the_page_are_those_of_the_cls_tokens(pictures):
    loaded = pictures.loaded()
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
def test_browser_draws_patches_and_cls_tokens(headwise, pictures):
    shown = pictures.run / "page.html"
    headwise.ok("page", f"run={pictures.run}", "n_sentences=2")
    browsers = started_browser()
    opened = OpenedPage(next(browsers), shown, ".view canvas")
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
    assert (opened.console_messages, opened.requests) == ([], [shown.as_uri()])
    browsers.close()


def test_new_pictures_are_labelled(headwise, pictures, tmp_path):
    run, images = f"run={pictures.run}", {"first": bars(3, 0, 90), "second/below": bars(2, 2, 91)}
    write_pictures(tmp_path, images)
    expected = [
        (label, str(path))
        for folder, label in (("first", "left"), ("second", "right"))
        for path in sorted((tmp_path / folder).rglob("*.png"))
    ]
    lines = headwise.ok("predict", run, f"input={tmp_path}").out.splitlines()
    assert lines[0] == "prediction\tprobability\tpicture"
    table = [line.split("\t") for line in lines[1:]]
    assert [(label, path) for label, _, path in table] == expected
    one = headwise.ok("predict", run, f"input={expected[-1][1]}").out.splitlines()
    assert one == [lines[0], lines[-1]]
    predictions = pictures.loaded().predict(list(np.concatenate(list(images.values()))))
    assert [f"{p.label} {p.probability:.4f}" for p in predictions] == [
        f"{label} {probability}" for label, probability, _ in table
    ]
    with pytest.raises(DataError, match=r"picture 1 has the shape .* of float64"):
        pictures.loaded().predict([np.zeros(PICTURE)])


@pytest.mark.slow
def test_a_model_of_pixels_has_a_page(headwise, pictures, tmp_path):
    changes = "data.patch=1", "positions=grid", "positions.width=12", "model.cls_tokens=0"
    run = pictures.train(tmp_path, *changes, "trainer.max_updates=2", "scheduler.warmup_updates=1")
    headwise.ok("page", f"run={run}", "n_sentences=1")
    axes = page_data(run)["runs"][0]["readings"][0]["axes"]["encoder_self"]
    assert len(axes["view"]["queries"]) == 96
