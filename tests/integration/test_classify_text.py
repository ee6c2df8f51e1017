"""Classifiers of text as users run them: training, predictions, fine-tuning, tests between runs."""

from __future__ import annotations

import json
import random
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas as pd
import pytest
import torch

import headwise as package
from command_line import (
    CommandLine,
    assert_rejected,
    change_config,
    composer,
    read_json,
    train_with,
    write_text_corpus,
)
from headwise.config.register import typed
from headwise.runs.folder import RunFolder
from headwise.tasks.classification.metrics import class_metrics
from headwise.tasks.classification.predict import ClassifierRun
from headwise.train.checkpoint import checkpoint_path, load_checkpoint
from slow_marks import slow_but

LABELLED = (
    *("data=labelled", "tokenizer=byte", "model.d_model=16", "model.n_heads=2", "model.d_ff=32"),
    *("model.layers=2", "model.cls_tokens=2", "data.max_length=40", "trainer=debug"),
    *("trainer.progress=false", "trainer.precision=fp32", "tracker=none"),
)
WORDS = ["red", "blue", "round", "flat", "small", "big"]
KINDS = {"animal": ["dog", "cat", "cow"], "plant": ["oak", "fern"], "thing": ["cup", "pen"]}
Run = Callable[..., Path]


def rows(n: int, seed: int) -> list[tuple[str, str, str]]:
    """(label, text, second text) of three classes."""
    chosen, table = random.Random(seed), []
    for number in range(n):
        label = list(KINDS)[number % 3]
        words = [*chosen.choices(WORDS, k=chosen.randint(1, 4)), chosen.choice(KINDS[label])]
        table.append((label, " ".join(words), f"the {words[-1]}, number {number}"))
    return table


def write_rows(path: Path, table: Sequence[Sequence[str]]) -> None:
    lines = ["label\ttext\tother", *map("\t".join, table)]
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def write_labelled(folder: Path) -> Path:
    folder.mkdir(parents=True)
    for seed, (split, n) in enumerate({"train": 90, "valid": 30, "test": 21}.items()):
        write_rows(folder / f"{split}.tsv", rows(n, seed))
    return folder


def command(folder: Path, *more: str) -> list[str]:
    paths = (f"data.dir={folder / 'text'}", f"paths.outputs={folder / 'outputs'}")
    return [*LABELLED, *paths, *more]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("labelled")
    write_labelled(folder / "text")
    return folder


@pytest.fixture(scope="module")
def train_run(folder: Path) -> Run:
    """Train with some overrides, once."""
    runs: dict[Any, Path] = {}

    def run(*more: str) -> Path:
        if more not in runs:
            runs[more] = train_with(command(folder, *more))
        return runs[more]

    return run


@pytest.fixture(scope="module")
def single(train_run: Run) -> Path:
    """A classifier that learned something."""
    return train_run("trainer.max_updates=20", "trainer.validate_every=20", "scheduler=constant")


@pytest.fixture(scope="module")
def pairs(train_run: Run) -> Path:
    return train_run("data.pair=other")


def predictions(run: Path, split: str = "test") -> pd.DataFrame:
    return pd.read_csv(
        run / "predictions" / f"{split}.tsv", sep="\t", quoting=3, keep_default_na=False
    )


def test_predictions_and_confusion_agree_with_the_scores(single: Path) -> None:
    scores, table = read_json(single / "results.json")["scores"]["test"], predictions(single)
    assert list(table.columns) == ["prediction", "probability", "label", "text"]
    assert list(zip(table.label, table.text, strict=True)) == [r[:2] for r in rows(21, 2)]
    is_right = table.prediction == table.label
    assert scores["accuracy"]["score"] == pytest.approx(100 * is_right.mean())
    assert scores["accuracy"]["low"] <= scores["accuracy"]["score"] <= scores["accuracy"]["high"]
    assert table.probability.between(1 / 3 - 1e-3, 1).all()
    counts = pd.read_csv(
        single / "predictions" / "test.confusion.csv", index_col=0, keep_default_na=False
    )
    expected = Counter(zip(table.label, table.prediction, strict=True))
    assert {(i, j): counts.loc[i, j] for i in counts.index for j in counts if counts.loc[i, j]} == (
        expected
    )


