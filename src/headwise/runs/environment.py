"""Where a run was made: versions, commit, machine."""

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
    """Versions of what decides a run's numbers."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue  # a source tree that was never installed has no version
    return found


def git_commit() -> dict[str, Any] | None:
    """Commit of the source tree and whether it was changed; None outside of a git checkout.

    A checkout that does not keep this file, such as one with an environment in it, is another's.
    """
    here = Path(__file__)

    def ask(*arguments: str) -> str | None:
        try:
            done = subprocess.run(
                ["git", "-C", str(here.parent), *arguments],
                capture_output=True,
                text=True,
                timeout=10,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    commit = ask("rev-parse", "HEAD")
    if not commit or ask("ls-files", "--error-unmatch", here.name) is None:
        return None
    return {"commit": commit, "changed": bool(ask("status", "--porcelain"))}


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
