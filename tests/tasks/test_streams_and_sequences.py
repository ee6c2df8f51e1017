"""Density of text, images and music, masked language models, sequences: what no other task has."""

import base64
import os
import zlib

import numpy as np
import pytest

from command_line import page_data, read_json
from guide import ROOT
from headwise import load
from headwise.analysis.kinds import REGIONS
from headwise.analysis.tables import KINDS, LENGTHS
from headwise.config.commands import PruneDataConfig
from headwise.config.register import typed
from headwise.data.lossless import text_ids
from headwise.data.tokenizer import BOS, Tokenizer
from headwise.errors import DataError
from headwise.runs.record import Record
from headwise.tasks import inspection
from headwise.tasks.check import checked_task
from headwise.tasks.inspection import inspected, items, readings
from headwise.tasks.shown import selected
from headwise.tasks.task import Part
from headwise.train.checkpoint import load_checkpoint
from headwise.train.distributed import Ranks
from opened_page import OpenedPage, needs_browser, started_browser
from plain_decoder import PlainDecoder
from slow_marks import slow_but
from tasks.data import LENGTH, N_ROWS, SHAPE, VALUES
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
    n_bytes = Record(run).sums("test", "loss")[:, 3].sum()
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
    assert Record(run).sums("others/more", "loss")[:, 3].sum() == len(content)


def test_later_commands_use_the_cache_of_the_training_and_other_batches(
    headwise, text, tmp_path, monkeypatch
):
    run = text.train(tmp_path / "outputs", *FAST, f"paths.cache={os.path.relpath(tmp_path)}/cache")
    monkeypatch.setenv("HEADWISE_CACHE", str(tmp_path / "ours"))
    monkeypatch.chdir(tmp_path)
    out = headwise.ok("evaluate", f"run={run}", "name=small", f"max_tokens={WINDOW}").out
    assert "reading paths.cache of the run: " in out
    assert not (tmp_path / "ours").exists()
    for metric, entry in scores_of(run)["test"].items():
        small = scores_of(run, "small")["test"][metric]["score"]
        assert small == pytest.approx(entry["score"], rel=1e-6)


def test_longer_windows_are_scored(headwise, text):
    options = f"run={text.run}", "data.test=[test]", f"decode.window={4 * WINDOW}"
    headwise.ok("evaluate", *options, "name=long")
    bits = scores_of(text.run, "long")["test"]["bits_per_byte"]
    content = text.data("test.txt").read_bytes()
    expected = stream_bits(text.model(), [content], window=4 * WINDOW)
    assert bits["score"] == pytest.approx(expected, rel=1e-6)
    assert bits["signature"] == f"min_context:0|window:{4 * WINDOW}"


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
    headwise.ok("analyze", f"run={images.run}", "importance=false")
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
    monkeypatch.setattr(inspection, "MAX_WEIGHTS", 8 * 20 * 8)  # of 8 heads: few queries
    headwise.ok("page", f"run={run}", "n_sentences=1")
    axes = page_data(run)["runs"][0]["readings"][0]["axes"]["decoder_self"]
    assert axes["view"]["queries"] == [3, 4, 5]


def test_the_page_of_music_names_samples(trained):
    loaded = trained("music").loaded()
    (item,) = items(loaded, 1).chosen
    (reading,) = readings(loaded, [item.input])
    (site,) = loaded.model.sites
    assert reading.axes(site).queries[19] == "sample 20"


@pytest.fixture(scope="module")
def masked(trained):
    return trained("masked_lm")


def test_some_windows_are_evaluated(headwise, masked):
    before = masked.results["scores"]["valid"]["masked_bits"]
    assert before["n_scored"] == Record(masked.run).sums("valid", "loss")[:, 2].sum()
    assert masked.results["best_update"] in (6, 12)
    few = "data.test=[valid]", "decode.max_windows=2", "name=few"
    headwise.ok("evaluate", f"run={masked.run}", *few)
    bits = read_json(masked.run / "few.json")["scores"]["valid"]["masked_bits"]
    assert bits["n_scored"] == 4
    assert bits["signature"] != before["signature"]


def test_sparse_loss_is_monitored_by_accuracy(masked, tmp_path):
    run = masked.train(tmp_path, "loss=entmax15", "trainer.max_updates=2")
    scores = read_json(run / "results.json")["scores"]["test"]
    assert scores.keys() == {"masked_accuracy", "loss", "support"}


def test_page_names_masked_tokens_and_shows_predictions(headwise, masked, tmp_path):
    path, run = tmp_path / "own.txt", masked.run
    path.write_text("der Hund sieht das Häuschen\nder Hund\n", encoding="utf-8")
    headwise.ok("page", f"run={run}", f"sentences={path}", "n_sentences=2")
    data = page_data(run)
    assert data["items"]["unit"] == "windows"
    for item, reading in zip(data["items"]["chosen"], data["runs"][0]["readings"], strict=True):
        names = reading["axes"]["encoder_self"]["keys"]
        hidden = [name for name in names if name.startswith("<mask:")]
        assert len(hidden) == max(1, round(0.15 * len(names)))
        spelt = "".join(n[len("<mask:") : -1] if n in hidden else n for n in names)
        assert "derHund" in spelt.replace("\u2581", "")
        assert "der Hund" in item["texts"]["text"]
        prediction = reading["texts"]["prediction"]
        assert prediction
        assert "mask" not in prediction
    loaded = load(run, device="cpu")
    texts = [item.input for item in items(loaded, 2).chosen]
    first, second = (list(readings(loaded, texts)) for _ in range(2))
    assert [reading.labels for reading in first] == [reading.labels for reading in second]


