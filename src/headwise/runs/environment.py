"""Environment of a run: versions, commit, machine."""

from __future__ import annotations

import getpass
import os
import platform
import subprocess
import sys
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from typing import Any

from headwise.errors import ConfigError

# those that convert data
CONVERTERS = ("headwise", "sentencepiece", "sacremoses", "soundfile", "soxr", "pillow")
PACKAGES = (*CONVERTERS, "torch", "hydra-core", "sacrebleu", "numpy")
STARTED = "torchrun sets it, and one process needs no WORLD_SIZE"


def rank_variables() -> tuple[int, int, int]:
    """Number of this process, number of processes, number on this machine, from `torchrun`.

    It is alone unless `WORLD_SIZE` is set.

    Raises:
        ConfigError: the variables of several processes are missing or wrong.
    """
    world_size = _number("WORLD_SIZE", 1, 2**31, "1")
    if world_size == 1:
        return 0, 1, 0
    if not os.environ.get("MASTER_ADDR"):
        raise ConfigError(f"MASTER_ADDR (environment) is not set; {STARTED}")
    _number("MASTER_PORT", 0, 2**16 - 1)
    rank = _number("RANK", 0, world_size - 1)
    return rank, world_size, _number("LOCAL_RANK", 0, world_size - 1, "0")


def _number(name: str, first: int, last: int, default: str = "") -> int:
    text = os.environ.get(name) or default
    if not (text.isascii() and text.isdecimal() and first <= int(text) <= last):
        allowed = f"must be a number from {first} to {last}"
        raise ConfigError(f"{name} (environment) {allowed}, got {text!r}; {STARTED}")
    return int(text)


def complete_environment() -> None:
    """Unset empty variables, and set those that libraries need on every machine.

    The name of a user without one, after which torch names a folder, and a backend of matplotlib:
    that of a notebook may not be installed here, and figures are only written to files.

    Raises:
        ConfigError: the user has no home folder.
    """
    for name, value in list(os.environ.items()):
        if not value and (name == "HOME" or name.startswith("HEADWISE_")):
            del os.environ[name]
    os.environ["MPLBACKEND"] = "agg"
    try:
        Path.home()
    except RuntimeError as error:
        raise ConfigError("this user has no home; set HOME=FOLDER (environment)") from error
    try:
        getpass.getuser()
    except (KeyError, OSError):
        os.environ["LOGNAME"] = f"uid{os.getuid()}"


def package_versions(names: Iterable[str]) -> dict[str, str]:
    """Version of each package that is installed; a source tree that is not has none."""
    distributions = {name: next(iter(metadata.distributions(name=name)), None) for name in names}
    return {name: package.version for name, package in distributions.items() if package is not None}


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that affect results."""
    return {"python": platform.python_version(), **package_versions(PACKAGES)}


def git_commit() -> dict[str, Any] | None:
    """Commit of the source tree and whether it has changes; None outside a git checkout.

    A checkout that does not track this file is ignored, such as one that contains a venv.
    """
    here = Path(__file__)

    def git(*arguments: str) -> str | None:
        try:
            process = subprocess.run(
                ["git", "-C", str(here.parent), *arguments],
                capture_output=True,
                text=True,
                timeout=10,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        return process.stdout.strip() if process.returncode == 0 else None

    commit = git("rev-parse", "HEAD")
    if not commit or git("ls-files", "--error-unmatch", here.name) is None:
        return None
    return {"commit": commit, "changed": bool(git("status", "--porcelain"))}


def environment() -> dict[str, Any]:
    """Command, versions and machine of this process."""
    import torch

    return {
        "command": sys.argv,
        "versions": versions(),
        "git": git_commit(),
        "platform": platform.platform(),
        "cpus": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "world_size": rank_variables()[1],
    }
