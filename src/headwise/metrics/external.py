"""Scores by commands of the user's, such as COMET, on the files of a run."""

from __future__ import annotations

import math
import re
import shlex
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headwise.errors import ConfigError, nearest

FILES = ("source", "hypotheses", "references")
_PLACEHOLDER = re.compile(r"\{(\w+)\}")
_NUMBER = re.compile(
    r"(?<![\w.])[-+]?(?:(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?|nan|inf)(?!\w|\.\w)", re.I
)


def check_commands(commands: Mapping[str, str]) -> None:
    """Refuse command templates that cannot be run.

    Raises:
        ConfigError: an unknown placeholder, none for the hypotheses, or unbalanced quotes.
    """
    for name, template in commands.items():
        key = f"decode.external.{name}"
        if name == "search":
            raise ConfigError(f"{key}: search is what scores call the record of the search itself")
        for field in _PLACEHOLDER.findall(template):
            if field not in FILES:
                hint = nearest(field, FILES)
                meant = f" Did you mean {{{hint}}}?" if hint else ""
                allowed = ", ".join(f"{{{file}}}" for file in FILES)
                raise ConfigError(f"{key} may name {allowed}; got {{{field}}}.{meant}")
        if "{hypotheses}" not in template:
            raise ConfigError(
                f"{key} must name {{hypotheses}}, the file to score; got {template!r}"
            )
        try:
            shlex.split(template)
        except ValueError as error:
            raise ConfigError(
                f"{key} cannot be read as a command ({error}): {template!r}"
            ) from error


def run_external(
    commands: Mapping[str, str],
    paths: Mapping[str, Path],
    timeout_seconds: float = 3600.0,
) -> dict[str, dict[str, Any]]:
    """Run each command and read its score: the last number it prints on stdout.

    COMET, for example, which the user installs (`pip install unbabel-comet`), in a config:

        external:
          comet: comet-score -s {source} -t {hypotheses} -r {references} --quiet --only_system

    Args:
        commands: metric name -> command with {source}, {hypotheses} and {references} for the
            files. It is split as a shell would, but no shell runs: no pipes, no variables.
        paths: the three files by those names, one sentence a line.
        timeout_seconds: of each command.

    Returns:
        name -> {"score": float, "command": text}. A command that fails gets
        {"warning": reason, "command": text} and no score.

    Raises:
        ConfigError: see `check_commands`.
    """
    check_commands(commands)
    return {
        name: _run(_arguments(template, paths), timeout_seconds)
        for name, template in commands.items()
    }


def _arguments(template: str, paths: Mapping[str, Path]) -> list[str]:
    """The words of the command; split before filling in, so that a path may hold a space."""
    return [
        _PLACEHOLDER.sub(lambda match: str(paths[match.group(1)]), word)
        for word in shlex.split(template)
    ]


def _run(arguments: list[str], timeout_seconds: float) -> dict[str, Any]:
    command = shlex.join(arguments)
    try:
        done = subprocess.run(
            arguments,
            stdin=subprocess.DEVNULL,  # a command that asks a question fails instead of hanging
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_seconds,
        )
    except OSError as error:
        return {"warning": f"could not be started: {error}", "command": command}
    except subprocess.TimeoutExpired:
        return {"warning": f"did not end within {timeout_seconds:g} s", "command": command}
    if done.returncode != 0:
        last_line = (done.stderr.strip().splitlines() or ["nothing on stderr"])[-1]
        reason = f"ended with exit code {done.returncode}: {last_line}"
        return {"warning": reason, "command": command}
    numbers = _NUMBER.findall(done.stdout)
    if not numbers:
        return {"warning": "printed no number on stdout", "command": command}
    score = float(numbers[-1])
    if not math.isfinite(score):
        return {"warning": f"printed {numbers[-1]}, which is no score", "command": command}
    return {"score": score, "command": command}
