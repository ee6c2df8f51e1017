"""How runs end, and the effect of repeating the command."""

import fcntl
import json
import re
import shutil
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
import torch

from command_line import read_json, write_corpus
from headwise import load
from headwise.commands.training_run import check_checkpoints
from headwise.errors import CheckpointError
from headwise.runs.folder import RunFolder
from headwise.train.checkpoint import checkpoint_path, load_checkpoint, save_checkpoint
from headwise.train.initial import start_from
from training_runs import read_log, run_outputs

SHORT = {"trainer.max_updates": 4, "trainer.validate_every": 2, "trainer.save_every": 2}


@pytest.fixture(scope="module")
def short(runs):
    """A finished run of four updates."""
    runs.train("short", SHORT)
    return "short"


@pytest.fixture
def finished_copy(runs, short, request):
    """Outputs folder with a copy of the finished run, and the copy's run folder."""
    outputs = re.sub(r"\W+", "-", request.node.name)
    shutil.copytree(runs.folder / short, runs.folder / outputs)
    return outputs, runs.run_folder(outputs)


@pytest.fixture(scope="module")
def origin(runs, short):
    """A finished run in another folder."""
    return Path(shutil.copytree(runs.run_folder(short), runs.folder / "origin" / "run"))


def test_extended_run_equals_one_run(runs):
    """In the same folder, even if its first end is no update at which it logs and saves."""
    changes = {**SHORT, "trainer.keep": 3, "trainer.average": 3}
    runs.train("by-steps", {**changes, "trainer.max_updates": 5})
    path = runs.run_folder("by-steps") / "environment.json"
    environment = read_json(path)
    environment["versions"]["torch"] = "1.0"
    environment["kernels"]["losses"] = "another"
    environment["threads"] = 63
    del environment["earlier"]
    path.write_text(json.dumps(environment))
    with (path.parent / "metrics.jsonl").open("a") as file:
        file.write('{"update": 7}\n')  # as after a kill
    output = runs.train("by-steps", {**changes, "trainer.max_updates": 6})
    assert "results may change: torch: 1.0 -> 2." in output
    assert "; losses: another -> " in output
    assert "linear maps" not in output
    now = read_json(path)
    assert f"threads: 63 -> {now['threads']}" in output
    assert (now["update"], now["earlier"]) == (5, [environment])
    assert f"resuming in {path.parent} at update 5, logged to 7" in output
    runs.train("at-once", {**changes, "trainer.max_updates": 6})
    stepwise, whole = map(runs.run_folder, ("by-steps", "at-once"))
    assert read_json(stepwise / "results.json")["updates"] == 6
    last = [load_checkpoint(folder / "checkpoints/last.pt") for folder in (stepwise, whole)]
    assert all(torch.equal(v, last[1]["model"][k]) for k, v in last[0]["model"].items())
    lines = read_log(stepwise / "metrics.jsonl")
    assert [line["update"] for line in lines if "train/nll" in line] == [3, 5, 6]
    for folder in (stepwise, whole):
        names = sorted(path.name for path in (folder / "checkpoints").glob("update_*"))
        assert names == [f"update_{update:08d}.pt" for update in (2, 4, 6)]


def test_early_stopping_finishes_the_run(runs):
    """With a learning rate near zero no validation is better than the first."""
    changes = {
        **SHORT,
        "trainer.max_updates": 50,
        "trainer.monitor": "loss",
        "trainer.patience": 2,
        "optimizer.lr": 1e-30,
    }
    outputs = "early"
    runs.train(outputs, changes)
    results = read_json(runs.run_folder(outputs) / "results.json")
    assert results["stopped_early"]
    assert (results["updates"], results["best_update"]) == (6, 2)
    last = read_json(runs.run_folder(outputs) / "checkpoints/last.json")
    assert results.get("peak_memory_bytes") == last["peak_memory_bytes"]
    if sys.platform == "linux":
        assert results["peak_memory_bytes"] > 2**27  # of a process that has imported torch
    before = run_outputs(runs.run_folder(outputs))
    output = runs.train(outputs, changes)
    assert "this run is finished" in output
    assert run_outputs(runs.run_folder(outputs)) == before


def test_results_name_the_scored_weights(runs):
    """The average if its validation is better, else the best; results have its name and α."""
    changes = {**SHORT, "trainer.average": 2, "trainer.monitor": "loss"}
    runs.train("average", changes)
    folder = runs.run_folder("average")
    results = read_json(folder / "results.json")
    has_average = (folder / "checkpoints" / "average.pt").is_file()
    assert results["weights"] == ("average" if has_average else "best")
    weights = load_checkpoint(folder / "checkpoints" / f"{results['weights']}.pt")["model"]
    (logit,) = (v for k, v in weights.items() if k.endswith("alpha_logit") and "cross" in k)
    expected = 1.01 + 0.99 * torch.sigmoid(logit)
    assert results["alpha"]["cross"][0] == pytest.approx(expected.tolist(), rel=1e-6)


