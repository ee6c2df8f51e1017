"""Fields of settings that have more than a type: bounds of numbers, and paths, with `~`."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import Field, dataclass, field, fields, is_dataclass
from typing import Any, TypeVar, cast, get_type_hints

from headwise.errors import require

S = TypeVar("S")

MOST_IN_BRACKETS = 2**20  # greater limits are written as powers of two


@dataclass(frozen=True)
class Bounds:
    """An interval: open at `above` and `below`, closed at `at_least` and `at_most`; no NaN."""

    at_least: float | None = None
    above: float | None = None
    at_most: float | None = None
    below: float | None = None

    def __contains__(self, value: float) -> bool:
        return (
            value == value
            and (self.at_least is None or value >= self.at_least)
            and (self.above is None or value > self.above)
            and (self.at_most is None or value <= self.at_most)
            and (self.below is None or value < self.below)
        )

    def __str__(self) -> str:
        low = self.above if self.at_least is None else self.at_least
        high = self.below if self.at_most is None else self.at_most
        if low is not None and high is not None and high <= MOST_IN_BRACKETS:
            brackets = "(["[self.above is None], ")]"[self.below is None]
            return f"in {brackets[0]}{low}, {high}{brackets[1]}"
        parts = [] if low is None else [f"{'at least' if self.above is None else 'above'} {low}"]
        if high is not None:
            limit = f"2^{math.log2(high):.0f}" if high < math.inf else ""
            parts.append(f"below {limit}" if limit else "finite")
        return " and ".join(parts)


def bounded(
    default: Any,
    low: float | None = None,
    high: float | None = None,
    above: float | None = None,
    below: float | None = None,
) -> Any:
    """A field whose value is a number from `low` to `high`, or null if its type allows it.

    Args:
        default: its value.
        low, high: allowed limits; None: no limit.
        above, below: limits that are not allowed.
    """
    return field(default=default, metadata={"bounds": Bounds(low, above, high, below)})


def bounds_in_words(item: Field[Any]) -> str:
    """The bounds of a field, such as "null or at least 1"; empty if it has none."""
    bounds = item.metadata.get("bounds")
    null = "null or " if "None" in str(item.type) else ""
    return "" if bounds is None else f"{null}{bounds}"


def check_bound(item: Field[Any], key: str, value: Any) -> None:
    """Raise `ConfigError` for a value outside the bounds of its field."""
    if value is not None and "bounds" in item.metadata:
        require(value in item.metadata["bounds"], key, bounds_in_words(item), value)


def check_bounds(settings: Any, prefix: str = "") -> None:
    """Raise `ConfigError` for values outside their bounds in a dataclass and those in it.

    Args:
        settings: set by a program; `check_settings` checks what Hydra composed.
        prefix: of its keys, such as "trainer."; empty for the config of a command.
    """
    for item in fields(settings):
        value = getattr(settings, item.name)
        if is_dataclass(value):
            check_bounds(value, f"{prefix}{item.name}.")
        else:
            check_bound(item, f"{prefix}{item.name}", value)


def with_bounds(text: str, kind: type) -> str:
    """The yaml of a dataclass with the bounds of its keys as comments."""
    words = dict(_all_bounds(kind))
    path: list[str] = []
    lines = []
    for line in text.splitlines():
        if key := re.match(r"( *)'?(\w+)'?:", line):
            path[len(key[1]) // 2 :] = [key[2]]
        numbers = words.get(".".join(path)) if key else None
        lines.append(f"{line}  # {numbers}" if numbers else line)
    return "\n".join(lines)


def _all_bounds(kind: Any, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield each dotted key of a dataclass, and of those in it, with its bounds in words."""
    hints = get_type_hints(kind)
    for item in fields(kind):
        yield f"{prefix}{item.name}", bounds_in_words(item)
        if is_dataclass(hints[item.name]):
            yield from _all_bounds(hints[item.name], f"{prefix}{item.name}.")


# -- paths ----------------------------------------------------------------------------------------


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
