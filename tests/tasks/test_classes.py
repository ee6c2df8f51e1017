"""Classes of texts and pairs: predictions, fine-tuning, tests between runs."""

import json
import shutil
import sys
from collections import Counter
from pathlib import Path

import datasets
import numpy as np
import pandas as pd
import pytest
import torch

from command_line import (
    assert_rejected,
    change_config,
    composer,
    page_data,
    read_json,
)
from headwise.analysis.tables import HEADS, OTHERS
from headwise.config.register import typed
from headwise.model.gates import gate_penalty
from headwise.runs.folder import RunFolder
from headwise.runs.record import Record
from headwise.tasks.classification.metrics import class_metrics
from headwise.tasks.classification.predict import ClassifierRun
from headwise.tasks.inspection import inspected
from headwise.tasks.task import task_of
from headwise.train.checkpoint import checkpoint_path, load_checkpoint
from headwise.train.optim import build_optimizer, set_learning_rate
from tasks.data import KINDS, rows, write_rows

SHORT = ("trainer.max_updates=2", "trainer.validate_every=2", "trainer.save_every=2")


@pytest.fixture(scope="module")
def classes(trained):
    return trained("classes")


@pytest.fixture(scope="module")
def pairs(trained):
    return trained("pairs")


def predictions(run, split="test"):
    path = run / "predictions" / f"{split}.tsv"
    return pd.read_csv(path, sep="\t", quoting=3, keep_default_na=False)


def weights_of(run, name="auto"):
    return load_checkpoint(checkpoint_path(RunFolder(run), name))["model"]


def test_predictions_and_confusion_agree_with_the_scores(classes):
    scores, table = classes.results["scores"]["test"], predictions(classes.run)
    assert list(table.columns) == ["prediction", "probability", "label", "text"]
    assert list(zip(table.label, table.text, strict=True)) == [r[:2] for r in rows("test")]
    accuracy, is_right = scores["accuracy"], table.prediction == table.label
    assert accuracy["score"] == pytest.approx(100 * is_right.mean())
    assert accuracy["low"] <= accuracy["score"] <= accuracy["high"]
    assert table.probability.between(1 / 3 - 1e-3, 1).all()
    path = classes.run / "predictions" / "test.confusion.csv"
    counts = pd.read_csv(path, index_col=0, keep_default_na=False)
    expected = Counter(zip(table.label, table.prediction, strict=True))
    assert {(i, j): counts.loc[i, j] for i in counts.index for j in counts if counts.loc[i, j]} == (
        expected
    )


def test_set_that_the_training_did_not_score_is_scored(headwise, classes, tmp_path):
    run = shutil.copytree(classes.run, tmp_path / "run")
    change_config(run, data__test=[])
    headwise.ok("evaluate", f"run={run}", "data.test=[test]", "name=later")
    about = read_json(run / "data.json")
    (run / "data.json").write_text(json.dumps(about | {"labels": ["0", "1", "2"]}))  # as of 0.1.0
    frame = pd.DataFrame(rows("test"), columns=["label", "text", "other"])
    table = datasets.Dataset.from_pandas(frame).class_encode_column("label")
    for split in ("train", "valid", "test"):
        table.to_parquet(tmp_path / f"{split}.parquet")
    headwise.ok("evaluate", f"run={run}", f"data.dir={tmp_path}", "data.test=[test]", "name=old")
    read = (read_json(run / f"{name}.json") for name in ("later", "old", "results"))
    assert len({content["scores"]["test"]["accuracy"]["score"] for content in read}) == 1


@pytest.mark.slow
def test_figures_of_a_run_have_its_confusion_matrices(headwise, classes, tmp_path):
    headwise.ok("figures", f"run={classes.run}", f"output={tmp_path}")
    assert (tmp_path / "confusion-test.png").is_file()
    assert (tmp_path / "confusion-valid.svg").is_file()


def test_new_texts_are_labelled_from_files_tables_and_pipes(
    headwise, classes, tmp_path, monkeypatch
):
    table, run = predictions(classes.run), f"run={classes.run}"
    texts = list(table.text)
    lines, output = tmp_path / "texts.txt", tmp_path / "labels.tsv"
    lines.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    expected = "prediction\tprobability\ttext\n" + "".join(
        f"{row.prediction}\t{row.probability:.4f}\t{row.text}\n" for row in table.itertuples()
    )
    headwise.ok("predict", run, f"input={lines}", f"output={output}")
    assert output.read_text(encoding="utf-8") == expected
    frame = pd.DataFrame({"id": range(len(texts)), "text": texts})
    frame.to_csv(tmp_path / "texts.csv", index=False)
    frame.to_parquet(tmp_path / "texts.parquet", index=False)
    frame.to_json(tmp_path / "texts.jsonl", orient="records", lines=True)
    for ending in ("csv", "parquet", "jsonl"):
        settings = f"input={tmp_path}/texts.{ending}", "max_tokens=8"
        assert headwise.ok("predict", run, *settings).out == expected
    with open(lines, "rb") as stream:
        settings = f"input=/dev/fd/{stream.fileno()}", "output=-"
        assert headwise.ok("predict", run, *settings).out == expected
    monkeypatch.setattr(sys, "stdin", lines.open())
    assert headwise.ok("predict", run, "buffer_size=8").out == expected


