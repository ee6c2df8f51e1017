"""The arguments of a command line: checks, quotes, and the order that Hydra needs."""

from __future__ import annotations

import re
import sys
from collections.abc import Container, Sequence
from contextlib import suppress
from itertools import pairwise

from headwise.config.keys import OPEN_GROUPS, text_keys
from headwise.config.register import group_choices
from headwise.config.schema import SITE_GROUPS
from headwise.errors import ConfigError

HYDRA_OPTIONS = {
    "--help", "--hydra-help", "--version", "--cfg", "--resolve", "--package", "--multirun",
    "--info", "--shell-completion", "--config-path", "--config-name", "--config-dir",
    "--experimental-rerun",
}  # fmt: skip
WITH_VALUE = {
    "-c", "--cfg", "-p", "--package", "-cp", "--config-path", "-cn", "--config-name", "-cd",
    "--config-dir", "--experimental-rerun",
}  # fmt: skip
INFO = ("-i", "--info")  # their value can be left out
# What Hydra would read as a number or truth value, in a value or list without quotes.
NUMBER = re.compile(
    r"((?:^|[\[,]) *)(true|false|[-+]?(?:nan|inf|[\d_.]+(?:e[-+]?[\d_]+)?))(?= *(?:$|[\],]))", re.I
)
# An element of a list, mapping or sweep.
ELEMENT = re.compile(r"""[^][{}(),:\s"'](?:[^][{}(),:]*[^][{}(),:\s])?|"[^"]*"|'[^']*'""")
FREE_TEXT = ("baseline", "prompt", "sentence", "where")  # keys whose values are no syntax of Hydra
# Key, or choice as group=choice, of an earlier version -> what to do instead.
REMOVED = {
    "activation=silu": "use activation=gelu",
    "decode.external": "run the command on the files in hypotheses/ of the run",
    "decode.method": "use decode=greedy or decode.beam=1",
    "experiment=demo_length": "use experiment=length/copy",
    "experiment=nanogpt": "use experiment=demo_text",
    "hydra/launcher=joblib": "use hydra/launcher=submitit_local, a process per job",
    "paths=default": "set paths.outputs and paths.cache",
    "task.whole_words": "task=masked_lm chooses single tokens",
    "tracker.kind": "use tracker=wandb, tracker=tensorboard or tracker=none",
    "trainer.gradient_sum": "gradients are summed while the backward pass runs",
}
ENVIRONMENT = ("hydra.job.env_set", "hydra.job.env_copy")  # variables of jobs


def quoted(argument: str, text: Container[str] = ()) -> str:
    """Quote the value of `key=value` if Hydra cannot parse it: non-ASCII letters, = and the like.

    Of lists, mappings and sweeps each such element is quoted. Values that Hydra parses are
    unchanged, except for numbers in keys of `text`, where 1e3 would become 1000.0, and free text.
    """
    key, equals, value = argument.partition("=")
    if key in FREE_TEXT and value != "null":
        return f"{key}=" + _in_quotes(re.sub(r"(\\*)\$\{", r"\1\1\\${", value), is_text=True)
    if key.lstrip("+") in text and not set(value).intersection("\"'{($"):
        value = NUMBER.sub(r'\1"\2"', value)
        argument = f"{key}{equals}{value}"
    if not equals or key.startswith("-") or (whole := _in_quotes(value)) == value:
        return argument
    if value.startswith(("[", "{")) or "," in value:
        whole = ELEMENT.sub(lambda element: _in_quotes(element[0]), value)
    return f"{key}={whole}"


def _in_quotes(value: str, is_text: bool = False) -> str:
    """A value in quotes; unchanged if Hydra can parse it, text only if it has quotes."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    with suppress(HydraException):
        OverridesParser.create().parse_override(f"key={value}")
        if not is_text or value.startswith(('"', "'")):
            return value
    escaped = re.sub(r'(\\*)("|\Z)', lambda m: m[1] * 2 + ("\\" + m[2] if m[2] else ""), value)
    return f'"{escaped}"'


def _separated(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """The settings, and the options of Hydra with their values."""
    settings: list[str] = []
    options: list[str] = []
    for before, argument in pairwise(["", *arguments]):
        is_value = before in WITH_VALUE or (before in INFO and "=" not in argument)
        (options if is_value or argument.startswith("-") else settings).append(argument)
    return settings, options


def checked_arguments(arguments: Sequence[str], config_name: str) -> list[str]:
    """The arguments as Hydra parses them: options and quoted settings, not mixed.

    Raises:
        ConfigError: an argument that is not key=value, an unknown option, or a removed key.
    """
    # Hydra's --run is its default; in commands with a key `run`, it means the key
    known = HYDRA_OPTIONS | ({"--run"} if config_name == "train" else set())
    settings, options = _separated(arguments)
    has_own_choices = any(re.match("(-cd|--config-dir)(=|$)", option) for option in options)
    for before, argument in pairwise(["", *arguments]):
        name, _, value = argument.partition("=")
        key = name.lstrip("+~").removeprefix("--").replace("-", "_")
        if argument != (printable := argument.encode(errors="replace").decode()):
            encoding = sys.getfilesystemencoding()
            advice = "rename the file" if encoding == "utf-8" else "set PYTHONUTF8=1"
            raise ConfigError(f"{printable} is not {encoding.upper()}; {advice}")
        if argument in settings and "=" not in argument and not argument.startswith("~"):
            raise ConfigError(_not_a_setting(before, argument))
        for removed, instead in REMOVED.items():
            group, _, choice = removed.partition("=")
            is_choice = key == group and choice in value.split(",")
            if f"{key}.".startswith(f"{removed}.") or (is_choice and not has_own_choices):
                raise ConfigError(f"{removed} was removed: {instead}")
        if name.lstrip("+~").startswith(ENVIRONMENT):
            raise ConfigError(
                f"{name} would be written to files, with its secrets; set the variable in the "
                "shell: jobs inherit it"
            )
        group, dot, _ = key.partition(".")
        # an argument of a class can be left out, as those that an experiment has for another one
        is_argument = bool(dot) and group in OPEN_GROUPS
        if name.startswith("~") and not (is_argument or key.startswith("hydra")):
            raise ConfigError(f"{name}: a key cannot be removed; set {key}=… instead")
        if name.startswith("--") and name not in known:
            raise ConfigError(
                f"{argument} is not known; set keys as key=value: {key}={value or '…'}"
            )
    text = text_keys(config_name)
    settings = [quoted(setting, text) for setting in settings]
    # --info would take a setting for its value
    return [*settings, *options] if set(INFO) & set(options) else [*options, *settings]


def accepted_before_jobs(arguments: Sequence[str]) -> list[str]:
    """The arguments, in a sweep with `++` before keys that a swept choice may have.

    Hydra first composes a sweep without swept choices; `Call` in cli.py removes `++` for the jobs.
    """
    if not {"-m", "--multirun", "hydra.mode=MULTIRUN"}.intersection(arguments):
        return [*arguments]
    settings, groups = _separated(arguments)[0], {*OPEN_GROUPS, *SITE_GROUPS.values()}
    return [f"++{a}" if a in settings and a.split(".")[0] in groups else a for a in arguments]


def _not_a_setting(before: str, argument: str) -> str:
    problem = f"{argument!r} is not key=value"
    if "/" not in argument and (choices := group_choices(argument)):
        return f"{problem}: choose {argument}={'|'.join(choices)}"
    if "=" in before:
        return f"{problem}. If it is part of {before!r}, quote both; a key has one value"
    return problem
