"""Names on the command line that Hydra only accepts in quotes."""

from __future__ import annotations

import lzma
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from omegaconf import OmegaConf

from command_line import CommandLine, assert_rejected, composer
from headwise.config.arguments import quoted
from headwise.config.data import (
    BuiltinTextConfig,
    DataConfig,
    ImageDataConfig,
    LabelledDataConfig,
    NoDataConfig,
    TextDataConfig,
)
from headwise.config.register import typed
from headwise.data.cache import prepared
from headwise.data.images import ImageCorpus
from headwise.data.sources.hub import HubSource
from headwise.data.sources.origins import _log_once, local_folder, log_paths
from headwise.data.sources.pictures import write_png
from headwise.errors import ConfigError
from headwise.runs.folder import ARCHIVE
from headwise.runs.record import Record, archived
from headwise.runs.results import Results
from headwise.tasks.check import checked_task
from headwise.tasks.stream.music import write_wav


def test_names_need_no_quotes(headwise: CommandLine, trained: Path, tmp_path: Path) -> None:
    folder = tmp_path / """Läufe=#1; 'beste' "a" [b] (c) {d} \\"""
    folder.symlink_to(trained.parent)
    text = tmp_path / "Übung.de"
    text.write_text("Hund sieht Haus\n", encoding="utf-8")
    result = headwise.ok("translate", f"run={folder / trained.name}", f"input={text}")
    assert result.out == headwise("translate", f"run={trained}", f"input={text}").out


TEXT = {"experiment_name", "tracker.tags"}


@pytest.mark.parametrize(
    ("argument", "expected"),
    [
        ("experiment_name=1e3", 'experiment_name="1e3"'),
        ("experiment_name=true,+5,on", 'experiment_name="true","+5",on'),
        ("+tracker.tags=[1_000, a, -.5]", '+tracker.tags=["1_000", a, "-.5"]'),
        ("experiment_name=1e3 a", "experiment_name=1e3 a"),
        ("tracker.tags=['1e3',\"a,2\"]", "tracker.tags=['1e3',\"a,2\"]"),
        ("seed=1e3", "seed=1e3"),
    ],
)
def test_numbers_in_text_are_quoted(argument: str, expected: str) -> None:
    assert quoted(argument, TEXT) == expected


def test_text_is_used_as_typed(headwise: CommandLine) -> None:
    text = {"experiment_name": "1e3", "tracker.group": "2024-01-05", "data.label": "False"}
    settings = ["data=labelled", "data.labels=[0,010,1_0]", *map("=".join, text.items())]
    shown = OmegaConf.create(headwise.ok("train", "--cfg", "job", *settings).out)
    assert {key: OmegaConf.select(shown, key) for key in text} == text
    assert shown.data.labels == ["0", "010", "1_0"]


def write_experiment(folder: Path, text: str) -> list[str]:
    """Write the yaml of an experiment and return the settings that use it."""
    (folder / "experiment").mkdir()
    path = folder / "experiment" / "mine.yaml"
    path.write_text(f"# @package _global_\n{text}\n", encoding="utf-8")
    return ["experiment=mine", "--config-dir", str(folder)]


YAMLS = {
    "no": ("data: {target: no}", "data.target must be text, got False (bool): put it in quotes"),
    "tags": ("tracker: {tags: [a, 010]}", "tracker.tags[1] must be text, got 8 (int)"),
    "null": ("experiment_name: null", "null is not text; put it in quotes"),
    "group": ("defaults: [override /tracker: null]", "tracker is missing: set tracker=…"),
}


@pytest.mark.parametrize("name", YAMLS)
def test_numbers_in_text_of_a_yaml_are_rejected(
    name: str, headwise: CommandLine, tmp_path: Path
) -> None:
    text, message = YAMLS[name]
    settings = write_experiment(tmp_path, text)
    assert_rejected(headwise("train", *settings, "data=wmt14_en_de", "dry_run=true"), 2, message)


def test_text_of_a_yaml_may_be_quoted_or_another_key(headwise: CommandLine, tmp_path: Path) -> None:
    settings = write_experiment(tmp_path, "experiment_name: '1e3'\ntracker: {group: '${seed}'}")
    shown = headwise.ok("train", *settings, "--cfg", "job", "--resolve").out
    assert "experiment_name: '1e3'\n" in shown
    assert "  group: '1'\n" in shown


def test_argument_of_a_class_can_be_left_out(headwise: CommandLine) -> None:
    shown = headwise.ok("train", "~scheduler.warmup_updates", "--cfg", "job").out
    assert "scheduler:\n  _target_: headwise.train.schedule.InverseSqrt\ntrainer:" in shown


@pytest.mark.parametrize(
    "line",
    ["tracker=none --cfg job --package tracker seed=3", "tracker=none -c job seed=3 -p tracker",
     "-c job -p tracker tracker=none seed=3"],
)  # fmt: skip
def test_options_are_anywhere_among_the_settings(line: str, headwise: CommandLine) -> None:
    assert "kind: none" in headwise.ok("train", *line.split()).out