def test_set_that_the_training_did_not_score_is_scored(
    headwise: CommandLine, single: Path, tmp_path: Path
) -> None:
    run = shutil.copytree(single, tmp_path / "run")
    change_config(run, data__test=[])
    headwise.ok("evaluate", f"run={run}", "data.test=[test]", "name=later")
    assert_rejected(headwise("evaluate", f"run={run}", "data.test=[tost]"), 1, "test, train, valid")
    about = read_json(run / "data.json")
    (run / "data.json").write_text(json.dumps(about | {"labels": ["0", "1", "2"]}))  # as of 0.1.0
    frame = pd.DataFrame(rows(21, 2), columns=["label", "text", "other"])
    table = datasets.Dataset.from_pandas(frame).class_encode_column("label")
    for split in ("train", "valid", "test"):
        table.to_parquet(tmp_path / f"{split}.parquet")
    headwise.ok("evaluate", f"run={run}", f"data.dir={tmp_path}", "data.test=[test]", "name=old")
    read = (
        read_json(run / f"{name}.json")["scores"]["test"] for name in ("later", "old", "results")
    )
    assert len({scores["accuracy"]["score"] for scores in read}) == 1


@pytest.mark.slow
def test_figures_of_a_run_have_its_confusion_matrices(
    headwise: CommandLine, single: Path, tmp_path: Path
) -> None:
    headwise.ok("figures", f"run={single}", f"output={tmp_path}")
    assert (tmp_path / "confusion-test.png").is_file()
    assert (tmp_path / "confusion-valid.svg").is_file()


