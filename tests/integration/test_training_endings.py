"""How runs end, and what the same command does afterwards."""

from __future__ import annotations

import fcntl
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from command_line import read_json, write_corpus
from headwise.train.checkpoint import load_checkpoint
from training_runs import Runs, read_log, run_outputs

SHORT = {"trainer.max_updates": 4, "trainer.validate_every": 2, "trainer.save_every": 2}


@pytest.fixture(scope="module")
def short(runs: Runs) -> str:
    """A finished run of four updates."""
    runs.train("short", SHORT)
    return "short"


@pytest.fixture
def copied(runs: Runs, short: str, request: pytest.FixtureRequest) -> tuple[str, Path]:
    """Outputs with a copy of it, and the copy's folder."""
    outputs: str = request.node.name
    shutil.copytree(runs.folder / short, runs.folder / outputs)
    return outputs, runs.run_folder(outputs)


@pytest.fixture(scope="module")
def origin(runs: Runs, short: str) -> Path:
    """A finished run in a place of its own."""
    return Path(shutil.copytree(runs.run_folder(short), runs.folder / "origin" / "run"))


def test_a_run_can_be_lengthened(runs: Runs, copied: tuple[str, Path]) -> None:
    """In the same folder, on the way it would have gone."""
    longer, folder = copied
    changes = {**SHORT, "trainer.max_updates": 6}
    runs.train(longer, changes)
    assert read_json(folder / "results.json")["updates"] == 6
    runs.train("six", changes)
    last = [load_checkpoint(f / "checkpoints/last.pt") for f in (folder, runs.run_folder("six"))]
    assert all(torch.equal(v, last[1]["model"][k]) for k, v in last[0]["model"].items())
    updates = [line["update"] for line in read_log(folder / "metrics.jsonl") if "train/nll" in line]
    assert updates == [3, 4, 6]  # the last of a run is always told


def test_a_lengthened_run_averages_what_one_of_that_length_does(runs: Runs) -> None:
    """Though its former end lay between the updates at which it is saved."""
    changes = {**SHORT, "trainer.keep": 3, "trainer.average": 3}
    for length in (3, 6):
        runs.train("by-steps", {**changes, "trainer.max_updates": length})
    runs.train("at-once", {**changes, "trainer.max_updates": 6})
    kept = [
        sorted(path.name for path in (runs.run_folder(outputs) / "checkpoints").glob("update_*"))
        for outputs in ("by-steps", "at-once")
    ]
    assert kept[0] == kept[1] == [f"update_{update:08d}.pt" for update in (2, 4, 6)]