def test_explicit_task_wins_over_that_of_the_data(make):
    config = typed(make(["task=masked_lm", "data=builtin_text", "tokenizer=bpe"]))
    checked_task(config)
    assert config.task["_target_"].endswith("MaskedLM")
    assert (config.tokenizer.kind, config.data.window) == ("bpe", 128)
    others = ("text8", "enwik8", "wikitext2", "wikitext103", "tinyshakespeare")
    for data in ("text", *others):
        assert "masked_lm" in typed(make([f"data={data}"])).data.tasks


def test_dry_run_names_rows(headwise, masked):
    printed = headwise.ok("train", *masked.overrides, "dry_run=true").out
    assert "tokens per rank (rows of 16)" in printed


@pytest.fixture(scope="module", params=slow_but(["sequence", "sequence_pair"], "sequence"))
def sequence(request, trained):
    return trained(request.param)


def test_heads_by_length(headwise, sequence):
    headwise.ok("analyze", f"run={sequence.run}", "importance=false")
    rows = {(r["site"], r["head"], r["length"]): r for r in LENGTHS.read(Record(sequence.run))}
    site = list(sequence.case.sites)[-1]
    assert {length for _, _, length in rows} == {12, 40}
    loaded = sequence.loaded()
    (reading,) = readings(loaded, ["40 0"])
    (observed,) = (obs for obs in reading.observations if obs.site == site)
    (axes,) = (reading.axes(one) for one in loaded.model.sites if one.name == site)
    asked, observed_queries = reading.relevant, reading.queries or range(len(axes.queries))
    assert len(asked) == 2
    for query, key in asked.items():  # the relevant key is the value after the asked key
        assert axes.keys[key - 1] == axes.queries[observed_queries.index(query)]
    for head in (1, 2):
        row = rows[site, head, 40]
        assert 0 <= row["relevant_weight"] <= 1
        assert row["used_keys"] <= row["visible_keys"]
        assert row["n_queries"] == 9 * len(asked)
    assert observed.weights_BHQK.shape[2] == len(axes.queries)


def test_any_length_is_evaluated_also_with_another_scaling(headwise, sequence):
    run = sequence.run
    headwise.ok("evaluate", f"run={run}", "data.test=[12,64]", "name=lengths")
    scores = read_json(run / "lengths.json")["scores"]
    assert scores["12"] == sequence.results["scores"]["12"]
    scaled = ["scaling=ssmax", "scaling.reference=12", "scaling.heads=without_positions"]
    headwise.ok("evaluate", f"run={run}", "data.test=[64]", *scaled, "name=scaled")
    loss = read_json(run / "scaled.json")["scores"]["64"]["loss"]["score"]
    assert loss != scores["64"]["loss"]["score"]


def test_split_without_targets_has_no_score(sequence, monkeypatch):
    loaded = sequence.loaded()
    monkeypatch.setattr(type(loaded.task), "batches", lambda *_: [])
    data, ranks = loaded.task.restored(sequence.run, ["12"]), Ranks(0, 1, loaded.device)
    with pytest.raises(DataError, match="no item of 12 has a target"):
        loaded.task.evaluate(loaded.model, data, Part("12"), ranks)


def test_a_task_of_a_user_is_read_and_described(headwise, trained):
    case = trained("own")
    for split in ("valid", "test"):
        accuracy = case.results["scores"][split]["accuracy"]["score"]
        sums = Record(case.run).sums(split, "loss")
        n_bits = N_ROWS * LENGTH
        assert sums.shape == (N_ROWS, 4)
        assert sums[:, 2:].sum(0).tolist() == [n_bits, round(accuracy * n_bits)]
    (site,) = case.loaded().model.sites
    assert site.causal
    headwise.ok("analyze", f"run={case.run}")
    assert read_json(case.run / "analysis" / "settings.json")["sentences"] == N_ROWS
    compared = headwise.ok("compare", f"run={case.run}", f"other={case.run}").out
    (row,) = (line for line in compared.splitlines() if line.startswith("| test accuracy"))
    assert row.endswith("|  |")  # an item has many positions: McNemar's test does not apply


@pytest.mark.slow
def test_an_encoder_of_a_user_is_not_causal(trained):
    (site,) = trained("own_encoder").loaded().model.sites
    assert not site.causal


def test_headwise_does_not_contain_the_task():
    paths = [path for folder in ("src", "conf") for path in (ROOT / folder).rglob("*.*")]
    texts = [path.read_text(encoding="utf-8") for path in paths if path.suffix in (".py", ".yaml")]
    assert len(texts) > 100
    assert not [text for text in texts if "majority" in text.lower()]