@pytest.mark.parametrize(
    "argument",
    ["a=b", "a=1,2", "a=[ü,b]", 'a="ü"', "a='ü=1'", "a=null", "a=${b}", "--help", "a=x/y z", "~a",
     "--config-dir=ä", "a=\t5", "a=choice(1,2)", "a=glob(*)", "+a=1.5e-3", "a@b=c"],
)  # fmt: skip
def test_hydra_syntax_is_unchanged(argument: str) -> None:
    assert quoted(argument) == argument


KINDS = {
    "text": "task=density", "labelled": "task=classification", "music": "task=density",
    "images": "task=density data.shape=[4,4,3] data.window=48", "builtin_text": "task=density",
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_name_of_data_is_no_path(kind: str, headwise: CommandLine, tmp_path: Path) -> None:
    for split in ("train", "valid", "test"):
        ending = {"music": "/a.wav", "images": "/a.png", "text": ".txt"}.get(kind, ".tsv")
        path = tmp_path / "data" / f"{split}{ending}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("text\tlabel\nx\tyes\ny\tno\n")
        if kind == "images":
            write_png(path, np.zeros((4, 4, 3), np.uint8))
        elif kind == "music":
            write_wav(path, np.zeros(100, np.float32), 12_000)
    settings = [f"data={kind}", "tokenizer=byte", *KINDS[kind].split()]
    settings += [] if kind == "builtin_text" else [f"data.dir={tmp_path}/data"]
    result = headwise("prepare", *settings, f"paths.cache={tmp_path}/a/cache", "data.name=../../x")
    assert_rejected(result, 2, "data.name", "'../../x")
    assert not [*tmp_path.glob("x*"), *tmp_path.glob("a/x*")]


NAMES: dict[str, Callable[[], object]] = {
    "data.folder": lambda: local_folder(TextDataConfig(folder="../x")),
    "config_name": lambda: HubSource("owner/name", {}, Path(), "../x"),
    "repo": lambda: HubSource("archive", {"test": "test"}, Path(), "c").identity("test"),
    "members": lambda: ImageCorpus(
        ImageDataConfig(window=3072, splits={"test": [{"archive": "a", "names": "../x"}]}), Path()
    ),
    "split": lambda: Results.of({"scores": {"../x": {}}}, Path("results.json")),
    "run": lambda: list(archived(Path("archive"), Record)),
    "a split": lambda: prepared(Path(), "name", {"splits": {"../x": ""}}, lambda folder: {}),
}


@pytest.mark.parametrize("key", NAMES)
def test_names_in_settings_and_files_are_no_paths(
    key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HEADWISE_DATA", str(tmp_path))
    (tmp_path / "archive").mkdir()
    with lzma.open(tmp_path / "archive" / ARCHIVE, "wt") as file:
        file.write('{"format": 1, "run": "../x"}\n')
    with pytest.raises(ConfigError, match=rf"{key}.*(\.\./|archive)"):
        NAMES[key]()


@pytest.mark.parametrize("key", ["paths.cache", "paths.outputs", "data.dir", "init_from"])
def test_name_that_is_not_utf8_is_refused_before_training(key: str) -> None:
    with composer() as make:
        config = typed(make(["data=text", "task=density"]))
    value = os.fsdecode(b"/caf\xe9")
    group, _, name = key.rpartition(".")
    setattr(getattr(config, group) if group else config, name, value)
    with pytest.raises(ConfigError, match=rf"^{re.escape(key)} must be UTF-8"):
        checked_task(config)


@pytest.mark.parametrize(
    ("data", "paths"),
    [
        (TextDataConfig(files={"train": "/a", "valid": ["b", "/c"]}), ["/a", "b", "/c"]),
        (TextDataConfig(dir="/d", files={"train": "x", "valid": "../y"}), ["/d", "/d/../y"]),
        (TextDataConfig(file="/f"), ["/f"]),
        (LabelledDataConfig(files={"train": "sub/x"}), ["sub/x"]),
        (DataConfig(dir="/d", files={"train": ["x", "/y"]}), ["/d", "/y"]),
        (ImageDataConfig(folder="mine"), ["HOME/mine"]),
        (DataConfig(files={"train": ["in_an_archive"]}), []),
        (TextDataConfig(files={"train": "in.txt"}, downloads=[{"file": "x.zip"}]), []),
        (BuiltinTextConfig(), []),
        (NoDataConfig(), []),
    ],
)
def test_each_path_of_a_run_is_logged_once(
    data: Any,
    paths: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    (tmp_path / "mine").mkdir()
    monkeypatch.setenv("HEADWISE_DATA", str(tmp_path))
    _log_once.cache_clear()
    with caplog.at_level("INFO"):
        log_paths(data)
        log_paths(data)
    shown = [record.getMessage().partition(" of the run: ")[2] for record in caplog.records]
    assert shown == [path.replace("HOME", str(tmp_path)) for path in paths]
