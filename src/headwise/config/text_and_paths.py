"""Settings that are paths: `~` is the home folder."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import field, fields, is_dataclass
from typing import Any, TypeVar, cast

S = TypeVar("S")


def path(default: Any = None, stream: str = "-") -> Any:
    """A field that holds a path, several, or a mapping to paths; see `expand_paths`.

    Args:
        default: a value, or a function that returns it.
        stream: the path that `-` stands for.
    """
    kind = "default_factory" if callable(default) else "default"
    return cast(Any, field)(**{kind: default}, metadata={"stream": stream})


def expand_paths(config: S) -> S:
    """Replace `~` and `-` in the paths of a dataclass and of those in it."""
    for item in fields(config):  # type: ignore[arg-type]
        value = getattr(config, item.name)
        if is_dataclass(value):
            expand_paths(value)
        elif stream := item.metadata.get("stream"):
            setattr(config, item.name, stream if value == "-" else in_home(value))
    return config


def in_home(value: Any) -> Any:
    """`value` with `~` at the start of its texts as the home folder."""
    return changed_texts(os.path.expanduser, value)


def changed_texts(change: Callable[[str], str], value: Any) -> Any:
    """A value of plain types with each of its texts changed."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {name: changed_texts(change, item) for name, item in value.items()}
    return [changed_texts(change, item) for item in value] if isinstance(value, list) else value
