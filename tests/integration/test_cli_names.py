"""Names and paths in settings, and the examples of the help of every command."""

import lzma
import operator
import os
import re
import shlex
import shutil
from pathlib import Path
from unittest.mock import Mock

import pytest
from omegaconf import OmegaConf

from command_line import assert_rejected, composer, write_sentence
from fake_corpora import corpus
from headwise.config.arguments import checked_arguments, quoted
from headwise.config.commands import SearchSelection, TableConfig
from headwise.config.data import (
    DataConfig,
    ImageDataConfig,
    LabelledDataConfig,
    NoDataConfig,
    TextDataConfig,
)
from headwise.config.keys import check_settings, with_changes
from headwise.config.register import KINDS, config_dir, typed
from headwise.config.schema import Config, DecodeConfig, WindowsConfig
from headwise.data.images import ImageCorpus
from headwise.data.sources.hub import Hub
from headwise.data.sources.origins import local_folder, log_paths
from headwise.errors import ConfigError
from headwise.files import machine_cache_dir
from headwise.runs.archive import archived
from headwise.runs.folder import ARCHIVE
from headwise.runs.record import Record
from headwise.runs.results import Results
from headwise.studies.study import read_study, selected
from headwise.tasks.check import checked_task
from headwise.tasks.data import Prepared, prepare


def test_names_need_no_quotes(headwise, trained, tmp_path):
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
        ("runs=[outputs/größe, a=b, c]", 'runs=["outputs/größe", "a=b", c]'),
        ("experiment_name=größe,klein", 'experiment_name="größe",klein'),
        ("data.files={train: ['ä', é ü]}", "data.files={train: ['ä', \"é ü\"]}"),
        ("seed=choice(ä,b)", 'seed=choice("ä",b)'),
    ],
)
def test_text_that_hydra_would_refuse_or_change_is_quoted(argument, expected):
    assert quoted(argument, TEXT) == expected


def test_text_is_used_as_typed(headwise):
    text = {"experiment_name": "1e3", "tracker.group": "2024-01-05", "data.label": "False"}
    settings = ["data=labelled", "data.labels=[0,010,1_0]", *map("=".join, text.items())]
    shown = OmegaConf.create(headwise.ok("train", "--cfg", "job", *settings).out)
    assert {key: OmegaConf.select(shown, key) for key in text} == text
    assert shown.data.labels == ["0", "010", "1_0"]


@pytest.mark.parametrize("text", ["a ${n} b ", "${oc.env:HOME}", 'ü, \\${n} "b"', "[a (b)", "1"])
def test_free_text_is_no_syntax_of_hydra(text):
    with composer() as make:
        for argument in (f"prompt={text}", f"""prompt='{text}'"""):
            assert make([quoted(argument)], "sample").prompt == text


def write_experiment(folder, text):
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
def test_numbers_in_text_of_a_yaml_are_rejected(name, headwise, tmp_path):
    text, message = YAMLS[name]
    settings = write_experiment(tmp_path, text)
    assert_rejected(headwise("train", *settings, "data=wmt14_en_de", "dry_run=true"), 2, message)


def test_text_of_a_yaml_may_be_quoted_or_another_key(headwise, tmp_path):
    settings = write_experiment(tmp_path, "experiment_name: '1e3'\ntracker: {group: '${seed}'}")
    shown = headwise.ok("train", *settings, "--cfg", "job", "--resolve").out
    assert "experiment_name: '1e3'\n" in shown
    assert "  group: '1'\n" in shown


def test_argument_of_a_class_can_be_left_out(headwise):
    shown = headwise.ok("train", "~scheduler.warmup_updates", "--cfg", "job").out
    assert "scheduler:\n  _target_: headwise.train.optim.InverseSqrt\ntrainer:" in shown


@pytest.mark.parametrize(
    "line",
    ["tracker=none --cfg job --package tracker seed=3", "tracker=none -c job seed=3 -p tracker",
     "-c job -p tracker tracker=none seed=3"],
)  # fmt: skip
def test_options_are_anywhere_among_the_settings(line, headwise):
    assert "track.base.Tracker" in headwise.ok("train", *line.split()).out


@pytest.mark.parametrize(
    "argument",
    ["a=b", "a=1,2", "a=['ü',b]", 'a="ü"', "a='ü=1'", "a=null", "a=${b}", "--help", "a=x/y z", "~a",
     "--config-dir=ä", "a=\t5", "a=choice(1,2)", "a=glob(*)", "+a=1.5e-3", "a@b=c"],
)  # fmt: skip
def test_hydra_syntax_is_unchanged(argument):
    assert quoted(argument) == argument


@pytest.mark.parametrize("kind", ["builtin_labelled", "builtin_text"])
def test_name_of_data_is_no_path(kind, tmp_path):
    with composer() as make:
        task = checked_task(typed(make([f"data={kind}", "data.name=../../x", "tokenizer=byte"])))
    with pytest.raises(ConfigError, match=r"data\.name .*'\.\./\.\./x"):
        task.prepare(task.open(tmp_path / "a" / "cache"))
    assert not [*tmp_path.glob("x*"), *tmp_path.glob("a/x*")]