def test_early_stopping_is_an_end(runs: Runs) -> None:
    """With a rate of nearly nothing no validation is better than the first."""
    changes: dict[str, Any] = {
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
    before = run_outputs(runs.run_folder(outputs))
    again = runs.train(outputs, changes)
    assert "this run is finished" in again
    assert run_outputs(runs.run_folder(outputs)) == before


def test_what_is_scored_is_what_is_kept(runs: Runs) -> None:
    """The average where it validated better, else the best: results tell which, and its α."""
    changes = {**SHORT, "trainer.average": 2, "trainer.monitor": "loss"}
    runs.train("average", changes)
    folder = runs.run_folder("average")
    results = read_json(folder / "results.json")
    there = (folder / "checkpoints" / "average.pt").is_file()
    assert results["weights"] == ("average" if there else "best")
    kept = load_checkpoint(folder / "checkpoints" / f"{results['weights']}.pt")["model"]
    (logit,) = (v for k, v in kept.items() if k.endswith("alpha_logit") and "cross" in k)
    expected = 1.01 + 0.99 * torch.sigmoid(logit)
    assert results["alpha"]["cross"][0] == pytest.approx(expected.tolist(), rel=1e-6)


def test_a_folder_has_one_process(runs: Runs) -> None:
    runs.train("taken", SHORT, signal_at=("record", 2, 15), code=143)
    folder = runs.run_folder("taken")
    with open(folder / ".lock", "a+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        before = run_outputs(folder)
        refused = runs.train("taken", SHORT, code=1)
        assert "another process is training in" in refused
        assert "Traceback" not in refused
        assert run_outputs(folder) == before
        assert not (folder / "error.json").exists()
    runs.train("taken", SHORT)


def test_the_same_command_makes_what_a_finished_run_lacks(
    runs: Runs, copied: tuple[str, Path]
) -> None:
    outputs, folder = copied
    before = run_outputs(folder)
    left = [folder / ".results.json.4711.tmp", folder / "checkpoints" / "update_00000001.pt"]
    for lost in ("figures", "hypotheses"):
        shutil.rmtree(folder / lost)
        for path in left:  # by a killed process
            shutil.copy(folder / "checkpoints" / "update_00000002.pt", path)
        runs.train(outputs, SHORT)
        assert (folder / lost).is_dir()
        assert run_outputs(folder) == before
        assert not any(path.exists() for path in left)


def test_other_text_is_another_run(runs: Runs, copied: tuple[str, Path]) -> None:
    outputs, first = copied
    before = run_outputs(first)
    other = runs.folder / "other-text"
    write_corpus(other, seed=9)
    runs.train(outputs, {**SHORT, "data.dir": other})
    folders = set(first.parent.iterdir())
    assert len(folders) == 2
    assert run_outputs(first) == before
    (second,) = folders - {first}
    assert first.name.rpartition("-")[0] == second.name.rpartition("-")[0]


def test_a_finished_run_scores_another_test_set(runs: Runs, copied: tuple[str, Path]) -> None:
    for side in ("de", "en"):
        shutil.copy(runs.text / f"valid.{side}", runs.text / f"test_more.{side}")
    outputs, folder = copied
    checkpoint = (folder / "checkpoints" / "last.pt").read_bytes()
    before = read_json(folder / "results.json")["scores"]
    runs.train(outputs, {**SHORT, "data.test": "[test_more]"})
    after = read_json(folder / "results.json")["scores"]
    assert set(after) == {*before, "test_more"}
    assert {name: after[name] for name in before} == before
    assert after["test_more"] == after["valid"]
    assert (folder / "checkpoints" / "last.pt").read_bytes() == checkpoint
    for side in ("de", "en"):
        (runs.text / f"test_more.{side}").unlink()


def test_fewer_updates_than_done_are_refused(runs: Runs, copied: tuple[str, Path]) -> None:
    outputs, folder = copied
    refused = runs.train(outputs, {**SHORT, "trainer.max_updates": 2}, code=1)
    assert "trainer.max_updates=2" in refused
    # nor of one that was begun: it would pass for a finished run of fewer updates
    (folder / "results.json").unlink()
    refused = runs.train(outputs, {**SHORT, "trainer.max_updates": 2}, code=1)
    assert "was already trained for 4 updates" in refused
    assert not (folder / "results.json").exists()
    # a run that went well is no failed one because too little was asked of it
    assert not list((runs.folder / outputs).rglob("error.json"))


def test_pieces_of_another_version_are_refused(runs: Runs, copied: tuple[str, Path]) -> None:
    outputs, folder = copied
    path = folder / "data.json"
    data = read_json(path)
    here = f"sentencepiece {data['versions']['sentencepiece']}"
    data["versions"]["sentencepiece"] = "0.1.95"
    path.write_text(json.dumps({**data, "fingerprint": "of old"}))
    refused = runs.train(outputs, {**SHORT, "trainer.max_updates": 9}, code=1)
    assert "sentencepiece 0.1.95, not of" in refused
    assert here in refused


def test_a_checkpoint_that_is_gone_is_missed(runs: Runs, copied: tuple[str, Path]) -> None:
    outputs, folder = copied
    (folder / "checkpoints" / "last.pt").unlink()
    shutil.copy(folder / "checkpoints" / "best.pt", folder / "checkpoints" / "average.pt")
    kept = ("metrics.jsonl", "config.yaml", "overrides.yaml", "checkpoints/average.pt")
    before = [(folder / name).read_bytes() for name in kept]
    refused = runs.train(outputs, {**SHORT, "trainer.max_updates": 9}, code=1)
    assert "last.pt is missing, though it was saved at update 4" in refused
    assert [(folder / name).read_bytes() for name in kept] == before


def test_starting_from_another_run(runs: Runs, origin: Path) -> None:
    changes = {**SHORT, "init_from": origin, "trainer.max_updates": 1, "optimizer.lr": 1e-30}
    ended = runs.train("from", {**changes, "activation": "gelu"})
    assert "trained with other settings: activation._target_=headwise.model." in ended
    own = runs.run_folder("from")
    weights = load_checkpoint(own / "checkpoints" / "last.pt")
    start = load_checkpoint(origin / "checkpoints" / "best.pt")["model"]
    for name, value in weights["model"].items():
        torch.testing.assert_close(value, start[name], rtol=0, atol=1e-12)
    assert weights["state"]["update"] == 1


def test_what_an_attention_brings_starts_anew(runs: Runs, origin: Path) -> None:
    frozen = {**SHORT, "trainer.max_updates": 1, "optimizer.lr": 1e-30}
    bare = runs.train("bare", {**frozen, "attention": "softmax", "init_from": origin})
    assert "not in this model: normaliser.alpha_logit" in bare
    between = runs.run_folder("bare")
    brings = {"attention": "alpha_entmax", "scaling": "length", "model.register_tokens": 2}
    full = runs.train("full", {**frozen, **brings, "init_from": between})
    new = "normaliser.alpha_logit, scaling.beta, scaling.gamma, source_embedding.registers.weight"
    assert f"newly initialised, not in its checkpoint: {new}" in full
    start, there, here = (
        load_checkpoint(folder / "checkpoints" / "best.pt")["model"]
        for folder in (origin, between, runs.run_folder("full"))
    )
    assert there.keys() == {name for name in start if "normaliser" not in name}
    for name, value in there.items():
        torch.testing.assert_close(value, start[name], rtol=0, atol=1e-12)
        torch.testing.assert_close(here[name], start[name], rtol=0, atol=1e-12)


def test_fine_tuning_with_the_origins_tokenizer(runs: Runs, origin: Path, tmp_path: Path) -> None:
    write_corpus(tmp_path / "other", n_train=60, seed=7)
    changes = {**SHORT, "data.dir": tmp_path / "other", "init_from": origin}
    given = {"tokenizer": "given", "tokenizer.folder": origin}
    moved = tmp_path / "moved"
    shutil.copytree(origin, moved)
    ended = runs.train("tuned", {**changes, **given})
    assert "other settings" not in ended
    own = runs.run_folder("tuned")
    assert (own / "tokenizer.model").read_bytes() == (origin / "tokenizer.model").read_bytes()
    # it lies elsewhere: the same run, which is finished; and without it, another
    again = runs.train("tuned", {**changes, **given, "tokenizer.folder": moved})
    assert "this run is finished" in again
    assert runs.run_folder("tuned") == own
    # the run stands alone
    (moved / "tokenizer.model").unlink()
    refused = runs.train("tuned", {**changes, **given, "tokenizer.folder": moved}, code=2)
    assert "tokenizer.folder=" in refused


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"model.d_ff": 48}, "does not fit the model"),
        ({"model.n_heads": 1}, "set model.n_heads=2"),
        ({"tokenizer": "bpe", "tokenizer.vocab_size": 60}, "tokenizer=given tokenizer.folder="),
    ],
)
def test_misfitting_origins(runs: Runs, origin: Path, changes: dict[str, Any], told: str) -> None:
    refused = runs.train("misfit", {**SHORT, **changes, "init_from": origin}, code=1)
    assert told in refused
    assert str(origin) in refused
