"""Tables of settings that commands refuse, and commands up to that refusal, in this process.

A row has the settings, the key, words of the cure, and the exit code unless it is 2, in columns
that two spaces or more divide. It changes a copy of a config that is composed once, which takes
10 ms; a command line takes 200.
"""

import re

import pytest

from composed_configs import changed
from headwise.cli import CONFIGS, command_function, report_error
from headwise.config import keys
from headwise.config.arguments import checked_arguments
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
            command_function(command)(typed(config, KINDS[name]))
    except Exception as error:  # noqa: BLE001 - as the command line does
        return report_error(error, name, is_composed)
    return 0