def test_same_command_restores_missing_files_of_finished_run(runs, finished_copy):
    outputs, folder = finished_copy
    before = run_outputs(folder)
    leftovers = [folder / ".results.json.4711.tmp", folder / "checkpoints" / "update_00000001.pt"]
    for deleted in ("figures", "hypotheses"):
        shutil.rmtree(folder / deleted)
        for path in leftovers:  # as a killed process leaves them
            shutil.copy(folder / "checkpoints" / "update_00000002.pt", path)
        runs.train(outputs, SHORT)
        assert (folder / deleted).is_dir()
        assert run_outputs(folder) == before
        assert not any(path.exists() for path in leftovers)


def test_origin_counts_by_its_weights(runs, origin, tmp_path):
    moved = Path(shutil.copytree(origin, tmp_path / "moved"))
    tuned = {**SHORT, "init_from": moved}
    runs.train("by_weights", tuned)
    first = runs.run_folder("by_weights")
    assert "this run is finished" in runs.train("by_weights", {**tuned, "init_from": origin})
    checkpoint = checkpoint_path(RunFolder(moved), "auto")
    model = load_checkpoint(checkpoint)["model"]
    name, weights = next(iter(model.items()))
    save_checkpoint(checkpoint, {"model": {**model, name: weights + 1}})  # as if trained on
    assert "this run is finished" not in runs.train("by_weights", tuned)
    assert len(list(first.parent.iterdir())) == 2
    shutil.rmtree(moved)  # one of two runs was started there: which one cannot be known
    assert f"init_from={moved} holds no run" in runs.train("by_weights", tuned, code=1)
    shutil.rmtree(next(path for path in first.parent.iterdir() if path != first))
    assert "this run is finished" in runs.train("by_weights", tuned)


def test_origin_that_is_trained_on_meanwhile_is_refused(runs, origin, tmp_path, monkeypatch):
    moved = Path(shutil.copytree(origin, tmp_path / "moved"))

    def start_late(*arguments):
        checkpoint = checkpoint_path(RunFolder(moved), "auto")
        save_checkpoint(checkpoint, {"model": load_checkpoint(checkpoint)["model"], "more": 1})
        start_from(*arguments)

    monkeypatch.setattr("headwise.commands.training_run.start_from", start_late)
    assert "was changed: run" in runs.train("late", {**SHORT, "init_from": moved}, code=1)


def test_finished_run_scores_additional_test_set(runs, finished_copy):
    for side in ("de", "en"):
        shutil.copy(runs.text / f"valid.{side}", runs.text / f"test_more.{side}")
    outputs, folder = finished_copy
    checkpoint = (folder / "checkpoints" / "last.pt").read_bytes()
    before = read_json(folder / "results.json")["scores"]
    runs.train(outputs, {**SHORT, "data.test": "[test_more]"})
    after = read_json(folder / "results.json")["scores"]
    assert set(after) == {*before, "test_more"}
    assert {name: after[name] for name in before} == before
    assert after["test_more"] == after["valid"]
    assert (folder / "checkpoints" / "last.pt").read_bytes() == checkpoint
    for side in ("de", "en"):  # another text of the same name
        shutil.copy(runs.text / f"test_a.{side}", runs.text / f"test_more.{side}")
    runs.train(outputs, {**SHORT, "data.test": "[test_more]"})
    replaced = read_json(folder / "results.json")["scores"]
    assert replaced.pop("test_more")["loss"]["content"] != after.pop("test_more")["loss"]["content"]
    assert replaced == after
    for side in ("de", "en"):
        (runs.text / f"test_more.{side}").unlink()


def test_removed_best_checkpoint_is_reported_or_restored(runs, finished_copy):
    """Not replaced by `last`: neither by commands that load a run, nor by a longer training."""
    outputs, folder = finished_copy
    best, update = folder / "checkpoints/best.pt", read_json(folder / "results.json")["best_update"]
    numbered = best.with_name(f"update_{update:08d}.pt")
    content = best.read_bytes()
    best.unlink()
    assert load(folder).checkpoint == numbered
    numbered.rename(folder / "copy.pt")
    with pytest.raises(CheckpointError, match=r"best\.pt is missing.*checkpoint=last"):
        load(folder)
    missing, longer = "best.pt is missing, though it was saved", {**SHORT, "trainer.max_updates": 5}
    assert missing in runs.train("missed", {**SHORT, "init_from": folder}, code=1)
    before = (folder / "metrics.jsonl").read_bytes()
    assert f"{missing} at update {update}" in runs.train(outputs, longer, code=1)
    assert (folder / "metrics.jsonl").read_bytes() == before
    (folder / "copy.pt").rename(numbered)
    check_checkpoints(RunFolder(folder))
    assert best.read_bytes() == content


