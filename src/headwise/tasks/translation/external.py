"""External metrics: scores of user commands, such as COMET, on the files of a run."""

from __future__ import annotations

import math
import re
import shlex
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headwise.errors import ConfigError, refuse

FILES = ("source", "hypotheses", "references")
_PLACEHOLDER = re.compile(r"\{(\w+)\}")
_NUMBER = re.compile(
    r"(?<![\w.])[-+]?(?:(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?|nan|inf)(?!\w|\.\w)", re.I
)


def check_commands(commands: Mapping[str, str]) -> None:
    """Validate command templates.

    Raises:
        ConfigError: an unknown placeholder, no {hypotheses}, or unbalanced quotes.
    """
    for name, template in commands.items():
        key = f"decode.external.{name}"
        if name == "search":
            raise ConfigError(f"{key}: search is a reserved name (statistics of the search)")
        for field in _PLACEHOLDER.findall(template):
            if field not in FILES:
                raise refuse(f"a placeholder of {key}", field, FILES)
        if "{hypotheses}" not in template:
            raise ConfigError(
                f"{key} must contain {{hypotheses}}, the file to score; got {template!r}"
            )
        try:
            shlex.split(template)
        except ValueError as error:
            raise ConfigError(f"{key} is not a valid command ({error}): {template!r}") from error


def run_external(
    commands: Mapping[str, str],
    paths: Mapping[str, Path],
    timeout_seconds: float = 3600.0,
) -> dict[str, dict[str, Any]]:
    """Run each command and read its score: the last number on its stdout.

    Example config for COMET (`pip install unbabel-comet`):

        external:
          comet: comet-score -s {source} -t {hypotheses} -r {references} --quiet --only_system

    Args:
        commands: metric name -> command with {source}, {hypotheses} and {references} for the
            files. Split like a shell command, but run without a shell: no pipes, no variables.
        paths: source, hypotheses and references -> files with one sentence per line.
        timeout_seconds: of each command.

    Returns:
        name -> {"score": float, "command": text}. A command that fails gets
        {"warning": reason, "command": text} and no score.
    """
    return {
        name: _run(_arguments(template, paths), timeout_seconds)
        for name, template in commands.items()
    }


def _arguments(template: str, paths: Mapping[str, Path]) -> list[str]:
    """Split the command, then fill in the paths, which may contain spaces."""
    return [
        _PLACEHOLDER.sub(lambda match: str(paths[match.group(1)]), word)
        for word in shlex.split(template)
    ]


def _run(arguments: list[str], timeout_seconds: float) -> dict[str, Any]:
    command = shlex.join(arguments)
    try:
        process = subprocess.run(
            arguments,
            stdin=subprocess.DEVNULL,  # a prompt fails instead of hanging
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_seconds,
        )
    except OSError as error:
        return {"warning": f"could not start: {error}", "command": command}
    except subprocess.TimeoutExpired:
        return {"warning": f"timed out after {timeout_seconds:g} s", "command": command}
    if process.returncode != 0:
        last_line = (process.stderr.strip().splitlines() or ["nothing on stderr"])[-1]
        reason = f"exit code {process.returncode}: {last_line}"
        return {"warning": reason, "command": command}
    numbers = _NUMBER.findall(process.stdout)
    if not numbers:
        return {"warning": "printed no number on stdout", "command": command}
    score = float(numbers[-1])
    if not math.isfinite(score):
        return {"warning": f"printed {numbers[-1]}, which is not finite", "command": command}
    return {"score": score, "command": command}
