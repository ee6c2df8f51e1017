"""Masked language models: what no other task has."""

import pytest

from command_line import assert_rejected, page_data, read_json
from headwise import load
from headwise.config.register import typed
from headwise.runs.folder import RunFolder
from headwise.tasks.check import checked_task
from headwise.tasks.inspection import items, readings


@pytest.fixture(scope="module")
def masked(trained):
    return trained("masked_lm")


def test_some_windows_are_evaluated(headwise, masked):
    before = masked.results["scores"]["valid"]["masked_bits"]
    assert before["n_scored"] == RunFolder(masked.run).read_sums("valid", "loss")[:, 2].sum()
    assert masked.results["best_update"] in (6, 12)
    few = "data.test=[valid]", "decode.max_windows=2", "name=few"
    headwise.ok("evaluate", f"run={masked.run}", *few)
    bits = read_json(masked.run / "few.json")["scores"]["valid"]["masked_bits"]
    assert bits["n_scored"] == 4
    assert bits["signature"] != before["signature"]
    refused = headwise("evaluate", f"run={masked.run}", "decode.min_context=4")
    assert_rejected(refused, 2, "decode.min_context must be 0 with task=masked_lm, got 4")


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
    texts = [item.text for item in items(loaded, 2).chosen]
    first, second = (list(readings(loaded, texts)) for _ in range(2))
    assert [reading.axes for reading in first] == [reading.axes for reading in second]


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
