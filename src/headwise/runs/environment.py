"""Environment of a run: versions, commit, machine."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

PACKAGES = ("headwise", "torch", "hydra-core", "sentencepiece", "sacrebleu", "numpy")


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that affect results."""
    versions = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue  # a source tree that is not installed has no version
    return versions


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
        "world_size": int(os.environ.get("WORLD_SIZE", "1")),
    }
