"""Density of text, images and music: what no other task has."""

import base64
import os
import zlib
from pathlib import Path

import numpy as np
import pytest

from command_line import assert_rejected, page_data, read_json
from headwise import load
from headwise.analysis.kinds import REGIONS
from headwise.analysis.tables import KINDS
from headwise.config.commands import PruneDataConfig
from headwise.data.lossless import text_ids
from headwise.data.sources import origins
from headwise.data.tokenizer import BOS, Tokenizer
from headwise.runs.folder import RunFolder
from headwise.runs.record import Record
from headwise.tasks.inspection import inspected, items, readings
from headwise.tasks.reading import selected
from headwise.tasks.stream import reading as density_items
from headwise.train.checkpoint import load_checkpoint
from opened_page import OpenedPage, needs_browser, started_browser
from plain_decoder import PlainDecoder
from tasks.data import SHAPE, VALUES
from tasks.scores import WINDOW, stream_bits

FAST = ("trainer.max_updates=2", "trainer.validate_every=2")


@pytest.fixture(scope="module")
def text(trained):
    return trained("text")


@pytest.fixture(scope="module")
def images(trained):
    return trained("images")


def scores_of(run, name="results"):
    return read_json(run / f"{name}.json")["scores"]


def test_a_loss_with_sparse_outputs_is_monitored_instead_of_bits(text, tmp_path):
    run = text.train(tmp_path, "loss=entmax15", *FAST)
    assert scores_of(run)["test"].keys() == {"loss", "support"}


def test_a_limit_of_scored_windows_is_lifted_by_evaluate_and_not_for_heads(
    headwise, text, tmp_path
):
    run = text.train(tmp_path, "decode.max_windows=2", *FAST)
    assert scores_of(run)["test"]["bits_per_byte"]["n_scored"] == 2 * WINDOW
    n_bytes = RunFolder(run).read_sums("test", "loss")[:, 3].sum()
    headwise.ok("evaluate", f"run={run}", "decode.max_windows=0", "name=all")
    assert scores_of(run, "all")["test"]["bits_per_byte"]["n_bytes"] > n_bytes
    batches = inspected(load(run), PruneDataConfig(sentences=3), 64, 64).batches
    assert sum(map(len, batches)) == 3


def test_bits_equal_those_of_plain_torch(headwise, text, tmp_path):
    changes = "tokenizer=bpe", "tokenizer.vocab_size=300", "decode.min_context=5"
    run = text.train(tmp_path, *changes, "attention=softmax", "trainer.max_updates=6")
    weights = read_json(run / "results.json")["weights"]
    plain = PlainDecoder(load_checkpoint(run / "checkpoints" / f"{weights}.pt")["model"], 4)
    content = text.data("test.txt").read_bytes()
    ids = text_ids(content.decode(), Tokenizer.load(run / "tokenizer.model")).tolist()
    headwise.ok("evaluate", f"run={run}", "decode.min_context=0", "name=none")
    assert read_json(run / "none.json")["decode"]["min_context"] == 0
    for name, min_context in (("results", 5), ("none", 0)):
        entry = scores_of(run, name)["test"]["bits_per_byte"]
        assert entry["n_bytes"] == len(content) >= entry["n_scored"] == len(ids)
        bits = plain.bits(ids, BOS, WINDOW, min_context)
        assert entry["score"] == pytest.approx(bits / len(content), rel=1e-6)


def test_evaluate_scores_other_splits_and_checkpoints(headwise, text, tmp_path):
    content, run = b"another text\n" * 9, text.run
    (tmp_path / "more.txt").write_bytes(content)
    options = f"run={run}", "checkpoint=update_6", "name=others", "decode.min_context=4"
    headwise.ok("evaluate", *options, "data.test=[more]", f"data.dir={tmp_path}")
    headwise.ok("evaluate", *options, "data.test=[valid]")
    assert read_json(run / "others.json")["checkpoint"] == "update_00000006"
    others, first = scores_of(run, "others"), scores_of(run)["valid"]["bits_per_byte"]
    assert others["more"]["bits_per_byte"]["n_bytes"] == len(content)
    valid = others["valid"]["bits_per_byte"]
    assert valid["n_bytes"] == first["n_bytes"]
    assert valid["signature"] == "min_context:4" != first["signature"]
    assert RunFolder(run).read_sums("others/more", "loss")[:, 3].sum() == len(content)


