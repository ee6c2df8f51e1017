"""Wrong settings are refused, before data is read, by a message with the key and the cure.

A row of `refusals/*.txt` has the settings, the key and words of the cure. It changes a copy of a
config that is composed once, which takes 10 ms; a command line takes 200.
"""

import copy
import re
from functools import cache
from pathlib import Path

import pytest
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf

from command_line import CommandResult, assert_rejected, composer
from headwise.cli import CONFIGS, command_function, report_error
from headwise.config import keys
from headwise.config.arguments import checked_arguments
from headwise.config.folders import config_dir, group_choices
from headwise.config.register import KINDS, typed
from headwise.tasks.check import checked_task, resolve


def table(name):
    """The rows of a table: command, settings of its part, then the columns of the row."""
    rows, command, base = [], "", ()
    path = Path(__file__).parent / "refusals" / name
    for line in filter(None, path.read_text(encoding="utf-8").splitlines()):
        if line[0] == "[":
            command, *base = line.strip("[]").split()
        elif line[0] != "#":
            settings, *expected = re.split("  +", line)
            rows.append(
                pytest.param(command, tuple(base), settings, expected, id=f"{command} {settings}")
            )
    return rows


@cache
def composed(config_name, overrides):
    with composer() as make:
        return make(overrides, config_name)


@cache
def choice(group, name):
    """The content of a yaml of a group; None if it chooses others, or has a schema."""
    if group not in keys.OPEN_GROUPS or name not in group_choices(group):
        return None
    node = OmegaConf.load(config_dir() / group / f"{name}.yaml")
    return None if "defaults" in node else node


def changed(config_name, base, arguments):
    """The config that Hydra composes, of a cached one where only choices and values differ."""
    values, nodes, others = [], {}, []
    for argument in OverridesParser.create().parse_overrides(arguments):
        group, site = argument.key_or_group, argument.package
        is_choice = (config_dir() / group).is_dir() and isinstance(argument.value(), str)
        node = choice(group, argument.value()) if is_choice else None
        if node is not None and OmegaConf.select(composed(config_name, base), site or group):
            nodes[site or group] = node
        else:
            (others if is_choice else values).append(argument)
    # one config for all rows of a part, and one for each choice of several yamls
    config = copy.deepcopy(composed(config_name, (*base, *(o.input_line for o in others))))
    for key, node in nodes.items():
        OmegaConf.update(config, key, node, merge=False)
    ConfigLoaderImpl._apply_overrides_to_config(values, config)
    return config


def refused(command, base, arguments, cache):
    """Run a command until it refuses the settings; print the message and return the exit code."""
    name, is_composed = CONFIGS.get(command, command), False
    try:
        config = changed(name, base, checked_arguments(arguments, name))
        is_composed = True
        keys.check_settings(config, name)
        if command == "train":
            task = checked_task(typed(config))
            resolve(task)
            task.open(cache)
        else:
            command_function(command)(typed(config, KINDS[name]), None)
    except Exception as error:  # noqa: BLE001 - as the command line does
        return report_error(error, name, is_composed)
    return 0


@pytest.mark.parametrize(
    ("command", "base", "settings", "expected"), [*table("settings.txt"), *table("commands.txt")]
)
def test_settings_are_refused(
    command, base, settings, expected, trained, headwise, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    files = sorted(trained.parent.rglob("*"))
    places = {"RUN": str(trained), "TEXT": str(trained.parents[2] / "text"), "LONG": "ä" * 128}

    def filled(text):
        return re.sub("RUN|TEXT|LONG", lambda word: places[word[0]], text)

    arguments = filled(settings).split()
    if command == "line":
        result = headwise(*arguments)
    else:
        result = CommandResult(
            refused(command, base, arguments, tmp_path / "cache"), *capsys.readouterr()
        )
    key, cure, *code = map(filled, expected)
    assert_rejected(result, int(code[0]) if code else 2, key, cure)
    assert sorted(trained.parent.rglob("*")) == files
    assert not (tmp_path / "outputs").exists()