def test_new_parameters_are_newly_initialised(runs, origin):
    frozen = {**SHORT, "trainer.max_updates": 1, "optimizer.lr": 1e-30}
    bare = {"attention": "softmax", "activation": "gelu"}
    softmax_output = runs.train("bare", {**frozen, **bare, "init_from": origin})
    assert "trained with other settings: activation._target_=headwise.model." in softmax_output
    assert "not in this model: normaliser.alpha_logit" in softmax_output
    softmax_run = runs.run_folder("bare")
    same = {"attention": "alpha_entmax", "activation": "gelu"}
    additions = {**same, "scaling": "length", "model.cls_tokens": 2}
    extended_output = runs.train("full", {**frozen, **additions, "init_from": softmax_run})
    new = "normaliser.alpha_logit, scaling.beta, scaling.gamma, source_embedding.cls.weight"
    assert f"newly initialised, not in its checkpoint: {new}" in extended_output
    original, softmax, extended = (
        load_checkpoint(folder / "checkpoints" / "best.pt")["model"]
        for folder in (origin, softmax_run, runs.run_folder("full"))
    )
    assert softmax.keys() == {name for name in original if "normaliser" not in name}
    for name, value in softmax.items():
        torch.testing.assert_close(value, original[name], rtol=0, atol=1e-12)
        torch.testing.assert_close(extended[name], original[name], rtol=0, atol=1e-12)


def test_fine_tuning_reuses_tokenizer_of_origin(runs, origin, tmp_path):
    write_corpus(tmp_path / "other", n_train=60, seed=7)
    changes = {**SHORT, "data.dir": tmp_path / "other", "init_from": origin}
    tokenizer_overrides = {"tokenizer": "given", "tokenizer.folder": origin}
    moved = tmp_path / "moved"
    shutil.copytree(origin, moved)
    output = runs.train("tuned", {**changes, **tokenizer_overrides})
    assert "other settings" not in output
    folder = runs.run_folder("tuned")
    assert (folder / "tokenizer.model").read_bytes() == (origin / "tokenizer.model").read_bytes()
    # with the tokenizer moved, it is the same run, which is finished
    output = runs.train("tuned", {**changes, **tokenizer_overrides, "tokenizer.folder": moved})
    assert "this run is finished" in output
    assert runs.run_folder("tuned") == folder
    # without the tokenizer
    (moved / "tokenizer.model").unlink()
    output = runs.train(
        "tuned", {**changes, **tokenizer_overrides, "tokenizer.folder": moved}, code=2
    )
    assert "tokenizer.folder=" in output


def unfinish(folder):
    """It would look like a finished run of fewer updates."""
    (folder / "results.json").unlink()


def of_other_version(folder):
    data = read_json(folder / "data.json")
    data["versions"]["sentencepiece"] = "0.1.95"
    (folder / "data.json").write_text(json.dumps({**data, "fingerprint": "of old"}))


def without_last(folder):
    (folder / "checkpoints" / "last.pt").unlink()
    shutil.copy(folder / "checkpoints" / "best.pt", folder / "checkpoints" / "average.pt")


SENTENCEPIECE = f"sentencepiece 0.1.95, not from sentencepiece {version('sentencepiece')}"
REFUSED = [  # what is done to a finished run of four updates, trainer.max_updates, the message
    (lambda folder: None, 2, "trainer.max_updates=2"),
    (unfinish, 2, "was already trained for 4 updates"),
    (of_other_version, 9, SENTENCEPIECE),
    (without_last, 9, "last.pt is missing, though it was saved at update 4"),
]


@pytest.mark.parametrize(("change", "max_updates", "message"), REFUSED)
def test_refused_start_changes_nothing(runs, finished_copy, change, max_updates, message):
    outputs, folder = finished_copy
    change(folder)
    before, has_results = run_outputs(folder), (folder / "results.json").exists()
    settings = [folder / "config.yaml", folder / "overrides.yaml"]
    texts = [path.read_bytes() for path in settings]
    output = runs.train(outputs, {**SHORT, "trainer.max_updates": max_updates}, code=1)
    assert message in output
    assert "Traceback" not in output
    assert run_outputs(folder) == before
    assert (folder / "results.json").exists() == has_results
    # that of other data is seen later
    assert change is of_other_version or [path.read_bytes() for path in settings] == texts
    # a successful run is not marked as failed
    if max_updates < 4:
        assert not list((runs.folder / outputs).rglob("error.json"))


def test_second_process_in_a_run_folder_is_refused(runs, finished_copy):
    outputs, folder = finished_copy
    with open(folder / ".lock", "a+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        output = runs.train(outputs, {**SHORT, "trainer.max_updates": 9}, code=1)
    assert "another process is training in" in output
    assert "Traceback" not in output
    assert run_outputs(folder) == run_outputs(runs.run_folder("short"))
    assert not (folder / "error.json").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model.d_ff": 48}, "does not fit the model"),
        ({"model.n_heads": 1}, "set model.n_heads=2"),
        ({"tokenizer": "bpe", "tokenizer.vocab_size": 60}, "tokenizer=given tokenizer.folder="),
    ],
)
def test_incompatible_origin_is_rejected(runs, origin, changes, message):
    output = runs.train("misfit", {**SHORT, **changes, "init_from": origin}, code=1)
    assert message in output
    assert str(origin) in output