def test_long_and_empty_texts_are_labelled(classes):
    run = classes.loaded()
    assert isinstance(run, ClassifierRun)
    labels = run.predict(["", "dog " * 100, "dog " * 200])
    assert labels[1] == labels[2]  # truncated to data.max_length
    assert {label for label, _ in labels} <= set(KINDS)


def test_pairs_are_labelled(headwise, pairs, tmp_path):
    table, path, run = predictions(pairs.run), tmp_path / "pairs.txt", f"run={pairs.run}"
    assert list(table.columns) == ["prediction", "probability", "label", "text", "other"]
    path.write_text("".join(f"{r.text}\t{r.other}\n" for r in table.itertuples()), encoding="utf-8")
    result = headwise.ok("predict", run, f"input={path}")
    predicted = [line.split("\t")[0] for line in result.out.splitlines()[1:]]
    assert predicted == list(table.prediction)
    path.write_text("a\tb\n" * 4 + "only one\n", encoding="utf-8")
    result = headwise("predict", run, f"input={path}", "buffer_size=2")
    assert_rejected(result, 1, "line 5: 1 texts")
    assert result.out.count("\n") == 1 + 4  # what was read before is labelled


BAD_ROWS = {
    "unknown": ("test", ("stone", "a", "b"), ("test.tsv", "unknown label 'stone'", "animal")),
    "one class": ("train", ("plant", "a", "b"), ("train.tsv has one class, plant",)),
    "unlabelled": ("train", ("", "a", "b"), ("train.tsv, line 2: no label",)),
}


@pytest.mark.parametrize("name", BAD_ROWS)
def test_bad_rows_are_named_in_one_message(headwise, classes, tmp_path, name):
    split, row, message = BAD_ROWS[name]
    shutil.copytree(classes.data("."), tmp_path / "text")
    write_rows(tmp_path / "text" / f"{split}.tsv", [row])
    paths = f"data.dir={tmp_path / 'text'}", f"paths.outputs={tmp_path}"
    assert_rejected(headwise("train", *classes.overrides, *paths), 1, *message)


def test_frozen_layers_keep_the_weights_of_the_other_run(classes, tmp_path):
    origin = f"init_from={classes.run}"
    tuned = classes.train(tmp_path, origin, "task.frozen_layers=1", "seed=2", *SHORT)
    before, after = weights_of(classes.run), weights_of(tuned, "last")
    assert before.keys() == after.keys()
    for name, weights in after.items():
        is_frozen = name.startswith(("embedding.", "stack.layers.0.")) and "cls" not in name
        assert torch.equal(weights, before[name]) == is_frozen, name


def test_classifiers_start_from_masked_language_models(classes, trained, tmp_path):
    same = ("tokenizer=byte", "model.n_heads=2", "model.cls_tokens=0")
    origin = trained("masked_lm").train(tmp_path / "origin", *same, *SHORT)
    changes = f"init_from={origin}", "task.frozen_layers=2", *SHORT
    before, after = weights_of(origin), weights_of(classes.train(tmp_path, *changes), "last")
    layers = [name for name in after if name.startswith(("embedding.", "stack.layers."))]
    frozen = [name for name in layers if "cls" not in name]
    assert len(frozen) > 10
    assert all(torch.equal(after[name], before[name]) for name in frozen)


def training_model(classes, *more):
    """A config, and the model that it trains."""
    with composer() as make:
        config = typed(make([*classes.overrides, f"init_from={classes.run}", *more]))
    task = task_of(config)
    data = task.prepare(task.open(Path(config.paths.cache)))
    return config, task.model(data.sizes, data)


def test_encoder_lr_is_a_factor_of_the_steps_of_the_encoder(classes):
    gates = ("gates=hard_concrete", "gates.lr_factor=5")  # their own factor, not the encoder's
    config, model = training_model(classes, "task.encoder_lr=0.1", *gates)
    optimizer = build_optimizer(config.optimizer, model)
    set_learning_rate(optimizer, 1.0)
    rates = {p: group["lr"] for group in optimizer.param_groups for p in group["params"]}
    for name, parameter in model.named_parameters():
        is_new = name.startswith("output.") or "cls" in name.split(".")
        rate = 5.0 if name.endswith("log_a") else 1.0 if is_new else 0.1
        assert rates[parameter] == pytest.approx(rate), name
    assert 5.0 in rates.values()


