"""Whether the classes that a run was made with are still what they were.

A run's fingerprint has their names, not their code: a variant that is edited is the same run to the
same command. That is right for a comment, and wrong for a formula; who runs it is told.
"""

from __future__ import annotations

import hashlib
import inspect
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from headwise.errors import ConfigError
from headwise.instantiate import target_class


def code_digests(container: Mapping[str, Any]) -> dict[str, str]:
    """Class -> digest of the file that it stands in, of all that a configuration names.

    Left out are classes of torch, whose version is kept, readers of text, which is in the
    fingerprint itself, and what has no source here: a run that is pruned may have been trained by
    an optimizer that is not at hand.
    """
    found = {}
    made = {key: node for key, node in container.items() if key != "data"}
    for key, node in _nodes(made, ""):
        try:
            target = target_class(node, key)
            module = sys.modules[target.__module__]
            content = "" if module.__name__.startswith("torch.") else inspect.getsource(module)
        except (ConfigError, OSError, TypeError, KeyError):  # the last two: made without a file
            continue
        if content:
            found[str(node["_target_"])] = hashlib.sha256(content.encode()).hexdigest()[:16]
    return found


def changed_code(known: Mapping[str, str], container: Mapping[str, Any]) -> list[str]:
    """The classes whose files are others now.

    Args:
        known: digests; of a class without one nothing is told.
        container: the configuration.
    """
    now = code_digests(container)
    return [name for name, digest in now.items() if known.get(name, digest) != digest]


def _nodes(node: Any, key: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    if isinstance(node, Mapping):
        if isinstance(node.get("_target_"), str):
            yield key, node
        for name, below in node.items():
            yield from _nodes(below, f"{key}.{name}" if key else str(name))
