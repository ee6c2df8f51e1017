"""Numbers that a key accepts, as metadata of the field of its dataclass."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import Field, dataclass, field, fields, is_dataclass
from typing import Any, get_type_hints

from headwise.errors import require

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