@pytest.mark.parametrize(
    ("frozen", "layers"),
    [
        ("task.frozen_layers=2", "stack.layers."),
        ("task.frozen_layers=1", "stack.layers.0."),
        ("gates.freeze=[encoder]", "stack."),
    ],
)
def test_gates_of_frozen_layers_are_trained(classes, frozen, layers):
    """Of the model that is trained; `gates.freeze` freezes as in the other tasks."""
    _, model = training_model(classes, "gates=hard_concrete", frozen)
    gate_penalty(model).backward()
    for name, parameter in model.named_parameters():
        if name.endswith("log_a"):
            assert parameter.grad.abs().min() > 0
        elif "cls" not in name.split("."):
            is_frozen = name.startswith(("embedding.", layers))
            assert parameter.requires_grad == (not is_frozen), name


def number(text):
    return float(text.replace("−", "-"))


def test_runs_are_compared_by_every_metric(headwise, classes, trained, tmp_path):
    run, other, output = classes.run, classes.stopped, tmp_path / "tests.md"
    result = headwise.ok("compare", f"run={run}", f"other={other}", f"output={output}")
    assert output.read_text(encoding="utf-8") == result.out
    lines = [line.split("|")[1:-1] for line in result.out.splitlines() if line.startswith("|")]
    rows_of = {line[0].strip(): [cell.strip() for cell in line[1:]] for line in lines[2:]}
    labels = {f"{m.label} {'↑' if m.sign > 0 else '↓'}" for m in class_metrics(3, "target")}
    assert {f"{split} {label}" for split in ("valid", "test") for label in labels} <= rows_of.keys()
    score, other_score, difference, interval, _, p_mcnemar = rows_of["test accuracy (%) ↑"]
    assert number(difference) == pytest.approx(float(score) - float(other_score), abs=0.011)
    is_right, is_other = (t.prediction == t.label for t in map(predictions, (run, other)))
    n_first, n_second = (is_right & ~is_other).sum(), (is_other & ~is_right).sum()
    draws = np.random.default_rng(0).binomial(n_first + n_second, 0.5, 200_000)
    extreme = np.abs(draws - (n_first + n_second) / 2) >= abs(n_first - n_second) / 2
    assert float(p_mcnemar) == pytest.approx(extreme.mean(), abs=0.005)
    assert number(interval.strip("[]").split(" to ")[0]) <= number(difference)
    loss_difference = number(rows_of["test loss per example ↓"][2])
    assert loss_difference != round(loss_difference, 2)
    assert rows_of["test macro F1 (%) ↑"][5] == ""
    refused = headwise("compare", f"run={run}", f"other={trained('text').run}")
    assert_rejected(refused, 1, "not scored by the same metrics on the same")


def test_analysis_has_every_text_once(headwise, classes):
    """Batches are sorted by length; texts and their numbers are those of the file."""
    headwise.ok("analyze", f"run={classes.run}", "importance=false")
    heads = HEADS.read(Record(classes.run))
    assert all(row["rare_share"] is not None for row in heads)
    statistics = {row["statistic"] for row in OTHERS.read(Record(classes.run))}
    assert {"cls_mass", "cls_divergence"} <= statistics
    with composer() as make:
        data = make(["run=x"], "analyze").data
    shown = inspected(classes.loaded(), typed(data), 30, 1000)
    (text,) = shown.texts.values()
    spelled = ["".join(map(text.spelling, row)) for row in text.ids]
    texts = [text for _, text, _ in rows("valid")]
    assert spelled == ["".join(f"<0x{ord(c):02X}>" for c in content) for content in texts]


def test_the_page_has_predictions(headwise, classes):
    headwise.ok("page", f"run={classes.run}", "n_sentences=1")
    (reading,) = page_data(classes.run)["runs"][0]["readings"]
    first = predictions(classes.run).iloc[0]
    label, _, probability = reading["texts"]["prediction"].partition(" (")
    assert label == first.prediction
    assert float(probability.removesuffix(" %)")) == pytest.approx(100 * first.probability, abs=0.1)


def test_page_shows_a_file_of_text(headwise, classes, tmp_path):
    path = tmp_path / "new"
    path.write_text("day\n\nbad day\n", encoding="utf-8")
    headwise.ok("page", f"run={classes.run}", f"sentences={path}")
    assert page_data(classes.run)["items"]["chosen"] == [
        {"number": 1, "texts": {"text": "day"}},
        {"number": 3, "texts": {"text": "bad day"}},
    ]