def test_new_texts_are_labelled_from_files_tables_and_pipes(
    headwise: CommandLine, single: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = predictions(single)
    texts = list(table.text)
    lines, output = tmp_path / "texts.txt", tmp_path / "labels.tsv"
    lines.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    expected = "prediction\tprobability\ttext\n" + "".join(
        f"{row.prediction}\t{row.probability:.4f}\t{row.text}\n" for row in table.itertuples()
    )
    headwise.ok("predict", f"run={single}", f"input={lines}", f"output={output}")
    assert output.read_text(encoding="utf-8") == expected
    for ending in ("csv", "parquet", "jsonl"):
        path = tmp_path / f"texts.{ending}"
        frame = pd.DataFrame({"id": range(len(texts)), "text": texts})
        if ending == "csv":
            frame.to_csv(path, index=False)
        elif ending == "parquet":
            frame.to_parquet(path, index=False)
        else:
            frame.to_json(path, orient="records", lines=True)
        settings = f"run={single}", f"input={path}", "max_tokens=8"
        assert headwise.ok("predict", *settings).out == expected
    with open(lines, "rb") as stream:
        settings = f"run={single}", f"input=/dev/fd/{stream.fileno()}", "output=-"
        assert headwise.ok("predict", *settings).out == expected
    monkeypatch.setattr(sys, "stdin", lines.open())
    blocks: list[int] = []
    predict = ClassifierRun.predict

    def counted(run: ClassifierRun, block: Sequence[Any]) -> Any:
        blocks.append(len(block))
        return predict(run, block)

    monkeypatch.setattr(ClassifierRun, "predict", counted)
    assert headwise.ok("predict", f"run={single}", "buffer_size=8").out == expected
    assert blocks == [8, 8, 5]


def test_long_and_empty_texts_are_labelled(single: Path) -> None:
    run = package.load(single)
    assert isinstance(run, ClassifierRun)
    labels = run.predict(["", "dog " * 100, "dog " * 200])
    assert labels[1] == labels[2]  # truncated to data.max_length
    assert {label for label, _ in labels} <= set(KINDS)


def test_pairs_are_labelled(headwise: CommandLine, pairs: Path, tmp_path: Path) -> None:
    table, path = predictions(pairs), tmp_path / "pairs.txt"
    assert list(table.columns) == ["prediction", "probability", "label", "text", "other"]
    path.write_text("".join(f"{r.text}\t{r.other}\n" for r in table.itertuples()), encoding="utf-8")
    result = headwise.ok("predict", f"run={pairs}", f"input={path}")
    assert [line.split("\t")[0] for line in result.out.splitlines()[1:]] == list(table.prediction)
    path.write_text("only one\n", encoding="utf-8")
    result = headwise("predict", f"run={pairs}", f"input={path}")
    assert_rejected(result, 1, "line 1: 1 texts; the run classifies pairs, text and other")
    write_rows(tmp_path / "single.tsv", [])
    (tmp_path / "single.tsv").write_text("label\ttext\nx\ty\n", encoding="utf-8")
    result = headwise("predict", f"run={pairs}", f"input={tmp_path / 'single.tsv'}")
    assert_rejected(result, 1, "no columns 'other'; got label, text")


def test_only_classifiers_of_text_predict(
    headwise: CommandLine, trained: Path, tmp_path: Path
) -> None:
    result = headwise("predict", f"run={trained}", f"input={trained / 'config.yaml'}")
    assert_rejected(result, 1, "is a run of task=translation: headwise predict does not apply")
    result = headwise("predict", f"run={trained}", f"input={tmp_path / 'missing'}")
    assert_rejected(result, 1, "not found")


BAD_ROWS: dict[str, tuple[str, list[tuple[str, str, str]], tuple[str, ...]]] = {
    "unknown": ("test", [("stone", "a", "b")], ("test.tsv", "unknown label 'stone'", "animal")),
    "one class": ("train", [("plant", "a", "b")], ("train.tsv has one class, plant",)),
    "unlabelled": ("train", [("", "a", "b")], ("train.tsv, line 2: no label",)),
}


@pytest.mark.parametrize("case", BAD_ROWS)
def test_bad_rows_are_named_in_one_message(
    headwise: CommandLine, tmp_path: Path, case: str
) -> None:
    split, table, message = BAD_ROWS[case]
    write_labelled(tmp_path / "text")
    write_rows(tmp_path / "text" / f"{split}.tsv", table)
    assert_rejected(headwise("train", *command(tmp_path)), 1, *message)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("data.labels=[animal,plant,thing,stone]", "no example of stone"),
        ("data.class_weights=equal", "data.class_weights must be null, balanced"),
        (
            "task.frozen_layers=1",
            "must be null, or with init_from=RUN at most 2",
        ),
        *slow_but(
            [
                ("data.pair=text2", "no columns 'text2'; got label, text, other"),
                (
                    "data.class_weights=[1,2]",
                    "must be 3 numbers: animal, plant, thing",
                ),
                ("task.encoder_lr=0.1", "task.encoder_lr must be 1 without init_from=RUN"),
                ("positions=learned positions.max_positions=30", "at least the 40 positions"),
            ]
        ),
    ],
)
def test_bad_settings_are_named_in_one_message(
    headwise: CommandLine, folder: Path, settings: str, message: str
) -> None:
    result = headwise("train", *command(folder, *settings.split()))
    assert_rejected(result, result.code, message)
    assert result.code in (1, 2)


def test_frozen_layers_keep_the_weights_of_the_other_run(train_run: Run, single: Path) -> None:
    tuned = train_run(f"init_from={single}", "task.frozen_layers=1", "seed=2")
    before = load_checkpoint(checkpoint_path(RunFolder(single), "auto"))["model"]
    after = load_checkpoint(tuned / "checkpoints" / "last.pt")["model"]
    assert before.keys() == after.keys()
    for name, weights in after.items():
        is_frozen = name.startswith(("embedding.", "stack.layers.0.")) and "cls" not in name
        assert torch.equal(weights, before[name]) == is_frozen, name


def test_classifiers_start_from_masked_language_models(folder: Path, train_run: Run) -> None:
    write_text_corpus(folder / "text")  # train.txt and so on, beside the tables
    masked = ("task=masked_lm", "data=text", "data.window=16", "model.cls_tokens=0")
    overrides = [o for o in command(folder, *masked) if o != "data.max_length=40"]
    origin = train_with(overrides)
    tuned = train_run(f"init_from={origin}", "task.frozen_layers=2")
    before = load_checkpoint(checkpoint_path(RunFolder(origin), "auto"))["model"]
    after = load_checkpoint(tuned / "checkpoints" / "last.pt")["model"]
    layers = [name for name in after if name.startswith(("embedding.", "stack.layers."))]
    frozen = [name for name in layers if "cls" not in name]
    assert len(frozen) > 10
    assert all(torch.equal(after[name], before[name]) for name in frozen)


