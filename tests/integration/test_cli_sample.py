"""`headwise sample`, and the samples of validations."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from command_line import CommandLine, assert_rejected, run_folders, write_text_corpus
from headwise.track.base import Tracker
from headwise.train.checkpoint import load_checkpoint

WINDOW = 16
TRAINING = [
    "data=text", f"data.window={WINDOW}", "model=tiny", "model.layers=1", "model.d_model=16",
    "model.n_heads=2", "model.d_ff=32", "trainer.max_tokens=64", "trainer.max_updates=8",
    "trainer.validate_every=4", "trainer.save_every=4", "trainer.log_every=4",
    "trainer.average=0", "trainer.head_sentences=0", "trainer.precision=fp32",
    "scheduler.warmup_updates=4", "tracker=none",
]  # fmt: skip


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = write_text_corpus(tmp_path_factory.mktemp("text"))
    return [*TRAINING, f"data.dir={folder}", f"paths.cache={folder}/cache", "data.test=[]"]


@pytest.fixture
def run(headwise: CommandLine, text: list[str], tmp_path: Path) -> Path:
    headwise.ok("train", *text, f"paths.outputs={tmp_path}")
    return run_folders(tmp_path)[0]


def numbered(written: str) -> dict[int, str]:
    parts = re.split(r"^==== sample (\d+) ====\n", written, flags=re.M)[1:]
    return dict(zip(map(int, parts[::2]), parts[1::2], strict=True))


def test_samples_are_printed_and_written(headwise: CommandLine, run: Path, tmp_path: Path) -> None:
    options = (f"run={run}", "prompt=Häus", "length=40", "seed=3")
    printed = headwise.ok("sample", *options, "n=5", "batch_size=2").out
    written = (run / "samples" / "best-seed3-prompt.txt").read_bytes().decode()
    assert printed == written
    samples = numbered(written)
    assert list(samples) == [1, 2, 3, 4, 5]
    assert all(sample.startswith("Häus") and len(sample) > 20 for sample in samples.values())
    assert len(set(samples.values())) == 5
    prompt, output = tmp_path / "prompt.txt", tmp_path / "out.txt"
    prompt.write_text("Häus", encoding="utf-8")
    from_file = (options[0], f"prompt_file={prompt}", *options[2:], f"output={output}")
    headwise.ok("sample", *from_file, "n=3", "max_tokens=1")
    assert numbered(output.read_bytes().decode()) == {k: samples[k] for k in (1, 2, 3)}
    reader, writer = os.pipe()
    os.write(writer, b"H\xc3\xa4us")
    os.close(writer)
    from_pipe = (options[0], f"prompt_file=/dev/fd/{reader}", *options[2:], "output=-")
    assert numbered(headwise.ok("sample", *from_pipe, "n=1").out) == {1: samples[1]}
    short = headwise.ok("sample", f"run={run}", "n=1", "precision=fp32", "top_k=3", "top_p=0.9")
    assert len(numbered(short.out)[1]) <= WINDOW + 1


def test_validations_write_samples_and_leave_the_training_alone(
    headwise: CommandLine, text: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables: list[Any] = []
    monkeypatch.setattr(Tracker, "log_table", lambda _, *table: tables.append(table))
    weights = []
    for n_samples in (0, 3):
        outputs = tmp_path / str(n_samples)
        given = (f"paths.outputs={outputs}", f"trainer.valid_samples={n_samples}")
        headwise.ok("train", *text, *given)
        (run,) = run_folders(outputs)
        weights.append(load_checkpoint(run / "checkpoints" / "last.pt")["model"])
        files = sorted((run / "samples").glob("*")) if n_samples else []
        assert (run / "samples").exists() == bool(n_samples)
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    assert [file.name for file in files] == ["update_00000004.txt", "update_00000008.txt"]
    assert [(name, columns) for name, columns, _ in tables] == [
        ("samples", ("update", "sample", "text"))
    ] * 2
    for file, (_, _, rows) in zip(files, tables, strict=True):
        update = int(file.stem.removeprefix("update_"))
        samples = numbered(file.read_bytes().decode())
        assert list(samples) == [1, 2, 3]
        assert rows == [(update, number, text[:-1]) for number, text in samples.items()]


BAD = {
    "n=0": "n must be at least 1, got 0",
    "batch_size=0": "batch_size must be at least 1",
    "length=0": "length must be null or at least 1",
    "temperature=0": "temperature must be above 0 (top_k=1 is greedy)",
    "top_k=0": "top_k must be",
    "top_p=1.5": "top_p must be",
    "precision=bf16": "precision must be one of fp32, fp64; got 'bf16'",
    "prompt=": "prompt= is an empty prompt",
    "prompt=aaaaaaaaaaaaaaaa": "the prompt has 16 tokens; at most 15 fit",
    "prompt_file=nowhere.txt": "prompt_file=nowhere.txt cannot be read",
    "prompt_file=latin.txt": "prompt_file=latin.txt is not UTF-8",
    "prompt=a prompt_file=latin.txt": "prompt_file must be null with prompt=",
    "prompt_split=valid": "prompt_split must be null with text; set prompt or prompt_file",
    "prompt=Haus prompt_length=5": "prompt_length must be at most 4, the tokens of the prompt, got",
    "output=.": "output=. is a folder",
    "output=no/such.txt": "folder",
    "temprature=1": "temperature",
}


def test_bad_input_is_refused_in_one_message(
    headwise: CommandLine, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("latin.txt").write_bytes("Häuschen".encode("latin-1"))
    for bad, message in BAD.items():
        ended = headwise("sample", f"run={run}", *bad.split())
        assert_rejected(ended, ended.code or -1, message)


def test_translation_draws_no_samples(headwise: CommandLine, trained: Path) -> None:
    ended = headwise("sample", f"run={trained}")
    assert_rejected(ended, 1, "is a run of task=translation: headwise sample does not apply")