def test_later_commands_use_the_cache_of_the_training_and_other_batches(
    headwise, text, tmp_path, monkeypatch
):
    run = text.train(
        tmp_path / "outputs", *FAST, f"paths.cache={os.path.relpath(text.folder)}/cache"
    )
    monkeypatch.setenv("HEADWISE_CACHE", str(tmp_path / "ours"))
    monkeypatch.chdir(tmp_path)
    origins._log_once.cache_clear()
    out = headwise.ok("evaluate", f"run={run}", "name=small", f"max_tokens={WINDOW}").out
    assert "reading paths.cache of the run: " in out
    assert not (tmp_path / "ours").exists()
    for metric, entry in scores_of(run)["test"].items():
        small = scores_of(run, "small")["test"][metric]["score"]
        assert small == pytest.approx(entry["score"], rel=1e-6)


def test_longer_windows_are_scored_without_and_with_scaling(headwise, text):
    options = f"run={text.run}", "data.test=[test]", f"decode.window={4 * WINDOW}"
    headwise.ok("evaluate", *options, "name=long")
    bits = scores_of(text.run, "long")["test"]["bits_per_byte"]
    content = text.data("test.txt").read_bytes()
    expected = stream_bits(text.model(), [content], window=4 * WINDOW)
    assert bits["score"] == pytest.approx(expected, rel=1e-6)
    assert bits["signature"] == f"min_context:0|window:{4 * WINDOW}"
    headwise.ok("evaluate", *options, "scaling=ssmax", "name=scaled")
    scaled = scores_of(text.run, "scaled")["test"]["bits_per_byte"]
    assert scaled["n_scored"] == bits["n_scored"]
    assert scaled["score"] != pytest.approx(bits["score"], rel=1e-6)


BAD_EVALUATIONS = {
    "decode.window=0": "decode.window must be at least 1",
    "decode.window=20 decode.min_context=20": "below decode.window=20",
    "decode.beam=3": "decode.beam is not known; allowed: min_context",
    "decode.min_context=[0,8]": "decode.min_context: ",
    "data.source_file=a data.reference_file=a": "null with task=density",
    "data.test=[none]": "none.txt (plain, .gz or .zip) not found",
}


@pytest.mark.parametrize("change", BAD_EVALUATIONS)
def test_evaluations_that_a_density_model_lacks_are_rejected(
    headwise, text, tmp_path, monkeypatch, change
):
    monkeypatch.chdir(tmp_path)
    Path("a").write_text("text\n", encoding="utf-8")
    result = headwise("evaluate", f"run={text.run}", *change.split())
    assert result.code in (1, 2)
    assert_rejected(result, result.code, BAD_EVALUATIONS[change])


@pytest.mark.slow
def test_page_shows_windows_of_a_text(headwise, text, tmp_path):
    path, run = tmp_path / "own.txt", text.run
    path.write_text("Häuschen " * 4, encoding="utf-8")
    headwise.ok("page", f"run={run}", f"sentences={path}", "n_sentences=2")
    headwise.ok("figures", f"run={run}", "sentence=Haus")
    assert (run / "figures" / "attention_decoder_self.svg").is_file()
    data = page_data(run)
    texts = [item["texts"]["text"] for item in data["items"]["chosen"]]
    assert texts == ["Häuschen Häusc", "hen Häuschen H"]  # without half of the bytes of ä
    for reading in data["runs"][0]["readings"]:
        names = reading["axes"]["decoder_self"]
        shape = [len(names["queries"]), len(names["keys"])]
        assert [block["shape"] for block in reading["blocks"]] == [shape] * 2
    assert names["keys"] == ["<s>", *"hen\u2581H", "<0xC3>", "<0xA4>", *"uschen\u2581"]