MEMBERS = {"test": [{"archive": "a", "names": "../x"}]}
NAMES = {
    "data.folder": lambda: local_folder(TextDataConfig(folder="../x")),
    "config_name": lambda: Hub("owner/name", {}, Path(), "../x"),
    "repo": lambda: Hub("archive", {"test": "test"}, Path(), "c").identity("test"),
    "members": lambda: ImageCorpus(ImageDataConfig(window=3072, splits=MEMBERS), Path()),
    "split": lambda: Results.of({"scores": {"../x": {}}}, Path("results.json")),
    "run": lambda: list(archived(Path("archive"), Record)),
    "a split": lambda: prepare(Prepared, corpus(), None, {"../x": ""}, Mock(), Mock(), {}),
}


@pytest.mark.parametrize("key", NAMES)
def test_names_in_settings_and_files_are_no_paths(key, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HEADWISE_DATA", str(tmp_path))
    (tmp_path / "archive").mkdir()
    line = lzma.compress(b'{"format": 1, "run": "../x"}')
    (tmp_path / "archive" / ARCHIVE).write_bytes(line)
    with pytest.raises(ConfigError, match=rf"{key}.*(\.\./|archive)"):
        NAMES[key]()


@pytest.mark.parametrize("key", ["paths.cache", "paths.outputs", "data.dir", "init_from"])
def test_name_that_is_not_utf8_is_refused_before_training(key):
    with composer() as make:
        config = typed(make(["data=text", "task=density"]))
    *groups, name = key.split(".")
    setattr(operator.attrgetter(*groups)(config) if groups else config, name, os.fsdecode(b"\xe9"))
    with pytest.raises(ConfigError, match=rf"^{re.escape(key)} must be UTF-8"):
        checked_task(config)


@pytest.mark.parametrize(
    ("data", "paths"),
    [
        (lambda home: TextDataConfig(files={"a": f"{home}/a", "b": ["c", f"{home}/d"]}), "/a c /d"),
        (lambda home: TextDataConfig(dir=home, files={"a": "x", "b": "../y"}), " /../y"),
        (lambda home: TextDataConfig(file=f"{home}/f"), "/f"),
        (lambda home: LabelledDataConfig(files={"train": "sub/x"}), "sub/x"),
        (lambda home: DataConfig(dir=home, files={"train": ["x", f"{home}/y"]}), " /y"),
        (lambda home: ImageDataConfig(folder="mine"), "/mine"),
        (lambda home: DataConfig(files={"train": ["in_an_archive"]}), None),
        (lambda home: TextDataConfig(files={"a": "in.txt"}, downloads=[{"file": "x.zip"}]), None),
        (lambda home: NoDataConfig(), None),
    ],
)
def test_each_path_of_a_run_is_logged_once(data, paths, tmp_path, monkeypatch, caplog):
    (tmp_path / "mine").mkdir()
    monkeypatch.setenv("HEADWISE_DATA", str(tmp_path))
    data = data(str(tmp_path))
    with caplog.at_level("INFO"):
        log_paths(data, machine_cache_dir())
        log_paths(data, machine_cache_dir())
    shown = [record.getMessage().partition(" of the run: ")[2] for record in caplog.records]
    paths = [] if paths is None else paths.split(" ")
    assert [path.removeprefix(str(tmp_path)) for path in shown] == paths


EXAMPLE = re.compile(r"^ {8}(?:cat \S+ \| )?headwise (.+?)(?: > \S+)?$", re.MULTILINE)
HELP = [(config_dir() / f"{command}.yaml").read_text(encoding="utf-8") for command in KINDS]
EXAMPLES = [shlex.split(line) for text in HELP for line in EXAMPLE.findall(text)]
RUN = re.compile("scaling=|_file=a|input=text.de|FILE.md|export=")  # a second each, at most


@pytest.mark.parametrize("example", EXAMPLES, ids=" ".join)
def test_examples_of_help_are_valid(example, make):
    command, *arguments = example
    overrides = checked_arguments(arguments, command)
    if overrides[0] == "-m":  # the first job
        overrides = [override.partition(",")[0] for override in overrides[1:]]
    config = make(overrides, command)
    check_settings(config, command)
    settings = typed(config, KINDS[command])
    if isinstance(settings, Config):
        checked_task(settings)
    if isinstance(settings, SearchSelection):
        kind = WindowsConfig if settings.decode.get("min_context") else DecodeConfig
        with_changes(kind(), "decode", settings.decode)
    if isinstance(settings, TableConfig) and settings.study is not None:
        selected(read_study(settings.study), settings.rows, settings.columns)


def test_examples_of_help_run(headwise, run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("default/RUN", "default/OTHER", "variants/RUN"):
        shutil.copytree(run, f"outputs/{name}")
    write_sentence(tmp_path, "a")
    write_sentence(tmp_path, "text")
    for example in (one for one in EXAMPLES if RUN.search(" ".join(one))):
        headwise.ok(*example)