def training_model(folder: Path, *more: str) -> tuple[Any, Any]:
    """A config, and the model that it trains."""
    from headwise.tasks.task import task_of

    with composer() as make:
        config = typed(make(command(folder, *more)))
    task = task_of(config)
    data = task.prepare(task.open(folder / "cache"))
    return config, task.model(data.sizes, data)


def test_encoder_lr_is_a_factor_of_the_steps_of_the_encoder(folder: Path, single: Path) -> None:
    from headwise.train.optim import build_optimizer, set_learning_rate

    gates = ("gates=hard_concrete", "gates.lr_factor=5")  # their own factor, not the encoder's
    more = ("task.encoder_lr=0.1", "scheduler=constant", *gates)
    config, model = training_model(folder, f"init_from={single}", *more)
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
def test_gates_of_frozen_layers_are_trained(
    folder: Path, single: Path, frozen: str, layers: str
) -> None:
    """Of the model that is trained; `gates.freeze` freezes as in the other tasks."""
    from headwise.model.gates import gate_penalty

    _, model = training_model(folder, f"init_from={single}", "gates=hard_concrete", frozen)
    penalty = gate_penalty(model)
    assert penalty is not None
    penalty.backward()
    for name, parameter in model.named_parameters():
        if name.endswith("log_a"):
            assert parameter.grad.abs().min() > 0
        elif "cls" not in name.split("."):
            is_frozen = name.startswith(("embedding.", layers))
            assert parameter.requires_grad == (not is_frozen), name


def number(text: str) -> float:
    return float(text.replace("−", "-"))


def test_runs_are_compared_on_the_same_rows(
    headwise: CommandLine, single: Path, train_run: Run, tmp_path: Path
) -> None:
    other, output = train_run(), tmp_path / "tests.md"
    result = headwise.ok("compare", f"run={single}", f"other={other}", f"output={output}")
    assert output.read_text(encoding="utf-8") == result.out
    lines = [line.split("|")[1:-1] for line in result.out.splitlines() if line.startswith("|")]
    rows_of = {line[0].strip(): [cell.strip() for cell in line[1:]] for line in lines[2:]}
    labels = {f"{m.label} {'↑' if m.sign > 0 else '↓'}" for m in class_metrics(3, "target")}
    assert {f"{split} {label}" for split in ("valid", "test") for label in labels} <= rows_of.keys()
    score, other_score, difference, interval, p_bootstrap, p_mcnemar = rows_of[
        "test accuracy (%) ↑"
    ]
    assert number(difference) == pytest.approx(float(score) - float(other_score), abs=0.011)
    loss, other_loss, loss_difference = map(number, rows_of["test loss per example ↓"][:3])
    assert loss_difference == pytest.approx(loss - other_loss, abs=1.1e-3)
    assert loss_difference != round(loss_difference, 2)
    is_right, is_other = (t.prediction == t.label for t in map(predictions, (single, other)))
    n_first, n_second = (is_right & ~is_other).sum(), (is_other & ~is_right).sum()
    draws = np.random.default_rng(0).binomial(n_first + n_second, 0.5, 200_000)
    extreme = np.abs(draws - (n_first + n_second) / 2) >= abs(n_first - n_second) / 2
    assert float(p_mcnemar) == pytest.approx(extreme.mean(), abs=0.005)
    assert number(interval.strip("[]").split(" to ")[0]) <= number(difference)
    assert 0 < float(p_bootstrap) <= 1
    assert rows_of["test macro F1 (%) ↑"][5] == ""


def test_runs_of_different_tasks_are_not_compared(
    headwise: CommandLine, single: Path, trained: Path
) -> None:
    result = headwise("compare", f"run={single}", f"other={trained}")
    assert_rejected(result, 1, "not scored by the same metrics on the same")
