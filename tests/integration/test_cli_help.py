"""The examples of the help of every command: all are checked, the cheap ones are run."""

import re
import shlex
import shutil

import pytest

from command_line import write_sentence
from headwise.config.arguments import checked_arguments
from headwise.config.commands import SearchSelection, TableConfig
from headwise.config.folders import config_dir
from headwise.config.keys import check_settings, with_changes
from headwise.config.register import KINDS, typed
from headwise.config.schema import Config, DecodeConfig, WindowsConfig
from headwise.studies.study import read_study, selected
from headwise.tasks.check import checked_task

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
