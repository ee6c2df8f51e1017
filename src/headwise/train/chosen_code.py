"""Whether the classes that a run was made with are still what they were.

A run's fingerprint has their names, not their code: a variant that is edited is the same run to the
same command. That is right for a comment, and wrong for a formula; who runs it is told.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from headwise.instantiate import target_class


def code_digests(container: Mapping[str, Any]) -> dict[str, str]:
    """Class -> digest of the file that it stands in, of all that a configuration names.

    Classes of torch, whose version is kept, are left out, and so are readers of text, which is in
    the fingerprint itself.
    """
    found = {}
    made = {key: node for key, node in container.items() if key != "data"}
    for key, node in _nodes(made, ""):
        target = target_class(node, key)
        if not target.__module__.startswith("torch."):
            content = Path(inspect.getfile(target)).read_bytes()
            found[str(node["_target_"])] = hashlib.sha256(content).hexdigest()[:16]
    return found


def changed_code(before: Mapping[str, Any], container: Mapping[str, Any]) -> list[str]:
    """The classes whose files are others now.

    Args:
        before: content of environment.json; older ones have no digests, and nothing is told.
        container: the configuration.
    """
    known = before.get("code", {})
    now = code_digests(container)
    return [name for name, digest in now.items() if known.get(name, digest) != digest]


def _nodes(node: Any, key: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    if isinstance(node, Mapping):
        if isinstance(node.get("_target_"), str):
            yield key, node
        for name, below in node.items():
            yield from _nodes(below, f"{key}.{name}" if key else str(name))
