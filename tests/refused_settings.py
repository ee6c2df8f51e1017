"""Tables of settings that commands refuse, and commands up to that refusal, in this process.

A row has the settings, the key, words of the cure, and the exit code unless it is 2, in columns
that two spaces or more divide. It changes a copy of a config that is composed once, which takes
10 ms; a command line takes 200.
"""

import copy
import re
from functools import cache

import pytest
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf

from command_line import composer
from headwise.cli import CONFIGS, command_function, report_error
from headwise.config import keys
from headwise.config.arguments import checked_arguments
from headwise.config.folders import config_dir, group_choices
from headwise.config.register import KINDS, typed
from headwise.tasks.check import checked_task, resolve


def table(path):
    """The rows of a file: command, settings of its part, then the columns of the row."""
    rows, command, base = [], "", ()
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
