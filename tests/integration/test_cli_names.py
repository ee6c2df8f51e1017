"""Names on the command line that Hydra only accepts in quotes."""

from __future__ import annotations

from pathlib import Path

import pytest
from omegaconf import OmegaConf

from command_line import CommandLine, assert_rejected
from headwise.config.arguments import quoted


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