def test_heads_of_images_have_kinds(headwise, images):
    """The strided pattern allows the row and the column of the key at the query only."""
    headwise.ok("analyze", f"run={images.run}")
    rows = KINDS.read(Record(images.run))
    assert len(rows) == 2 * 4
    for row in rows:
        assert sum(row[name] for name in REGIONS) == pytest.approx(1)
        assert 0 <= row["variation"] <= 1
        kinds = [name for name in REGIONS if row[name] >= 0.5]
        kinds += ["data_dependent"] if row["variation"] >= 0.5 else []
        assert row["kinds"].split(";") == kinds
    findings = (images.run / "analysis" / "findings.md").read_text(encoding="utf-8")
    assert "3 windows of valid" in findings
    assert "| column head |" in findings
    assert "merging" not in findings


def test_the_page_has_the_places_of_an_image(headwise, images):
    headwise.ok("page", f"run={images.run}", "n_sentences=1")
    (reading,) = page_data(images.run)["runs"][0]["readings"]
    axes = reading["axes"]["decoder_self"]
    assert axes["view"]["queries"] == list(range(VALUES))
    assert axes["queries"][VALUES - 1] == "row 4, column 5, blue"
    assert [block["shape"] for block in reading["blocks"]] == [[VALUES, 1 + VALUES // 3]] * 2
    weights = np.frombuffer(zlib.decompress(base64.b64decode(reading["weights"])), "<f4")
    of_query_1 = weights.reshape(2, 4, VALUES, -1)[:, :, 1]  # sees the start and one value
    assert np.isnan(of_query_1[..., 2:]).all()
    assert of_query_1[..., :2].sum(-1) == pytest.approx(1, abs=0.01)


@pytest.mark.slow
@needs_browser
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_browser_draws_the_weights_over_the_image(headwise, images, theme):
    shown = images.run / "page.html"
    headwise.ok("page", f"run={images.run}", "n_sentences=2")
    browsers = started_browser()
    opened = OpenedPage(next(browsers), shown, ".view canvas", color_scheme=theme)
    page = opened.page
    assert page.locator("#query option").count() == VALUES
    page.select_option("#query", label="row 3, column 2, green")
    line = page.locator("figure.map output")
    page.wait_for_function(
        "document.querySelector('figure.map output').textContent.includes('column 2, green')"
    )
    canvas = page.locator(".view canvas").first

    def point(row, column):
        box = canvas.bounding_box()
        places = (column - 0.5) * box["width"] / SHAPE[1], (row - 0.5) * box["height"] / SHAPE[0]
        return dict(zip("xy", places, strict=True))

    canvas.hover(position=point(1, 4))
    assert line.text_content().endswith(": row 1, column 4")
    canvas.hover(position=point(4, 1))
    assert line.text_content() == "masked: row 4, column 1"  # after the query
    canvas.click(position=point(2, 4))
    green = str(((2 - 1) * SHAPE[1] + 4 - 1) * 3 + 1)
    page.wait_for_function(f"document.getElementById('query').value == '{green}'")
    page.select_option("#item", "1")
    page.wait_for_selector(".view canvas")
    assert page.locator("#query").input_value() == green
    assert page.locator(".overview canvas").count() == 4
    assert (opened.console_messages, opened.requests) == ([], [shown.as_uri()])
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
def test_queries_to_show_are_spread(shape, n_queries, n_values, expected):
    assert selected(shape, n_queries, n_values) == expected


@pytest.mark.slow
def test_windows_within_a_row_have_a_page_and_no_kinds(headwise, images, tmp_path, monkeypatch):
    run = images.train(tmp_path, "data.window=10", "positions=learned")
    headwise.ok("analyze", f"run={run}")
    assert KINDS.read(Record(run)) == []
    monkeypatch.setattr(density_items, "MAX_WEIGHTS", 8 * 20 * 8)  # of 8 heads: few queries
    headwise.ok("page", f"run={run}", "n_sentences=1")
    axes = page_data(run)["runs"][0]["readings"][0]["axes"]["decoder_self"]
    assert axes["view"]["queries"] == [3, 4, 5]


def test_the_page_of_music_names_samples(trained):
    loaded = trained("music").loaded()
    (item,) = items(loaded, 1).chosen
    (reading,) = readings(loaded, [item.input])
    assert reading.axes["decoder_self"].queries[19] == "sample 20"
