"""Versions of installed packages."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import metadata


def package_versions(names: Iterable[str]) -> dict[str, str]:
    """Version of each package that is installed; a source tree that is not has none."""
    distributions = {name: next(iter(metadata.distributions(name=name)), None) for name in names}
    return {name: package.version for name, package in distributions.items() if package is not None}
